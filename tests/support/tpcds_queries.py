"""TPC-DS queries with joins of several tables, in the words DuckDB ships, and the paper's own."""

from functools import cache

from lsmstate.spark_integration.demo.query import ALIASES, CONDITION
from lsmstate.spark_integration.demo.tpcds import connect, extension_path

#: By number the inputs of the merged join. Aggregated over joins alone: one streaming query.
STREAMED = {3: 3, 7: 5, 15: 4, 17: 8, 19: 6, 50: 5, 62: 5}
#: With subqueries, a sort without an aggregate, or outer joins above.
STAGED = {6: 5, 45: 5, 72: 9, 84: 6}

#: The UMJoin paper's query over its four streams.
PAPER = (
    "SELECT * FROM "
    + ", ".join(f"{table} {alias}" for alias, table in ALIASES.items())
    + f" WHERE {CONDITION}"
)

#: What the queries read.
TABLES = (
    *("store_sales", "store_returns", "catalog_sales", "catalog_returns", "web_sales"),
    *("web_returns", "inventory", "store", "warehouse", "web_site", "ship_mode", "promotion"),
    *("item", "customer", "customer_address", "customer_demographics"),
    *("household_demographics", "income_band", "date_dim"),
)


@cache
def benchmark_text(number: int) -> str:
    with connect() as db:
        db.execute(f"LOAD '{extension_path()}'")
        found = db.execute("SELECT query FROM tpcds_queries() WHERE query_nr = ?", [number])
        row = found.fetchone()
    assert row is not None, f"TPC-DS has no query {number}"
    return str(row[0])
