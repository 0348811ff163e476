"""Which combinations say that a row on the right of a right or full join has a partner."""

import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import Join
from lsmstate.joins.conditions.unmatched_side import partners
from lsmstate.joins.specs.typed_condition import typed_condition


def found(text: str) -> str:
    streams = [name for name in "abcd" if f"{name}." in text]
    tree = typed_condition(dict.fromkeys(streams, ("x", "y")), text).tree
    assert isinstance(tree, Join)
    return str(partners(tree))


AB = "a {} JOIN b ON a.x = b.x"
INNER = "a JOIN b ON a.x = b.x JOIN c ON"
BOTH = "a.x = c.x AND b.y = c.y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A row without one of the two matches no row of c.
        *((f"{AB.format(kind)} RIGHT JOIN c ON {BOTH}", f"{INNER} {BOTH}")
          for kind in ("", "LEFT", "RIGHT", "FULL")),
        # All rows of a are there, with b or without.
        *((f"{AB.format(kind)} FULL JOIN c ON a.x = c.x", "a JOIN c ON a.x = c.x")
          for kind in ("LEFT", "FULL")),
        *((f"{AB.format(kind)} FULL JOIN c ON b.x = c.x", "b JOIN c ON b.x = c.x")
          for kind in ("RIGHT", "FULL")),
        # Those of a with a partner; more than one change nothing.
        *((f"{AB.format(kind)} RIGHT JOIN c ON a.x = c.x", f"{INNER} a.x = c.x")
          for kind in ("", "SEMI", "RIGHT")),
        (f"{AB.format('LEFT')} RIGHT JOIN c ON b.x = c.x", f"{INNER} b.x = c.x"),
        # A condition that needs a row of b, though no key does.
        (f"{AB.format('LEFT')} FULL JOIN c ON a.x = c.x AND NOT (b.y >= 5)",
         f"{INNER} a.x = c.x AND NOT (b.y >= 5)"),
        (f"{AB.format('LEFT')} LEFT JOIN d ON d.x = b.y FULL JOIN c ON {BOTH}",
         f"{INNER} {BOTH}"),
        (f"{AB.format('FULL')} LEFT JOIN d ON d.x = b.y RIGHT JOIN c ON c.x = d.y AND c.y = b.y",
         "b JOIN d ON b.y = d.x JOIN c ON d.y = c.x AND b.y = c.y"),
    ],
)  # fmt: skip
def test_outer_and_semi_joins_are_inner_ones_for_it_or_nothing(text: str, expected: str) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{AB.format('LEFT')} FULL JOIN c ON a.x = c.x AND b.y IS NULL", "'b' also where there"),
        (f"{AB.format('RIGHT')} FULL JOIN c ON b.x = c.x AND (a.y > 1 OR b.y > 1)", "'a' also"),
        (f"{AB.format('FULL')} RIGHT JOIN c ON COALESCE(a.x, b.x) = c.x", "'b' also where there"),
        (f"{AB.format('ANTI')} RIGHT JOIN c ON a.x = c.x", "put anti joins after"),
    ],
)
def test_what_depends_on_more_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        found(text)
