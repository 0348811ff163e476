"""How the places of state are reached: credentials, endpoints, and the cache of copies.

- The Hadoop settings of the session for S3 and Azure hold for the state too, so a state in the
  checkpoint location needs no settings of its own. ``storage_options`` win over them.
- These values are secrets. They travel inside the functions that Spark sends to its workers. A
  query's plan, properties and log lines name a storage by a number that means nothing outside this
  process.
"""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lsmstate.errors import InvalidArgumentError
from lsmstate.state_location import DEFAULT_CACHE, StatePlace, check_cache_bytes, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3_SCHEMES: Final = ("s3", "s3a", "s3n")
#: Hadoop's names below ``fs.s3a.`` (or ``fs.s3a.bucket.<name>.``), and pyarrow's.
_S3_NAMES: Final = {
    "access.key": "access_key",
    "secret.key": "secret_key",
    "session.token": "session_token",
    "endpoint.region": "region",
}
_S3_OTHERS: Final = ("endpoint", "connection.ssl.enabled", "aws.credentials.provider")
_PREFIXES: Final = ("fs.s3a.bucket.", "fs.azure.account.key.")
#: Places that a process keeps ready; more are opened anew.
_MOST_PLACES: Final = 16

#: Those of the operators that this process has built, for the listener.
_kept: dict[str, "Storage"] = {}
_places: dict[tuple[int, str, str], StatePlace] = {}


@dataclass(frozen=True)
class Storage:
    """How state is reached; a value that travels with a plan."""

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For the file system itself: see ``lsmstate.remote.filesystems``."""
    hadoop: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What Hadoop is told, by its own names."""
    cache_dir: str | None = None
    cache: int | str = DEFAULT_CACHE

    @classmethod
    def of(
        cls,
        spark: "SparkSession",
        storage_options: Mapping[str, Any] | None,
        cache_dir: str | None,
        cache: int | str,
    ) -> "Storage":
        """Check the options. InvalidArgumentError names a wrong value and the remedy."""
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InvalidArgumentError(
                f"storage_options is a {type(storage_options).__name__}; give a dictionary, such "
                'as {"region": "eu-central-1"}'
            )
        check_cache_bytes(cache)
        directory = local_path(str(cache_dir)) if cache_dir is not None else None
        if cache_dir is not None and directory is None:
            raise InvalidArgumentError(
                f"cache_dir={cache_dir!r} is not a local path; give a directory on the disk of "
                "each machine that runs workers, where copies are kept"
            )
        return cls(dict(storage_options or {}), _hadoop_settings(spark), directory, cache)

    def keep(self) -> str:
        """Keep the storage in this process, and return the number under which ``kept`` finds it."""
        for key, other in list(_kept.items()):  # another thread may add one meanwhile
            if other == self:
                return key
        key = uuid.uuid4().hex
        _kept[key] = self
        return key

    def place(self, url: str) -> StatePlace:
        """The place of a state. InvalidArgumentError if there is no such file system. Places are
        cached, because a process asks for the same one again and again."""
        key = (os.getpid(), url, repr((self.options, self.hadoop, self.cache_dir, self.cache)))
        if key not in _places:
            if len(_places) >= _MOST_PLACES:
                del _places[next(iter(_places))]
            _places[key] = StatePlace(
                url,
                storage_options={**_from_hadoop(url, self.hadoop), **self.options},
                cache_dir=self.cache_dir or _spark_directory(),
                cache=self.cache,
            )
        return _places[key]


def kept(key: str) -> Storage:
    """The storage of that number; one without settings if another process kept it."""
    return _kept.get(key, Storage())


def state_url(state_dir: str) -> str:
    """The ``state_dir``, a local one as an absolute path. InvalidArgumentError for an address with
    a password, which plans and logs would show."""
    path = local_path(state_dir)
    if path is not None:
        return path
    if urlsplit(state_dir).password is not None:
        raise InvalidArgumentError(
            "state_dir has a password in its address, where plans and logs would show it; give it "
            "with storage_options"
        )
    return state_dir.rstrip("/")


def _spark_directory() -> str | None:
    """In a worker: the directory of Spark's own files (``spark.local.dir``)."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    # Spark names its block manager's directory, which goes with the executor.
    return os.path.dirname(first) if first else None


def _hadoop_settings(spark: "SparkSession") -> dict[str, str]:
    """The Hadoop settings that count here. None under Spark Connect, whose client cannot
    see them."""
    # Not above: workers import this module, and have no plans.
    from lsmstate.spark_integration.catalyst.catalyst import hadoop_of

    hadoop = hadoop_of(spark)
    if hadoop is None:
        return {}
    names = [f"fs.s3a.{name}" for name in (*_S3_NAMES, *_S3_OTHERS)]
    found = {name: value for name in names if (value := hadoop.get(name))}
    for prefix in _PREFIXES:
        more = hadoop.getPropsWithPrefix(prefix).entrySet().toArray()
        found |= {f"{prefix}{entry.getKey()}": str(entry.getValue()) for entry in more}
    return found


def _from_hadoop(url: str, hadoop: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme in _S3_SCHEMES:
        return _s3_options(parts.hostname or "", hadoop)
    if parts.scheme in ("abfs", "abfss") and parts.hostname is not None:
        key = hadoop.get(f"fs.azure.account.key.{parts.hostname}")
        return {"account_key": key} if key else {}
    return {}


def _s3_options(bucket: str, hadoop: Mapping[str, str]) -> dict[str, Any]:
    def setting(name: str) -> str:
        own = hadoop.get(f"fs.s3a.bucket.{bucket}.{name}")
        return own or hadoop.get(f"fs.s3a.{name}", "")

    options: dict[str, Any] = {ours: setting(name) for name, ours in _S3_NAMES.items()}
    scheme, _, host = setting("endpoint").rpartition("://")
    options["endpoint_override"] = host.rstrip("/")
    if host and (scheme or setting("connection.ssl.enabled") == "false"):
        options["scheme"] = scheme or "http"
    if "AnonymousAWSCredentialsProvider" in setting("aws.credentials.provider"):
        options["anonymous"] = True
    return {name: value for name, value in options.items() if value}
