-- Gives the member and the dimensions of a namespace's indexed vectors, if they are indexed.
SELECT member, dims FROM {schema}.vector_index WHERE namespace = %(namespace)s AND ready
