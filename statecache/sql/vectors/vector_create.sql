-- Makes the index of a namespace's vectors.
SELECT {schema}.create_vector_index(%(namespace)s, %(member)s, %(dims)s)
