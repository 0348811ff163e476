"""What is said about mistakes: never a traceback of ours, always the value, cause and remedy."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from lsmstate.errors import InvalidArgumentError, LsmStateWarning
from support.mistakes import SPARK, TABLES, Mistake, part, plain_names, spark_names, written

PLAIN = [each for mistakes in TABLES.values() if mistakes is not SPARK for each in mistakes]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    found = plain_names(str(tmp_path_factory.mktemp("mistakes")))
    yield found
    for name in ("store", "join", "docs", "near", "asof", "first"):
        found[name].close()


@pytest.fixture(scope="module")
def names_on_spark(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return spark_names(spark, str(tmp_path_factory.mktemp("mistakes")))


def check(mistake: Mistake, names: dict[str, Any]) -> None:
    if mistake.warns:
        with pytest.warns(LsmStateWarning) as caught:
            made = eval(mistake.code, dict(names))
        if hasattr(made, "close"):
            made.close()
        assert any(mistake.said in str(each.message) for each in caught)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InvalidArgumentError) as refused:
            eval(mistake.code, dict(names))
    assert mistake.said in str(refused.value)


@pytest.mark.parametrize("mistake", PLAIN, ids=lambda each: each.code[:60])
def test_what_is_said(mistake: Mistake, names: dict[str, Any]) -> None:
    check(mistake, names)


@pytest.mark.spark
def test_what_is_said_on_spark(names_on_spark: dict[str, Any]) -> None:
    """In one test: no query runs."""
    wrong = []
    for mistake in SPARK:
        try:
            check(mistake, names_on_spark)
        except BaseException as error:  # noqa: BLE001
            wrong.append((mistake.code, str(error)[-300:]))
    assert wrong == []


def test_the_page_has_the_table() -> None:
    """``PYTHONPATH=.:tests python -m support.mistakes`` writes it."""
    assert written() == part()
    assert len(PLAIN) + len(SPARK) >= 60
