"""A scripted workload of a standalone store, and what a store holds after each of its steps."""

import dataclasses

from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import Mutation
from support.model import ModelStore
from support.sample_streams import STREAMS, customers, ids, keys_of, scanned

OPTIONS = Options(
    memory_bytes=5 * MIB,
    memtable_bytes=256 * KIB,
    block_bytes=4 * KIB,
    fanout=2,
    max_runs=3,
    file_bytes=64 * KIB,
)
ROWS_EACH = 120
BATCHES = [
    (
        customers(*range(n, n + ROWS_EACH), name="w" * 900),
        keys_of(*[i % 50 for i in range(n, n + ROWS_EACH)]),
    )
    for n in range(0, 6 * ROWS_EACH, ROWS_EACH)
]
#: What is done, in order: an append of batch n, a delete of keys, a flush, a commit; a write is
#: an append, a delete and an append as one.
SCRIPT = [
    ("append", 0),
    ("append", 1),
    ("append", 2),
    ("commit", 0),
    ("delete", 7),
    ("put", 0),
    ("delete range", 20),
    ("retract", 2),
    ("append", 3),
    ("flush", 0),
    ("append", 4),
    ("delete", 3),
    ("append", 5),
    ("write", 1),
    ("commit", 0),
    ("write", 4),
    ("delete", 11),
]


def do(store, step):
    what, number = step
    if what == "append":
        store.append("customers", *BATCHES[number])
    elif what == "retract":
        store.retract("customers", *BATCHES[number])
    elif what == "put":
        store.put("customers", *BATCHES[number])
    elif what == "delete range":
        store.delete_range("customers", low=(number,), high=(number + 15,))
    elif what == "delete":
        store.delete("customers", keys_of(*range(0, 50, number)))
    elif what == "write":
        rows, keys = BATCHES[number]
        other, other_keys = BATCHES[number + 1]
        deleted = keys_of(*range(0, 50, 5))
        store.write(
            [
                Mutation("append", "customers", keys, rows),
                Mutation("delete", "customers", deleted),
                Mutation("append", "customers", other_keys, other),
            ]
        )
    elif what == "flush":
        store.flush()
    else:
        store.commit()


def single_steps(steps):
    """The same, with the parts of a write one by one."""
    for what, number in steps:
        if what == "write":
            yield from (("append", number), ("delete", 5), ("append", number + 1))
        else:
            yield what, number


def model_after(steps):
    """The ids in a store after these steps."""
    model = ModelStore(["customers"])
    for what, number in single_steps(steps):
        if what in ("append", "put", "retract"):
            rows, keys = BATCHES[number]
            keys = [tuple(key.values()) for key in keys.to_pylist()]
            rows = [{"id": i} for i in rows.column("id").to_pylist()]
            getattr(model, what)("customers", rows, keys)
        elif what == "delete range":
            model.delete_range("customers", (number,), (number + 15,))
        elif what == "delete":
            keys = [tuple(key.values()) for key in keys_of(*range(0, 50, number)).to_pylist()]
            model.delete("customers", keys)
    return sorted(row["id"] for row in model.scan("customers"))


STATES = [model_after(SCRIPT[:done]) for done in range(len(SCRIPT) + 1)]


def opened(directory, sync="never", background=False):
    options = dataclasses.replace(OPTIONS, sync=sync, background=background)
    return LsmStore.open(str(directory), STREAMS, options=options)


def found(store):
    return sorted(ids(scanned(store, "customers")))
