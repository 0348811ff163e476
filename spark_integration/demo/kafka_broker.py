"""A Kafka broker for one run: one node (KRaft) on loopback, with its data in a given directory.

Spark's own client fetches Kafka from Maven Central: ``spark-submit --packages`` resolves it, caches
it and runs its main class. A mirror that Spark is set up with serves Kafka too.
"""

import os
import shutil
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lsmstate.errors import LsmStateError
from lsmstate.spark_integration.demo.ports import HOST, free_ports

PACKAGE: Final = "org.apache.kafka:kafka_2.13:4.1.0"
LOG_NAME: Final = "kafka.log"
_START_SECONDS: Final = 300
_STOP_SECONDS: Final = 30
_MOST_TRIES: Final = 3

_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
initial.broker.registration.timeout.ms={patience}
"""


class KafkaError(LsmStateError):
    """The broker did not start, or it ended. The message names its log."""


class PackageUnavailableError(LsmStateError):
    """Maven Central, or the mirror that Spark is set up with, did not deliver a package."""


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """Run a broker whose files lie in ``directory``, for as long as the block.

    Returns:
        The address of the broker (host:port).

    Raises:
        PackageUnavailableError: Kafka could not be fetched.
        KafkaError: The broker did not run. Both come after a few attempts, since a port may be
            taken meanwhile and a download may break off.

    Cost:
        Two starts of a JVM, and at the first time a download of about 50 MB.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                address = stack.enter_context(_broker(directory))
                break
            except (KafkaError, PackageUnavailableError):
                if not tries_left:
                    raise
        yield address


@contextmanager
def _broker(directory: Path) -> Iterator[str]:
    """One attempt."""
    port, controller = free_ports(2)
    data = directory / "data"
    shutil.rmtree(data, ignore_errors=True)  # an earlier try's, which knows another port
    settings = directory / "server.properties"
    settings.write_text(
        _SETTINGS.format(
            host=HOST, port=port, controller=controller, data=data, patience=_START_SECONDS * 1000
        )
    )
    log = directory / LOG_NAME
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    arguments = ("format", "--cluster-id", cluster, "--config", str(settings))
    with _started("kafka.tools.StorageTool", arguments, log) as formatting:
        if formatting.wait():
            raise _failure(log)
    with _started("kafka.Kafka", (str(settings),), log) as broker:
        _wait_for(port, broker, log)
        yield f"{HOST}:{port}"


@contextmanager
def _started(
    main: str, arguments: tuple[str, ...], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A program of the Kafka package, which ends with the block."""
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local[1]", "--driver-memory", "512m"),
        *("--packages", PACKAGE, "--class", main, "spark-internal", *arguments),
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST}
    with log.open("ab") as output:
        # A session of its own: Ctrl-C is for us, and we end it.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, broker: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if broker.poll() is not None:
            raise _failure(log)
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise KafkaError(f"the broker did not listen within {_START_SECONDS} s; see {log}")


def _failure(log: Path) -> LsmStateError:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    reasons = [line for line in lines if "Exception:" in line or "Error:" in line]
    reason = (reasons or lines or ["it said nothing"])[-1]
    if "unresolved dependency" in reason or "download failed" in reason:
        return PackageUnavailableError(
            f"{PACKAGE} could not be fetched: Maven Central, or what Spark is set up to use in its "
            f"place, cannot be reached or lacks it (see {log}): {reason}"
        )
    return KafkaError(f"the broker ended by itself: {reason} (see {log})")
