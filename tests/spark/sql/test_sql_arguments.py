"""What is no query is refused in one sentence, before Spark shows a Java stack trace."""

import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import Skew, streaming_sql, to_multiway


class Session:
    """A session that must not be asked."""

    def sql(self, text):
        raise AssertionError(text)


@pytest.mark.parametrize("sql", [None, 5, "", "  ", b"SELECT 1", ["SELECT 1"]])
def test_a_query_is_text(sql):
    with pytest.raises(InvalidArgumentError) as caught:
        streaming_sql(Session(), sql)
    assert str(caught.value).startswith(f"sql={sql!r}: give the text of a query")


def test_a_session_and_a_frame_are_needed():
    with pytest.raises(InvalidArgumentError, match="spark=None is a NoneType; give the SparkSes"):
        streaming_sql(None, "SELECT 1")
    for given in (None, "SELECT 1", Session()):
        with pytest.raises(InvalidArgumentError, match="give a streaming DataFrame"):
            to_multiway(given)
    with pytest.raises(
        InvalidArgumentError, match=r"rows=\[1\] is a list; give a dictionary of numbers"
    ):
        streaming_sql(Session(), "SELECT 1", skew=Skew(rows=[1]))
