"""Settings of the demo."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """Settings of ``run_demo``. The parts that use them check their ranges."""

    data_directory: Path
    """Directory in which generated data is kept between runs."""

    run_directory: Path
    """Directory of the output, state, plot and summary of the last run. The next run empties it."""

    scale: float = 1.0
    """TPC-DS scale factor: 1 gives 603,588 rows of input."""

    memory: str = "16m"
    """Memory cap of the state of one worker, as in ``multiway_join``."""

    batches: int = 10
    """Number of micro-batches of the input."""

    backend: str = "lsm"
    """``lsm``, ``rocksdb`` or ``memory``."""

    cores: int | None = None
    """Cores that Spark uses. Default: those that this process may use."""

    kafka: bool = False
    """Whether the streams go through a Kafka broker, which is started for this run."""
