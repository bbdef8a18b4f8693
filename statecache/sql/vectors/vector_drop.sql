-- Lets the index of a namespace's vectors go, and gives whether there was one.
SELECT {schema}.drop_vector_index(%(namespace)s)
