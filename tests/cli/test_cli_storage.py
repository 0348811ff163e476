"""What the command line says of a file system: typed, each once, and no value in an error."""

import pytest

from lsmstate.cli.storage import storage_options
from lsmstate.errors import InvalidArgumentError
from lsmstate.remote.filesystems import resolve


def test_values_are_typed_unless_they_are_quoted() -> None:
    said = ["anonymous=true", "tls=False", "port=9000", "offset=-1", 'account="123"', 'flag="true"']
    assert storage_options([*said, "key=a=b", "prefix=007", "empty=", 'quote="']) == {
        "anonymous": True,
        "tls": False,
        "port": 9000,
        "offset": -1,
        "account": "123",
        "flag": "true",
        "key": "a=b",
        "prefix": "007",
        "empty": "",
        "quote": '"',
    }
    assert storage_options(None) == {}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["region=x", "s3cret"], "number 2 has no '='"),
        (["=s3cret"], "number 1 has no name"),
        ([" =s3cret"], "number 1 has no name"),
        (["key=s3cret", "key=other"], "key is given twice"),
    ],
)
def test_what_is_said_wrong_is_refused_without_the_value(said: list[str], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        storage_options(said)
    assert "s3cret" not in str(refused.value)


def test_a_key_of_digits_that_is_not_quoted_is_named() -> None:
    said = ["region=eu-central-1", "access_key=key", "secret_key=12345678"]
    with pytest.raises(InvalidArgumentError, match=r"not text: secret_key\. .* quotes") as refused:
        resolve("s3://bucket/path", storage_options(said))
    assert "'secret_key=\"...\"'" in str(refused.value)
    assert "12345678" not in str(refused.value)
    said[-1] = 'secret_key="12345678"'
    assert resolve("s3://bucket/path", storage_options(said))[1] == "bucket/path"
