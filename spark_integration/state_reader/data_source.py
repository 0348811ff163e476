"""``spark.read.format("lsmstate")``: the state of a query as a DataFrame.

This is a Python data source. Spark plans and reads it in Python workers, which have no session. It
therefore reads Spark's checkpoint itself.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.columns.schemas import arrow_schema, as_schema
from lsmstate.spark_integration.state_reader.query_state import QueryState
from lsmstate.store_base.checks import nearest

_OPTIONS: Final = ("path", "stream", "batchId", "bucket", "withKeys", "stateDir", "storageOptions")


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("lsmstate")`` known to a session.

    Spark finds the format by itself if ``PYSPARK_PYTHON`` has lsmstate as the session starts. A
    second call does nothing.

    Args:
        spark: The session.

    Example:
        ```python
        register(spark)
        spark.read.format("lsmstate").option("stream", "o").load("/data/checkpoint").show()
        ```
    """
    try:
        spark.dataSource.register(StateDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class StateDataSource(DataSource):
    """The rows of one stream as of a committed micro-batch, with one partition per bucket.

    Options of ``spark.read.format("lsmstate")``:

    - ``stream``: name of the stream; optional if there is only one.
    - ``batchId``: a committed micro-batch; default: the newest.
    - ``bucket``: one bucket; default: all.
    - ``withKeys``: true adds ``_bucket`` and the key as ``_key_...``.
    - ``stateDir``: the ``state_dir`` of the query, if it was started with one.
    - ``storageOptions``: options of the checkpoint's file system, as a JSON object. Credentials are
      better in the environment.
    """

    @classmethod
    def name(cls) -> str:
        return "lsmstate"

    def schema(self) -> StructType:
        return self._asked().schema

    def reader(self, schema: StructType) -> "StateReader":
        return StateReader(self._asked(), schema)

    def _asked(self) -> "_Question":
        return _Question(dict(self.options))


class _Question:
    """The checked options and the state that they name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in _OPTIONS}
        for name in options:
            if name.lower() not in known:
                raise InvalidArgumentError(
                    f"there is no option {name!r}{nearest(name, known.values())}"
                )
        given = {known[name.lower()]: value for name, value in options.items()}
        if "path" not in given:
            raise InvalidArgumentError("name the query's checkpoint location: load(checkpoint)")
        self.with_keys = _flag("withKeys", given.get("withKeys", "false"))
        self.bucket = _number("bucket", given.get("bucket"))
        batch = _number("batchId", given.get("batchId"))
        storage = _json_object("storageOptions", given.get("storageOptions", "{}"))
        self.state = QueryState.open(given["path"], batch, given.get("stateDir"), storage)
        self.stream = self.state.stream(given.get("stream"))

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self.state.schema(self.stream, self.with_keys), True)


class StateReader(DataSourceReader):
    """Reads the buckets. It travels to the workers, with the state as it was when it was
    planned."""

    def __init__(self, asked: _Question, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        if self._asked.bucket is not None:
            with self._asked.state.bucket(self._asked.bucket):
                pass  # it is there
            return [InputPartition(self._asked.bucket)]
        return [InputPartition(bucket) for bucket in self._asked.state.pointers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        asked = self._asked
        schema = arrow_schema(asked.stream.name, self._schema)
        for piece in asked.state.rows(partition.value, asked.stream, asked.with_keys):
            yield as_schema(piece, schema)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgumentError(f"{name}={text!r}: must be true or false")
    return text.lower() == "true"


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidArgumentError(f'{name} must be a JSON object, such as {{"region": "eu"}}')
    return found


def _number(name: str, text: Any) -> int | None:
    if text is None:
        return None
    if not str(text).isdigit():
        raise InvalidArgumentError(f"{name}={text!r}: must be a whole number")
    return int(text)
