"""The registry of join kinds: the name of a kind, its spec, and its local join.

A new kind of join is one line here, or one call of ``register``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.changes.multi_key_join import GraphChangeJoin
from lsmstate.joins.local.changes.one_key_join import ChangeJoin
from lsmstate.joins.local.documents.natural_join import COUNTERS, NaturalLocalJoin
from lsmstate.joins.local.inner.binary_tree_join import TreeJoin
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.time_checks import BoundCheck
from lsmstate.joins.local.rooted.change_join import RootedChangeJoin
from lsmstate.joins.local.rooted.tree_matches import TreeMatches
from lsmstate.joins.local.similarity.similarity_join import COUNTERS as SIMILARITY_COUNTERS
from lsmstate.joins.local.similarity.similarity_join import SimilarityJoin
from lsmstate.joins.local.theta.change_join import ThetaChangeJoin
from lsmstate.joins.local.theta.finder import CANDIDATES
from lsmstate.joins.local.theta.side_matches import SideMatches
from lsmstate.joins.local.theta.theta_join import ThetaJoin
from lsmstate.joins.local.theta.theta_tree_join import ThetaTreeJoin
from lsmstate.joins.local.timed.asof_changes import AsofChangeJoin
from lsmstate.joins.local.timed.asof_join import AsofLocalJoin
from lsmstate.joins.local.timed.event_time_join import EventTimeJoin
from lsmstate.joins.local.timed.final_join import Decides, FinalJoin
from lsmstate.joins.protocols import Context, LocalJoin, MakesLocalJoin, Spec
from lsmstate.joins.specs.asof import AsofSpec
from lsmstate.joins.specs.binary_tree import BinaryTree, Order
from lsmstate.joins.specs.changes import ChangeSpec, GraphChangeSpec
from lsmstate.joins.specs.changes_multi_key import RootedChangeSpec
from lsmstate.joins.specs.documents import NaturalSpec
from lsmstate.joins.specs.event_time import TimedSpec, TimedThetaSpec
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.joins.specs.json_form import classes_in, from_json, to_json
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.joins.specs.similarity import SimilaritySpec
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.theta_sides import ThetaChangeSpec, ThetaFinalSpec
from lsmstate.joins.specs.theta_tree import ThetaTree
from lsmstate.store import MultimapStore


@dataclass(frozen=True)
class Kind:
    """A kind of join."""

    name: str
    """As a checkpoint and a kept state call it."""
    spec: type
    local_join: MakesLocalJoin
    """Makes the local join of a spec of this kind over a store."""
    counters: tuple[str, ...] = ()
    """Those of ``LocalJoin.counts`` that a query's metrics show, beside late rows and unmatched
    retractions."""
    is_rescaled: bool = False
    """Whether a rescale knows where rows of such a join lie."""
    judges_time: bool = False
    """Whether the local join judges rows by event time itself, as one does whose results wait.
    ``EventTimeJoin`` is put around all others where a spec has event times."""
    checked: Callable[[Any], BoundCheck] | None = None
    """Makes what checks time intervals on results; None: the local join checks them."""
    tree: Callable[[Any, Order], Spec] | None = None
    """Makes the same join as a tree of two-way joins in some order; None: there is none."""

    def opened(self, spec: Any, store: MultimapStore, context: Context) -> LocalJoin:
        """The local join of a spec over a store, which forgets rows if the spec says so."""
        joined = self.local_join(spec, store, context)
        if spec.event_time is None or self.judges_time:
            return joined
        check = None if self.checked is None else self.checked(spec)
        return EventTimeJoin(joined, spec, store, check)


def _inside(spec: TimedSpec, store: MultimapStore, context: Context) -> LocalJoin:
    return local_join(spec.joined, store, context)


def _intervals(spec: TimedSpec) -> BoundCheck:
    return BoundCheck(spec.joined, spec.event_time.bounds)


def _intervals_of_changes(spec: GraphChangeSpec) -> BoundCheck:
    return BoundCheck(spec.graph, spec.bounds_of(""))


def _final(made: Callable[[Any, MultimapStore, Context], Decides]) -> MakesLocalJoin:
    """``FinalJoin`` around what is made."""

    def opened(spec: Any, store: MultimapStore, context: Context) -> LocalJoin:
        return FinalJoin(made(spec, store, context), spec, store, context.piece_bytes)

    return opened


def _asof(spec: AsofSpec, store: MultimapStore, context: Context) -> LocalJoin:
    kind = AsofChangeJoin if spec.emits_changes else AsofLocalJoin
    return kind(spec, store, context)


#: By class of the spec.
_KINDS: dict[type, Kind] = {}


def register(kind: Kind) -> None:
    """Add a kind of join. InvalidArgumentError if another one has its name or its spec."""
    for known in _KINDS.values():
        names = {known.name, known.spec.__name__} & {kind.name, kind.spec.__name__}
        if known != kind and names:
            raise InvalidArgumentError(
                f"a kind of join called {known.name!r} with the spec {known.spec.__name__} is "
                f"registered already; give {kind.name!r} another name and a spec of its own"
            )
    for counter in kind.counters:
        if not (counter.isidentifier() and counter.isascii()):
            raise InvalidArgumentError(
                f"kind of join {kind.name!r}: the counter {counter!r} is no name; write it with "
                "letters, digits and underscores"
            )
    _KINDS[kind.spec] = kind


def registered() -> tuple[Kind, ...]:
    """All kinds."""
    return tuple(_KINDS.values())


def kind_of(spec: object) -> Kind:
    """The kind of a spec. InvalidArgumentError if nobody registered it."""
    for each in type(spec).__mro__:
        if each in _KINDS:
            return _KINDS[each]
    raise InvalidArgumentError(
        f"{type(spec).__name__} is no registered kind of join; call kinds.register for it first"
    )


def is_rescaled(found: Mapping[str, Any]) -> bool:
    """Whether the join that ``pinned`` described can be rescaled."""
    return any(kind.is_rescaled for kind in _KINDS.values() if kind.name == found["kind"])


def local_join(spec: Spec, store: MultimapStore, context: Context) -> LocalJoin:
    """The local join of a spec over a store."""
    return kind_of(spec).opened(spec, store, context)


def pinned(spec: Spec) -> dict[str, Any]:
    """The one description of a join, as JSON, for a checkpoint, a kept state and a rescale."""
    return {"kind": kind_of(spec).name, "spec": to_json(spec)}


def from_pinned(found: Mapping[str, Any]) -> Any:
    """The spec that ``pinned`` described. CorruptionError if this release does not know it."""
    return from_json(found["spec"], classes_in(_KINDS))


for _kind in (
    Kind("inner by one key", JoinSpec, UMJoin.of, is_rescaled=True, tree=BinaryTree.create),
    Kind(
        "inner by several keys", GraphSpec, GraphJoin.of, is_rescaled=True, tree=BinaryTree.create
    ),
    Kind("inner in time", TimedSpec, _inside, is_rescaled=True, checked=_intervals),
    Kind("binary tree", BinaryTree, TreeJoin.of),
    Kind("changes by one key", ChangeSpec, ChangeJoin.of, is_rescaled=True),
    Kind(
        "changes by several keys",
        GraphChangeSpec,
        GraphChangeJoin.of,
        is_rescaled=True,
        checked=_intervals_of_changes,
    ),
    Kind("changes of joins of any type", RootedChangeSpec, RootedChangeJoin.of, is_rescaled=True),
    Kind("theta", ThetaSpec, ThetaJoin, counters=(CANDIDATES,), tree=ThetaTree.create),
    Kind("theta tree", ThetaTree, ThetaTreeJoin, counters=(CANDIDATES,)),
    Kind("theta in time", TimedThetaSpec, _inside, counters=(CANDIDATES,)),
    Kind("theta changes", ThetaChangeSpec, ThetaChangeJoin, counters=(CANDIDATES,)),
    Kind("theta final", ThetaFinalSpec, _final(SideMatches), (CANDIDATES,), judges_time=True),
    Kind("final", FinalSpec, _final(TreeMatches), is_rescaled=True, judges_time=True),
    Kind("as of", AsofSpec, _asof, judges_time=True),
    Kind("similarity", SimilaritySpec, SimilarityJoin, SIMILARITY_COUNTERS),
    Kind(
        "natural join of documents",
        NaturalSpec,
        NaturalLocalJoin,
        counters=COUNTERS,
        judges_time=True,
    ),
):
    register(_kind)
