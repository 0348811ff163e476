"""Which combinations of streams say that a row on the right of a right or full join has a partner.

Whether there is one is all that counts, so outer and semi joins on its left side are inner ones for
it, or nothing: ``a LEFT JOIN b ON a.k = b.k RIGHT JOIN c ON c.x = a.x AND c.y = b.y`` is asked for
the combinations of ``a JOIN b``, since a row without b has no ``b.y``.
"""

from dataclasses import replace

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import Join, Tree


def partners(join: Join) -> Join:
    """The right or full ``join`` as inner joins alone, of no more streams than are needed: they
    have results of those rows of its right side that match one of the left.
    InvalidArgumentError if that takes others."""
    try:
        return _inner_join(join, set(), set())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"joins: {join}: whether a row of {join.right!r} has no partner depends on {error}, or "
            "use one common key and emit='changes'"
        ) from None


def _inner(tree: Tree, needed: set[str], certain: set[str]) -> Tree:
    """Inner joins that have a result where ``tree`` has one with the same rows, or nulls, of
    ``needed``: of those ``certain`` only such with a row are asked for."""
    if isinstance(tree, str):
        return tree
    if len(needed) == 1 and needed <= _whole(tree):
        return next(iter(needed))
    assert isinstance(tree.right, str)
    has_right, has_left = tree.right in certain, bool(certain - {tree.right})
    if tree.kind == "anti":
        raise InvalidArgumentError(
            f"which rows {tree} leaves out; put anti joins after the right and full ones"
        )
    if tree.kind in ("left", "full") and not has_right:
        if tree.right not in needed and (has_left or tree.kind == "left"):
            return _inner(tree.left, needed, certain)
        raise _uncertain(needed - certain)
    if tree.kind in ("right", "full") and not has_left:
        raise _uncertain(needed - certain)
    return _inner_join(tree, needed, certain)


def _inner_join(join: Join, needed: set[str], certain: set[str]) -> Join:
    """The join, and what is left of it, as inner ones."""
    keys = {column.stream for on in join.on for column in on.left}
    compared = {on.left[0].stream for on in join.on if len(on.left) == 1}
    compared |= {c.stream for bound in join.bounds for c in (bound.later, bound.earlier)}
    named = keys | compared
    for condition in join.conditions:
        named |= condition.streams
        compared |= condition.needed
    left = _inner(join.left, (needed | named) - {join.right}, (certain | compared) - {join.right})
    return replace(join, kind="inner", left=left)


def _uncertain(streams: set[str]) -> InvalidArgumentError:
    names = ", ".join(map(repr, sorted(streams)))
    return InvalidArgumentError(
        f"{names} also where there is no row of it; compare a column of it with one of another "
        "stream, outside of IS NULL, OR and COALESCE"
    )


def _whole(tree: Tree) -> set[str]:
    """The streams all of whose rows are in the result."""
    if isinstance(tree, str):
        return {tree}
    right = _whole(tree.right) if tree.kind in ("right", "full") else set()
    left = _whole(tree.left) if tree.kind in ("left", "full") else set()
    return left | right
