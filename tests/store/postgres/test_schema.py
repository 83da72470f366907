"""The migrations give the tables, to the last option."""

import asyncpg
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from kubeharness.store.columns import LANE_COLUMNS
from kubeharness.store.postgres.tables import lane, metadata

COLUMNS = """
    SELECT c.relname, c.relpersistence, c.reloptions::text, a.attname, format_type(a.atttypid, a.atttypmod) AS type,
           co.collname, a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid) AS default
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_collation co ON co.oid = a.attcollation
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
      FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
"""


async def described(url: str) -> list[set[tuple[object, ...]]]:
    connection = await asyncpg.connect(url)
    try:
        return [{tuple(r) for r in await connection.fetch(query)} for query in (COLUMNS, INDEXES, CONSTRAINTS)]
    finally:
        await connection.close()


async def test_the_migrations_give_the_tables(postgres_url: str, empty_postgres_url: str) -> None:
    connection = await asyncpg.connect(empty_postgres_url)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    for table in metadata.sorted_tables:
        await connection.execute(str(CreateTable(table).compile(dialect=dialect)))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            await connection.execute(str(CreateIndex(index).compile(dialect=dialect)))
    await connection.close()

    migrated, made = await described(postgres_url), await described(empty_postgres_url)

    for ours, theirs in zip(migrated, made, strict=True):
        assert ours - theirs == set()
        assert theirs - ours == set()


def test_a_lane_has_a_column_for_each_of_its_fields() -> None:
    assert {column.name for column in lane.columns} == set(LANE_COLUMNS)
