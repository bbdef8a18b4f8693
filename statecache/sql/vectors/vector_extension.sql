-- Makes pgvector's types known to this database, where its server has them.
CREATE EXTENSION IF NOT EXISTS vector
