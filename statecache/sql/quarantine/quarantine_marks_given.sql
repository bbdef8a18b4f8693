-- Hands marks over to `quarantine_mark`, which can have no parameters, for the rest of the transaction.
SELECT set_config('statecache.marks', %(marks)s, true)
