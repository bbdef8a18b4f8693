-- Takes vectors of states that have changed into their indexes, for about so many ms, and gives how many states were looked at.
SELECT {schema}.index_vectors(%(ms)s)
