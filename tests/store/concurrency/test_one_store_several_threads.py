"""Several threads use one store: a call waits until another thread's call has ended."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError, StoreClosedError
from lsmstate.expiry_rules import Expiry
from lsmstate.join import MultiwayJoin, State
from lsmstate.mapping import StoreMapping
from lsmstate.opening import BACKENDS, open_attempt, open_store
from lsmstate.store import Mutation, StreamSchema
from lsmstate.store_base.null_safe import NullSafeStore, null_safe_streams
from support.sampling import each_value

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64()), ("at", pa.timestamp("us"))])
PLAIN = StreamSchema("s", KEY, ROWS)
EXPIRING = StreamSchema("s", KEY, ROWS, expiry=Expiry("at", timedelta(days=1)))
NOW = datetime(2026, 1, 1)
THREADS = 4
EACH = 40

backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def threads_change_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(*works):
    """Run the functions at once; return their results, or raise the first error."""
    start = threading.Barrier(len(works))

    def begin(work):
        start.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))


def rows_of(*values):
    return pa.RecordBatch.from_pylist([{"v": v, "at": NOW} for v in values], schema=ROWS)


def keys_of(*keys):
    return pa.RecordBatch.from_pylist([{"k": k} for k in keys], schema=KEY)


def values_of(store, key=1):
    return sorted(store.get("s", key).column(0).to_pylist())


def opened(kind, backend, path):
    if kind == "attempt":
        return open_attempt(str(path), [PLAIN], backend=backend, batch_id=0, attempt_id="a")
    if kind == "null safe":
        below = open_store(path, null_safe_streams([PLAIN]), backend=backend)
        return NullSafeStore([PLAIN], below)
    return open_store(path, [EXPIRING if kind == "expiring" else PLAIN], backend=backend)


of_each_kind = each_value(kind=["standalone", "attempt", "expiring", "null safe"], backend=BACKENDS)


@of_each_kind
def test_appends_of_several_threads_to_one_key_are_all_kept(tmp_path, backend, kind):
    with opened(kind, backend, tmp_path) as store:

        def work(number):
            for i in range(EACH):
                assert store.append("s", rows_of(number * EACH + i), keys_of(1)) == 1

        in_threads(*[lambda n=n: work(n) for n in range(THREADS)])
        assert values_of(store) == list(range(THREADS * EACH))
        store.commit()


@each_value(backend=BACKENDS, kind=["standalone", "expiring"])
def test_what_several_threads_wrote_is_found_again(tmp_path, backend, kind):
    """Two writes of one sequence number would be one after the log is replayed."""
    with opened(kind, backend, tmp_path) as store:

        def work(number):
            for i in range(EACH):
                store.append("s", rows_of(number * EACH + i), keys_of(1))
                if i % 10 == number:
                    store.commit()

        in_threads(*[lambda n=n: work(n) for n in range(THREADS)])
        store.commit()
    with opened(kind, backend, tmp_path) as store:
        assert values_of(store) == list(range(THREADS * EACH))


@of_each_kind
def test_every_kind_of_write_beside_every_other(tmp_path, backend, kind):
    """Each thread has a key of its own in streams of which others write other keys."""
    with opened(kind, backend, tmp_path) as store:
        for key in range(THREADS):
            store.append("s", rows_of(-1), keys_of(key))

        def work(key):
            one = keys_of(key)
            for i in range(EACH):
                store.append("s", rows_of(i, i), keys_of(key, key))
                store.retract("s", rows_of(i), one)
                assert values_of(store, key) == [-1, i]
                store.put("s", rows_of(-2), one)
                store.write(
                    [Mutation("delete", "s", one), Mutation("append", "s", one, rows_of(5))]
                )
                assert values_of(store, key) == [5]
                store.delete_range("s", low=(key,), high=(key + 1,))
                store.write_all([[Mutation("append", "s", one, rows_of(v))] for v in (7, 8)])
                assert values_of(store, key) == [7, 8]
                store.delete("s", one)
                assert not store.contains("s", key)
                store.append("s", rows_of(-1), one)

        in_threads(*[lambda n=n: work(n) for n in range(THREADS)])
        found = sorted(v for piece in store.scan("s") for v in piece.column(0).to_pylist())
        assert found == [-1] * THREADS


@each_value(backend=BACKENDS, kind=["standalone", "expiring"])
def test_reads_beside_writes_are_whole_or_refused(tmp_path, backend, kind):
    """Each write replaces two rows of a key by two of another value."""
    with opened(kind, backend, tmp_path) as store:
        store.put("s", rows_of(0, 0), keys_of(1, 1))
        ended = threading.Event()
        refusals = []

        def write():
            try:
                for i in range(1, 3 * EACH):
                    store.put("s", rows_of(i, i), keys_of(1, 1))
            finally:
                ended.set()

        def read():
            while not ended.is_set():
                first, second = values_of(store)
                assert first == second
                with store.snapshot() as snapshot:
                    first, second = values_of(snapshot)
                    assert first == second
                try:
                    found = [v for e in store.iterate("s") for v in e.rows.column(0).to_pylist()]
                    assert len(set(found)) == 1
                    found = [v for e in store.scan("s") for v in e.column(0).to_pylist()]
                    assert len(set(found)) == 1
                except InvalidArgumentError as error:
                    refusals.append(str(error))
                store.stats()

        in_threads(write, read, read)
        assert all("since this probe or iterator began" in refusal for refusal in refusals)


@of_each_kind
def test_a_close_waits_for_the_write_of_another_thread(tmp_path, backend, kind):
    store = opened(kind, backend, tmp_path)
    stored = []
    begun = threading.Event()

    def write():
        try:
            for i in range(100_000):
                store.append("s", rows_of(i), keys_of(1))
                stored.append(i)
                begun.set()
        except StoreClosedError:
            return

    def close():
        begun.wait()
        store.close()

    in_threads(write, close, close)
    if kind in ("standalone", "expiring") and backend != "memory":  # which keeps commits only
        with opened(kind, backend, tmp_path) as store:
            assert values_of(store) == stored


def test_checkpoints_beside_appends(tmp_path):
    with open_store(tmp_path, [PLAIN]) as store:

        def work(number):
            for i in range(EACH):
                store.append("s", rows_of(number * EACH + i), keys_of(1))

        def mark():
            for i in range(8):
                store.checkpoint(f"c{i}")
                store.flush()
                if i % 2:
                    store.checkpoints.delete(f"c{i}")
                store.compact()

        in_threads(lambda: work(0), lambda: work(1), mark)
        assert values_of(store) == list(range(2 * EACH))
        assert [each.name for each in store.checkpoints] == ["c0", "c2", "c4", "c6"]


@backends
def test_a_key_is_taken_from_a_mapping_once(tmp_path, backend):
    with open_store(tmp_path, [PLAIN], backend=backend) as store:
        orders = StoreMapping(store, "s", unique=True)
        for key in range(EACH):
            orders[key] = {"v": key}

        def take():
            taken = []
            other = StoreMapping(store, "s", unique=True)
            for key in range(EACH):
                row = other.pop(key, None)
                if row is not None:
                    taken.append(row["v"])
            return taken

        taken = [v for each in in_threads(take, take, take) for v in each]
        assert sorted(taken) == list(range(EACH))

        def put():
            return [
                orders.setdefault(key, {"v": threading.get_ident()})["v"] for key in range(EACH)
            ]

        first, second = in_threads(put, put)
        assert first == second


@each_value(backend=BACKENDS, algorithm=["umjoin", "tree"])
def test_batches_of_several_threads_are_joined_or_refused(backend, algorithm):
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    streams = {"a": schema, "b": schema}
    lock = threading.Lock()
    found, sent, refusals = [], {"a": [], "b": []}, []

    with MultiwayJoin(
        streams, on="a.k = b.k", algorithm=algorithm, state=State(backend=backend)
    ) as join:

        def work(stream, number):
            for i in range(EACH):
                value = number * EACH + i
                batch = pa.record_batch([[1], [value]], schema=schema)
                while True:
                    try:
                        pieces = [p.to_pylist() for p in join.process(stream, batch)]
                    except InvalidArgumentError as error:
                        refusals.append(str(error))
                        continue
                    break
                with lock:
                    sent[stream].append(value)
                    found.extend((row["a_v"], row["b_v"]) for piece in pieces for row in piece)

        in_threads(lambda: work("a", 0), lambda: work("b", 1))
        assert all("were not" in refusal for refusal in refusals)
        assert sorted(found) == sorted((a, b) for a in sent["a"] for b in sent["b"])
        join.commit()


@pytest.mark.parametrize("backend", ["memory"])
def test_memory_stores_of_several_threads_are_counted_while_others_open(tmp_path, backend):
    def work(number):
        for turn in range(40):
            path = tmp_path / f"{number}-{turn}"
            with open_store(path, [PLAIN], backend=backend) as store:
                store.append("s", rows_of(1), keys_of(1))

    in_threads(*[lambda n=n: work(n) for n in range(THREADS)])
