-- Has every state of a namespace indexed, and gives how many there are.
SELECT {schema}.fill_vector_index(%(namespace)s)
