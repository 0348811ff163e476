"""A state whose streams have an expiry, read by somebody who has nothing but the state."""

import random
from datetime import date, datetime, timedelta

import pyarrow as pa
import pytest

from lsmstate.expiry.readers import expiring_reads
from lsmstate.expiry_rules import Expiry
from lsmstate.opening import open_attempt, open_commit
from lsmstate.options import Options
from lsmstate.store import StreamSchema
from support.oracle import counted

KEY = pa.schema([("k", pa.int64())])
START = datetime(2026, 1, 1)


def moments(step):
    return [START + step * n for n in range(100)]


@pytest.mark.parametrize(
    ("kind", "times", "after"),
    [
        (pa.timestamp("us"), moments(timedelta(minutes=1)), timedelta(minutes=20)),
        (pa.timestamp("ns"), moments(timedelta(microseconds=1)), timedelta(microseconds=20)),
        (pa.timestamp("ms"), moments(timedelta(milliseconds=1)), timedelta(milliseconds=20)),
        (pa.timestamp("s"), moments(timedelta(seconds=1)), timedelta(seconds=20)),
        (pa.date32(), [date(2026, 1, 1) + timedelta(days=n) for n in range(100)], timedelta(20)),
        (pa.date64(), [date(2026, 1, 1) + timedelta(days=n) for n in range(100)], timedelta(20)),
        (pa.int32(), list(range(100)), 20),
    ],
)
def test_reads_see_what_the_owner_sees(tmp_path, kind, times, after):
    rows = pa.schema([("at", kind), ("n", pa.int64())])
    streams = [
        StreamSchema("plain@0", KEY, rows),
        StreamSchema("forgets", KEY, rows, Expiry("at", after)),
        StreamSchema("never written", KEY, rows, Expiry("at", after)),
    ]
    directory = str(tmp_path)
    options = Options()
    opened = {"backend": "lsm", "options": options, "attempt_id": "a", "batch_id": 0}
    rng = random.Random(5)
    with open_attempt(directory, streams, pointer=None, **opened) as store:
        batch = pa.RecordBatch.from_pylist(
            [{"at": rng.choice([*times, None]), "n": n} for n in range(300)], schema=rows
        )
        keys = pa.RecordBatch.from_pylist([{"k": n % 7} for n in range(300)], schema=KEY)
        for name in ("plain@0", "forgets"):
            store.append(name, batch, keys)
        store.advance("forgets", times[70])
        expected = {name: counted(store.scan(name)) for name in store.streams}
        pointer = store.commit()
    with open_commit(directory, pointer, options=options) as below:
        reads = expiring_reads(below)
        assert [(s.name, s.expiry is None) for s in reads.streams.values()] == [
            (s.name, s.expiry is None) for s in streams
        ]
        assert {name: counted(reads.scan(name)) for name in reads.streams} == expected
        found = [entries.rows for entries in reads.iterate("forgets")]
        assert counted(found) == expected["forgets"]
    assert 0 < expected["forgets"].total() < expected["plain@0"].total() == 300
    assert not expected["never written"]
