"""Which machines of a cloud agree on all that their descriptions share: real JSON documents.

python examples/document_join.py [INSTANCE_TYPES.json.gz]

The descriptions of EC2 instance types are nested, and have many shapes: some have GPUs, some local
disks, some neither. Default: those in the package moto (``pip install moto``).
"""

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import pyarrow as pa

from lsmstate.join import NaturalJoin

#: What a user compares. Names, sizes of networks and prices differ in every description.
COMPARED = ["ProcessorInfo", "MemoryInfo", "GpuInfo", "InstanceStorageInfo", "VCpuInfo"]


def packaged() -> Path:
    """The descriptions in the package moto."""
    spec = importlib.util.find_spec("moto")
    if spec is None or spec.origin is None:
        sys.exit("give a file of instance types, or: pip install moto")
    return Path(spec.origin).parent / "ec2" / "resources" / "instance_types.json.gz"


def main(path: Path) -> pa.Table:
    """Return the pairs of names of machines that agree."""
    with gzip.open(path, "rt") as file:
        machines = json.load(file)
    rows = [{"name": name, "machine": machine} for name, machine in machines.items()]
    schema = pa.schema([("name", pa.string()), ("machine", pa.string())])
    with NaturalJoin(
        schema, "machine", id="name", output="ids", include=COMPARED, at_least=5
    ) as join:
        found = [
            join.process("documents", rows[first : first + 100]).to_table()
            for first in range(0, len(rows), 100)
        ]
    return pa.concat_tables(found)


if __name__ == "__main__":
    pairs = main(Path(sys.argv[1]) if len(sys.argv) > 1 else packaged())
    for pair in pairs.slice(0, 10).to_pylist():
        print(f"{pair['first_name']} and {pair['second_name']}")
    print(pairs.num_rows, "pairs")
