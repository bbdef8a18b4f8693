-- Gives the member and the dimensions of a namespace's indexed vectors, if they are indexed.
SELECT member, dims FROM {schema}.vector_tables() WHERE namespace = %(namespace)s AND ready
