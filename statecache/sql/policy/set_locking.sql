-- Records how locks are kept in a namespace, and gives the policies as Redis has them.
SELECT {schema}.set_locking(%(name)s, %(locking)s, %(by)s, %(seen)s)
