"""Settings of the main job."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """What ``lsmstate demo`` may be told; ranges are checked by the parts that use them."""

    data_directory: Path
    """Where generated data is kept between runs."""

    run_directory: Path
    """Output, state, plot and summary of the last run; emptied by the next."""

    scale: float = 1.0
    """TPC-DS scale factor: 1 gives 603,588 rows of input."""

    memory: str = "16m"
    """The cap of one worker, as in ``multiway_join``."""

    batches: int = 10
    """Micro-batches the input is cut into."""

    backend: str = "lsm"
    """``lsm``, ``rocksdb`` or ``memory``."""

    cores: int | None = None
    """Cores Spark uses. Default: those this process may use."""

    kafka: bool = False
    """Send the streams through a Kafka broker, started for this run, instead of reading files."""
