-- Has changes of a namespace's states be noted for the index of its vectors, or no more; gives whether that could be done now.
SELECT {schema}.watch_vectors(%(namespace)s, %(watched)s)
