-- Gives the positions behind one at which these keys were written, whatever became of it.
SELECT epoch, n FROM {schema}.change WHERE key = ANY (%(keys)s) AND n > %(after)s
UNION
SELECT epoch, n FROM {schema}.conflict WHERE key = ANY (%(keys)s) AND n > %(after)s
UNION
SELECT epoch, n FROM {schema}.quarantine WHERE keys && %(keys)s::text[] AND n > %(after)s
