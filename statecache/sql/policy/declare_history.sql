-- Records what is kept of a namespace's history where nothing is recorded of it, and gives what is recorded then.
SELECT history, max_age, max_count, changed_by
FROM {schema}.declare_history(%(name)s, %(history)s, %(age)s::interval, %(count)s::integer, %(by)s)
