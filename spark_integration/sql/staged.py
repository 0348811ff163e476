"""Staged mode: queries that Spark does not stream are answered anew after every micro-batch.

- One streaming query writes the new rows of its fragments to ``path/batches/batch=N``.
- The answer of micro-batch N is a batch query over the batches 0 to N.
- A repeated micro-batch overwrites its own batch and reads nothing later, so its answer is the
  same.
"""

import json
from collections.abc import Callable, Mapping
from textwrap import indent
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import Catalyst
from lsmstate.spark_integration.checkpoint.json_records import create_record_in, read_record_in
from lsmstate.spark_integration.joins.shares import explain_join
from lsmstate.spark_integration.plan.storage import state_url
from lsmstate.spark_integration.sql.fragments import Fragments
from lsmstate.state_location import StatePlace

#: Called with each micro-batch's answer, a batch DataFrame, and its number.
Answer = Callable[[DataFrame, int], None]

_RECORD = "staged.json"


class StagedQuery:
    """A query in staged mode, made by ``MultiwayQuery.staged``; ``start`` runs it."""

    def __init__(
        self,
        catalyst: Catalyst,
        plan: Any,
        path: str,
        rows: Mapping[str, int],
        options: Mapping[str, Any],
    ) -> None:
        """Plan the fragments of the query.

        Raises:
            InvalidArgumentError: The query reads no stream, or its plan cannot be read.
        """
        self._spark = catalyst.spark
        self._path = str(path).rstrip("/")
        self._batches = f"{self._path}/batches"
        self._fragments = Fragments.of(catalyst, plan, rows, options)
        if not self._fragments.all:
            raise InvalidArgumentError("the query reads no stream; run it with spark.sql")
        self._streamed = self._fragments.streamed()

    @property
    def fragments(self) -> tuple[str, ...]:
        """What is streamed and kept: joins of its inputs, and streams that are read beside them."""
        return tuple(fragment.name for fragment in self._fragments.all)

    def explain_multiway(self) -> str:
        """Describe the conversion.

        Returns:
            The plans of the query and of its subqueries before and after, why each join was or was
            not merged, the fragments, and how the operator works: keys, indexes, shares.
        """
        text = self._fragments.explained()
        if self._fragments.joined is None:
            return text
        return f"{text}\nOperator\n{indent(explain_join(self._fragments.joined), '  ')}"

    def start(
        self, answer: Answer | None = None, *, trigger: Mapping[str, Any] | None = None
    ) -> StreamingQuery:
        """Start the query, or continue it from its checkpoint in ``path/checkpoint``.

        A micro-batch may be answered again after a failure, with the same rows.

        Args:
            answer: Function that is called with the answer of each micro-batch, a batch DataFrame,
                and the number of the micro-batch. The answer equals the batch query over all rows
                so far. Default: answers are written to ``path/answers/<number>`` as Parquet files.
            trigger: Arguments of Spark's ``trigger``, such as {"availableNow": True}.

        Returns:
            The running query.

        Raises:
            InvalidArgumentError: ``path`` has the fragments of another query; the message shows
                both.

        Cost:
            The part of the query that is not streamed is computed anew for each micro-batch.
        """
        self._pin()

        def run(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").partitionBy("fragment").parquet(self._batch(number))
            found = self._fragments.answer(self._stored(number))
            if answer is not None:
                answer(found, number)
            else:
                found.write.mode("overwrite").parquet(f"{self._path}/answers/{number}")

        writer = self._streamed.writeStream.foreachBatch(run)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", f"{self._path}/checkpoint").start()

    def _batch(self, number: int) -> str:
        return f"{self._batches}/batch={number}"

    def _stored(self, number: int) -> DataFrame:
        """The fragments as of a micro-batch."""
        paths = [self._batch(earlier) for earlier in range(number + 1)]
        reader = self._spark.read.schema(self._streamed.schema)
        return reader.option("basePath", self._batches).parquet(*paths)

    def _pin(self) -> None:
        """Check that the fragments in ``path`` are those of this query."""
        place = StatePlace(state_url(self._path))
        now = {
            f"{number} {fragment.text}": json.dumps(fragment.columns.jsonValue()["fields"])
            for number, fragment in enumerate(self._fragments.all)
        }
        if not create_record_in(place, _RECORD, now):
            was = read_record_in(place, _RECORD)
            if was != now:
                raise InvalidArgumentError(
                    f"{self._path} belongs to a query with the fragments {_shown(was or {})}, and "
                    f"this query has {_shown(now)}; start the former query, or give another path"
                )


def _shown(fragments: Mapping[str, str]) -> str:
    def columns(fields: str) -> str:
        return ", ".join(str(found["type"]) for found in json.loads(fields))

    return "; ".join(f"{name} ({columns(fields)})" for name, fields in fragments.items())
