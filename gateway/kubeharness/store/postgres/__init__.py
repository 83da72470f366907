"""The store of clusters: asyncpg on pinned connections for what is hot, SQLAlchemy's tables for the rest."""
