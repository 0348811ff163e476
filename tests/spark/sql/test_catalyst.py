"""Whose plans can be read: releases of Spark that are known, and that pass the self-test."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import Catalyst


def session(version: str, jvm: Any = None) -> Any:
    return SimpleNamespace(version=version, _jsparkSession=object(), _jvm=jvm)


@pytest.mark.parametrize("version", ["3.5.9", "4.4.0", "5.0.0-SNAPSHOT"])
def test_an_unknown_release_is_refused(version: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"4\.0, 4\.1, 4\.2, 4\.3 only") as refusal:
        Catalyst(session(version))
    assert version in str(refusal.value)
    assert "multiway_join" in str(refusal.value)


class WithoutInlineCte:
    """A JVM whose Spark has lost a class: py4j takes it for a package, which cannot be called, and
    PySpark makes many of the JVM's errors its own."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.endswith(".InlineCTE"):
            raise self._error("InlineCTE does not exist in the JVM")
        return self


@pytest.mark.parametrize("error", [Py4JError, PySparkException])
def test_a_release_that_lacks_something_is_refused_by_name(error: type[Exception]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Spark 4\.3\.7 cannot build .*InlineCTE"):
        Catalyst(session("4.3.7", WithoutInlineCte(error)))


def test_a_session_of_spark_connect_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="Connect"):
        Catalyst(SimpleNamespace(version="4.3.0"))  # type: ignore[arg-type]
