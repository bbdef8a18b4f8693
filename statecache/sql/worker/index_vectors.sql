-- Takes vectors of states that have changed into their indexes, for about so many ms. Gives whether there are indexes, and
-- how many states were looked at.
SELECT EXISTS (SELECT FROM {schema}.vector_index), {schema}.index_vectors(%(ms)s)
