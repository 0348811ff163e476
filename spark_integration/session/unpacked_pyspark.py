"""PySpark from its folder in place of its archive, which holds no byte code."""

import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def unpacked_folder(places: Iterable[str]) -> Path | None:
    """Find the folder with the modules of the first archive of PySpark.

    Args:
        places: Where Python looks for modules. Spark names ``pyspark.zip`` first.

    Returns:
        The folder of the same Spark: that of pip, or ``python/pyspark`` of a distribution. None if
        there is none, or no archive.
    """
    archive = next((Path(place) for place in places if Path(place).name == "pyspark.zip"), None)
    if archive is None:
        return None
    home = archive.parents[2]
    folders = (home / "python" / "pyspark", home)
    return next((folder for folder in folders if (folder / "worker.py").exists()), None)


def import_unpacked() -> None:
    """Import PySpark from its folder, if it has one. Other modules are looked for as before."""
    folder = unpacked_folder(sys.path)
    if folder is None or "pyspark" in sys.modules:
        return
    spec = spec_from_file_location("pyspark", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["pyspark"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["pyspark"])
