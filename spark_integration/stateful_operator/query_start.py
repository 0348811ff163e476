"""The start of a query: where its state lies, its buckets, and limits of its own.

A listener runs on the query's own thread before its first batch. It finds our operator in the
query's plan, adopts or pins the settings, and changes limits in the query's own copy of the
session. It leaves what the workers must know in local properties of that thread. The user's session
keeps its values. Two queries cannot disturb each other, because each has its own thread and its own
copy.
"""

import atexit
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from lsmstate.errors import InvalidArgumentError, LsmStateError
from lsmstate.opening import check_place
from lsmstate.options import MIB
from lsmstate.spark_integration.catalyst.catalyst import (
    calls_python,
    context_of,
    items,
    jvm_of,
    kind_of,
    nodes_with_path,
    streams_of,
)
from lsmstate.spark_integration.catalyst.progress_events import java_listener, progress_of
from lsmstate.spark_integration.catalyst.refusal import refuse
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    STATE_NAME,
    adopt_or_pin,
    newest_settings,
)
from lsmstate.spark_integration.checkpoint.state_partition import listed
from lsmstate.spark_integration.checkpoint.task_run import (
    FLUSH_ROWS,
    PARTITIONS,
    REFUSAL_PROPERTY,
    ROOT_PROPERTY,
    SPARK_DEFAULTS,
    STARTS_PROPERTY,
    VERSION_PROPERTY,
)
from lsmstate.spark_integration.metrics.history import MetricsHistory, read_sizes
from lsmstate.spark_integration.metrics.query import metrics_of
from lsmstate.spark_integration.metrics.reports import OBSERVATION
from lsmstate.spark_integration.metrics.state_figures import StateFigures
from lsmstate.spark_integration.plan.stateful_plan import Wanted
from lsmstate.spark_integration.plan.storage import kept, state_url
from lsmstate.spark_integration.stateful_operator.operators_above import check_above
from lsmstate.spark_integration.stateful_operator.output_modes import tell_modes
from lsmstate.spark_integration.tables.versioned_tables import begin
from lsmstate.state_location import StatePlace, local_path

#: Column metadata under which an operator's settings stand in the plan.
PLAN_METADATA: Final = "lsmstate.join"

_MAX_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
#: Spark hands rows to Python in pieces of at most this.
_PIECE_BYTES: Final = 4 * MIB
_METHOD_LIMIT: Final = "spark.sql.codegen.hugeMethodLimit"
#: Bytes of the largest method that Spark may generate for wide results, unless the session says
#: something: the JVM compiles larger ones for half a minute of a core, and runs them slowly
#: until then.
_METHOD_BYTES: Final = 4000
_SPARK_METHOD_BYTES: Final = 65535

#: How long the end of the program waits for listeners to take the last events.
_LAST_EVENTS_MS: Final = 5000

_log = logging.getLogger("lsmstate")

_listening: "WeakKeyDictionary[SparkSession, QueryStarter]" = WeakKeyDictionary()


def listen(spark: SparkSession) -> None:
    """Register the listener, once per session. It stays, and does nothing to other queries."""
    tell_modes(operators_in)
    if spark not in _listening:
        listener = QueryStarter(spark)
        spark.streams.addListener(listener)
        _listening[spark] = listener
        atexit.register(_stop_listening, spark.streams, listener, context_of(spark))


def _stop_listening(streams: StreamingQueryManager, listener: "QueryStarter", context: Any) -> None:
    """At the end of the program: otherwise Spark logs an error per event that finds no Python.

    Events that wait are handed to all listeners first, those of the program among them."""
    # A session that was stopped, or whose JVM is gone, has no listeners left to remove.
    with suppress(Py4JError, OSError):
        streams.removeListener(listener)
        context.listenerBus().waitUntilEmpty(_LAST_EVENTS_MS)


class QueryStarter(StreamingQueryListener):
    """Prepares each query of its session that has an operator of ours."""

    def __init__(self, spark: SparkSession) -> None:
        self._streams = streams_of(spark)
        self._context = context_of(spark)
        self._java = jvm_of(spark)
        self._listener: Any = None
        #: By id of a running query.
        self._histories: dict[str, MetricsHistory] = {}
        self._figures: dict[str, StateFigures] = {}

    @property
    def _jlistener(self) -> Any:
        if self._listener is None:
            self._listener = java_listener(self._java, self, self.progressed)
        return self._listener

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        query = self._streams.get(str(event.id))
        if query is None:
            return
        if hasattr(query, "streamingQuery"):
            query = query.streamingQuery()
        operators = operators_in(query.analyzedPlan())
        properties: dict[str, str | None] = dict.fromkeys(
            (ROOT_PROPERTY, VERSION_PROPERTY, STARTS_PROPERTY, REFUSAL_PROPERTY)
        )
        if operators:
            try:
                _check_stands_once(operators)
                for wanted, above in operators_with_path(query.analyzedPlan()):
                    check_above(above, wanted)
                properties |= _prepare(query, str(event.id), operators[0], self._context)
                self._note_start(event, query, operators[0], properties)
            except (LsmStateError, Py4JError, OSError, ValueError) as refusal:
                sentence = str(refusal)
                is_over = refuse(query, self._java, sentence)
                when = "is refused" if is_over else "will fail at its first data"
                _log.error("query %s %s: %s", event.id, when, sentence)
                properties[REFUSAL_PROPERTY] = sentence
        for name, value in properties.items():
            self._context.setLocalProperty(name, value)

    def _note_start(
        self,
        event: QueryStartedEvent,
        query: Any,
        wanted: Wanted,
        properties: Mapping[str, str | None],
    ) -> None:
        root, version = properties[ROOT_PROPERTY], properties[VERSION_PROPERTY]
        directory = None if root is None else local_path(root)
        known = {} if directory is None else read_sizes(directory, version)
        self._figures[str(event.id)] = StateFigures(self._java, known)
        if directory is None:
            return  # on another file system nobody appends
        history = self._histories[str(event.id)] = MetricsHistory(directory)
        history.started(
            query_id=str(event.id),
            run_id=str(event.runId),
            name=event.name,
            version=version,
            operator=wanted.operator,
            explanation=wanted.explanation,
        )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Do nothing: ``progressed`` gets the progress of the JVM."""

    def progressed(self, progress: Any) -> None:
        """Set Spark's own figures of the state, and keep the metrics beside it. ``progress`` is
        that of the JVM."""
        query_id = str(progress.id().toString())
        figures, history = self._figures.get(query_id), self._histories.get(query_id)
        if figures is None:
            return
        found = progress_of(progress)
        metrics = metrics_of(found)
        if metrics is None:
            return
        figures.told(metrics, found["observedMetrics"][OBSERVATION], progress)
        if history is not None:
            history.add(metrics, figures.sizes)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note the end."""
        self._figures.pop(str(event.id), None)
        history = self._histories.pop(str(event.id), None)
        if history is not None:
            history.ended(event.exception)


def _prepare(query: Any, query_id: str, wanted: Wanted, context: Any) -> dict[str, str]:
    """Check and set up one query. Returns the properties that tell its tasks of its state."""
    _check_mode(query, wanted.operator)
    checkpoint = query.resolvedCheckpointRoot()
    storage = kept(wanted.storage_key)
    root = wanted.state_dir or state_url(f"{checkpoint}/{STATE_NAME}")
    place = storage.place(root)
    if place.local_directory is None:
        check_place(wanted.settings["backend"], place.where)
    if local_path(checkpoint) is not None or wanted.state_dir is None:
        _check_state_is_there(storage.place(state_url(f"{checkpoint}/commits")), place)
    if wanted.needs_local_tables and place.local_directory is None:
        raise InvalidArgumentError(
            f"{wanted.operator} learns its routing by tables in a local directory, and its state "
            f"is in {place.where}; leave out routing, or name a local state_dir"
        )
    conf = query.sparkSessionForStream().conf()
    _check_policy(conf, wanted)
    partitions = context.defaultParallelism()
    if conf.contains(PARTITIONS):
        partitions = int(conf.get(PARTITIONS))
    pinned = adopt_or_pin(place, wanted, partitions, query_id)
    told = {ROOT_PROPERTY: root, VERSION_PROPERTY: str(pinned.version)}
    if wanted.has_tables:
        committed = query.commitLog().getLatestBatchId()
        first = committed.get() + 1 if committed.isDefined() else 0
        told[STARTS_PROPERTY] = begin(place, first).to_text()
    # Read by Spark after this, and fixed by the checkpoint from the first batch on.
    conf.set(PARTITIONS, str(pinned.partitions))
    if int(conf.get(FLUSH_ROWS)) <= 0:
        conf.set(FLUSH_ROWS, str(SPARK_DEFAULTS[FLUSH_ROWS]))
    conf.set(_MAX_BYTES, str(_PIECE_BYTES))
    if int(conf.get(_METHOD_LIMIT)) == _SPARK_METHOD_BYTES:
        conf.set(_METHOD_LIMIT, str(_METHOD_BYTES))
    return told


def _check_state_is_there(commits: StatePlace, state: StatePlace) -> None:
    """A checkpoint that continues without its state would miss rows without an error."""
    if newest_settings(state)[1] is None and any(map(str.isdigit, listed(commits.files))):
        raise InvalidArgumentError(
            f"the checkpoint has committed batches ({commits.where}), but their state is not in "
            f"{state.where}; name the state_dir the query was started with, restore that "
            "directory, or start with a new checkpoint location"
        )


def _check_stands_once(operators: list[Wanted]) -> None:
    """Spark's own check looks at a ``WITH`` clause once, however often it is referenced."""
    if len(operators) > 1:
        raise InvalidArgumentError(
            f"this query uses the result of {operators[0].operator} {len(operators)} times, and "
            "Spark allows that once; read it twice in foreachBatch, or write it to a table that "
            "other queries read"
        )


def _check_mode(query: Any, operator: str) -> None:
    if "AsyncProgress" in query.getClass().getName():
        raise InvalidArgumentError(
            f"{operator} needs the progress of each batch written before the next one begins; "
            "start the query without asyncProgressTrackingEnabled"
        )
    trigger = query.trigger().toString()
    if "RealTime" in trigger or "Continuous" in trigger:
        raise InvalidArgumentError(
            f"{operator} runs in micro-batches, not under {trigger}; use "
            "trigger(processingTime=...) or trigger(availableNow=True)"
        )


def _check_policy(conf: Any, wanted: Wanted) -> None:
    """The result time has no delay of its own. As the query's watermark it would make rows late
    that come within the delays of the inputs."""
    if wanted.result_time is not None and conf.get(_POLICY, "min").lower() == "max":
        raise InvalidArgumentError(
            f"{_POLICY}=max: the query's watermark would be that of result_time="
            f"{wanted.result_time!r}, the latest of all event times, and Spark would drop rows "
            "within the delays of the inputs; set the policy to min, or leave result_time out"
        )


def operators_in(plan: Any) -> list[Wanted]:
    """The settings of our operators in a plan, from the metadata of their bucket columns.

    A ``WITH`` clause that is referenced twice counts twice, as Spark runs it twice.
    """
    return [wanted for wanted, _ in operators_with_path(plan)]


def operators_with_path(plan: Any) -> list[tuple[Wanted, list[Any]]]:
    """The settings of our operators, each with the nodes above it, the nearest first."""
    if not calls_python(plan):
        return []
    return [
        (wanted, above)
        for node, above in nodes_with_path(plan)
        if "InPandasWithState" in kind_of(node)
        for wanted in _settings(items(node.children())[0].output())
    ]


def _settings(output: Any) -> list[Wanted]:
    metadata = [attribute.metadata() for attribute in items(output)]
    texts = [m.getString(PLAN_METADATA) for m in metadata if m.contains(PLAN_METADATA)]
    return [Wanted.from_json(text) for text in texts]
