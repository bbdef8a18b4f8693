-- Gives whether any namespace's vectors are indexed.
SELECT EXISTS (SELECT FROM {schema}.vector_index)
