"""Read a table through each engine that is installed here, as rows in one order."""

from __future__ import annotations

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from tools.pipeline.tables import delta, schemas

COLUMNS = {
    "readings": ["device", "life", "boot", "seq", "index", "name", "value", "arrival"],
    "quarantine": ["reason", "topic", "payload", "arrival", "row"],
    "audit": ["device", "life", "boot", "published", "delivered", "missing"],
}


def directory(output, table):
    return delta.address(output.storage, delta.DIRECTORIES[table])


def rows(table: pa.Table, columns: list[str]) -> list[tuple[object, ...]]:
    """Return an Arrow table's rows in one order."""
    schema = pa.schema([one for one in SCHEMA if one.name in columns])
    table = table.select(columns).cast(pa.schema([schema.field(name) for name in columns]))
    table = (
        table.set_column(columns.index("arrival"), "arrival", table["arrival"].cast(pa.int64()))
        if "arrival" in columns
        else table
    )
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


SCHEMA = pa.unify_schemas(
    [pa.schema([pa.field(one.name, one.type) for one in schemas.READINGS])]
    + [pa.schema([pa.field(one.name, one.type) for one in schema]) for schema in (schemas.QUARANTINE, schemas.AUDIT)]
)


def truth(output, table):
    """Return what our commits say."""
    names = output.files(table)
    if not names:
        return []
    import pyarrow.parquet as pq

    storage = output.storage
    options = {"columns": COLUMNS[table], "partitioning": None, "filesystem": storage.fs}
    read = [pq.read_table(storage.path(name), **options) for name in names]
    return rows(pa.concat_tables(read), COLUMNS[table])


def by_pandas(output, table, spark=None):
    frame = DeltaTable(directory(output, table)).to_pandas(columns=COLUMNS[table])
    return rows(pa.Table.from_pandas(frame, schema=_schema(table), preserve_index=False), COLUMNS[table])


def by_polars(output, table, spark=None):
    import polars as pl

    frame = pl.scan_delta(directory(output, table)).select(COLUMNS[table]).collect()
    return rows(frame.to_arrow(), COLUMNS[table])


def by_duckdb(output, table, spark=None):
    """DuckDB over deltalake's Arrow dataset: its own reader is an extension that has to be downloaded."""
    found = DeltaTable(directory(output, table)).to_pyarrow_dataset()
    columns = ", ".join(f'"{name}"' for name in COLUMNS[table])
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.register("found", found)
        return rows(connection.sql(f"SELECT {columns} FROM found").to_arrow_table(), COLUMNS[table])


def by_files(output, table, spark=None):
    """DuckDB's own Parquet reader over the list of files."""
    uris = DeltaTable(directory(output, table)).file_uris()
    if not uris:
        return []
    columns = ", ".join(f'"{name}"' for name in COLUMNS[table])
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        found = connection.read_parquet(uris, hive_partitioning=False).project(columns)
        return rows(found.to_arrow_table(), COLUMNS[table])


def by_spark(output, table, spark):
    """Spark's Parquet reader over the list of files: it has no Delta reader here."""
    uris = DeltaTable(directory(output, table)).file_uris()
    if not uris:
        return []
    schema = schemas.spark_schema(_schema(table))
    return rows(spark.read.schema(schema).parquet(*uris).toArrow(), COLUMNS[table])


def _schema(table):
    schema = schemas.TABLES.get(table) or schemas.STATE[table]
    return pa.schema([pa.field(name, schema.field(name).type) for name in COLUMNS[table]])


ENGINES = {
    "pandas": by_pandas,
    "Polars": by_polars,
    "DuckDB over Arrow": by_duckdb,
    "DuckDB over the files": by_files,
    "Spark": by_spark,
}
