-- Records what is kept of a namespace's history, whatever was recorded before.
SELECT {schema}.set_history(%(name)s, %(history)s, %(age)s::interval, %(count)s::integer, %(by)s)
