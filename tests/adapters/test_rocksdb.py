"""Stores on a disk that were damaged or manipulated."""

import contextlib
import errno
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, WriteBatch

from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.adapters.rocksdb import store as rocksdb
from evaluator.adapters.rocksdb.store import RocksStateStore
from evaluator.ports import StateUnusable
from evaluator.wire.state.task_rows import TABLES, StateDamaged, Table
from tests.repeats import in_shares

N_BATCHES = 40
ROWS_PER_BATCH = 10
Content = dict[Table, list[tuple[bytes, bytes]]]


def write_batch(store: RocksStateStore, number: int) -> None:
    """Batch *number*: rows of two tables, and the head that counts it."""
    noise = random.Random(number)
    batch = store.batch()
    for table in ("queries", "names"):
        rows = ((b"%d-%d" % (number, row), noise.randbytes(200)) for row in range(ROWS_PER_BATCH))
        batch.put(table, rows)
    batch.put("meta", [(b"head", b"%d" % number)])
    batch.write()


def content(store: RocksStateStore) -> Content:
    return {table: list(store.rows(table)) for table in TABLES}


def reopened(path: Path) -> Content:
    store = RocksStateStore(path)
    try:
        return content(store)
    finally:
        store.close()


@pytest.fixture(scope="module")
def flushed(tmp_path_factory) -> Path:
    """A closed store: all of it is in sorted files."""
    path = tmp_path_factory.mktemp("flushed") / "store"
    store = RocksStateStore(path)
    for number in range(N_BATCHES):
        write_batch(store, number)
    store.close()
    return path


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> Path:
    """A store as `kill -9` leaves it: its last batches are in the write-ahead log only."""
    path = tmp_path_factory.mktemp("logged")
    store = RocksStateStore(path / "store")
    for number in range(N_BATCHES):
        write_batch(store, number)
    shutil.copytree(path / "store", path / "left")
    store.close()
    return path / "left"


@pytest.fixture(scope="module")
def whole(flushed) -> Content:
    """The content of either store."""
    return reopened(flushed)


@pytest.fixture
def copy(tmp_path) -> Callable[[Path], Path]:
    """Makes a new copy of a store."""

    def copy(store: Path) -> Path:
        place = tmp_path / "store"
        shutil.rmtree(place, ignore_errors=True)
        return Path(shutil.copytree(store, place))

    return copy


def largest_file(store: Path, pattern: str) -> Path:
    """The largest file of this name."""
    return max(store.glob(pattern), key=lambda file: file.stat().st_size)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(data)


def overwrite(pattern: str, data: bytes) -> Callable[[Path], object]:
    return lambda store: largest_file(store, pattern).write_bytes(data)


def truncate(pattern: str, share: float) -> Callable[[Path], object]:
    def damage(store: Path) -> None:
        file = largest_file(store, pattern)
        os.truncate(file, int(share * file.stat().st_size))

    return damage


def test_intact_stores_are_read_completely(flushed, logged, copy, whole):
    assert len(whole["queries"]) == N_BATCHES * ROWS_PER_BATCH
    assert reopened(copy(flushed)) == reopened(copy(logged)) == whole


# Damage that is detected at once


@pytest.mark.parametrize(
    "damage",
    [
        truncate("*.sst", 0.5),
        truncate("*.sst", 0),
        lambda store: os.truncate(
            largest_file(store, "*.sst"), largest_file(store, "*.sst").stat().st_size - 1
        ),
        lambda store: largest_file(store, "*.sst").unlink(),
        lambda store: flip(largest_file(store, "*.sst"), -5),
        lambda store: largest_file(store, "MANIFEST-*").unlink(),
        truncate("MANIFEST-*", 0),
        overwrite("MANIFEST-*", b"MANIFEST, honestly"),
        lambda store: flip(largest_file(store, "MANIFEST-*"), 400),
        lambda store: (store / "CURRENT").unlink(),
        truncate("CURRENT", 0),
        overwrite("CURRENT", b"MANIFEST-000999\n"),
    ],
)
def test_a_damaged_store_raises_state_damaged(flushed, copy, damage):
    store = copy(flushed)
    damage(store)
    with pytest.raises(StateDamaged) as damaged:
        reopened(store)
    assert "\n" not in str(damaged.value)


@pytest.mark.parametrize(
    "damage",
    [
        overwrite("OPTIONS-*", b"\xff\x00 no options"),
        lambda store: largest_file(store, "OPTIONS-*").unlink(),
        lambda store: (store / "IDENTITY").unlink(),
        overwrite("rocksdict-config.json", b"{"),
        lambda store: (store / "rocksdict-config.json").unlink(),
        lambda store: (store / "LOG").unlink(),
    ],
)
def test_damage_of_unneeded_files_is_harmless(flushed, copy, whole, damage):
    store = copy(flushed)
    damage(store)
    assert reopened(store) == whole


def test_a_table_of_a_later_format_version_is_damage(flushed, copy):
    store = copy(flushed)
    families = {table: Options(raw_mode=True) for table in (*TABLES, "links")}
    raw = Rdict(str(store), Options(raw_mode=True), column_families=families)
    raw.create_column_family("invented-later", Options(raw_mode=True))
    raw.close()
    with pytest.raises(StateDamaged, match="invented-later"):
        reopened(store)


@pytest.mark.parametrize("table", ["queries", "judgments"])
def test_large_values_are_compressed_in_the_write_ahead_log(tmp_path, table):
    store = RocksStateStore(tmp_path / "store")
    before = store.n_bytes()
    batch = store.batch()
    batch.put(table, [(b"key", bytes(1 << 20))])
    batch.write()
    assert store.n_bytes() - before < 1 << 16
    store.close()


# Damage that is detected when it is read


@pytest.mark.parametrize("value", [b"no block of LZ4", b"\xff\xff\xff\x7f", b"\0"])
@pytest.mark.parametrize("table", ["queries", "judgments"])
def test_a_value_that_cannot_be_decompressed_is_damage(tmp_path, table, value):
    store = RocksStateStore(tmp_path / "store")
    changes = WriteBatch(raw_mode=True)
    changes.put(b"key", value, store._handles[table])
    store._open.write(changes)
    with pytest.raises(StateDamaged, match="cannot be decompressed"):
        store.get(table, [b"key"])
    with pytest.raises(StateDamaged, match="cannot be decompressed"):
        list(store.rows(table))
    store.close()


@pytest.mark.parametrize("n", in_shares(36, quick=4))
def test_a_flipped_byte_is_detected_or_harmless(flushed, copy, whole, n):
    """The rows are those that were written, by any way of reading."""
    size = largest_file(flushed, "*.sst").stat().st_size
    damaged = 0
    for part in range(n):
        store = copy(flushed)
        flip(largest_file(store, "*.sst"), part * (size - 1) // n)
        try:
            assert reopened(store) == whole
        except StateDamaged:
            damaged += 1
            continue
    assert damaged


@pytest.mark.parametrize(
    "read",
    [
        lambda store, keys: store.get("queries", keys),
        lambda store, keys: store.get("queries", keys[:1]),
        lambda store, keys: store.rows("queries", min(keys), max(keys)),
        lambda store, _: store.rows("queries"),
    ],
    ids=["get", "get few", "rows_between", "rows"],
)
def test_every_way_of_reading_detects_a_damaged_block(flushed, copy, whole, read):
    path = copy(flushed)
    for file in path.glob("*.sst"):
        if file.stat().st_size > 50_000:  # of `queries` and of `names`
            flip(file, 1000)
    keys = [key for key, _ in whole["queries"]]
    store = RocksStateStore(path)
    with pytest.raises(StateDamaged, match="checksum"):
        read(store, keys)
    store.close()
    RocksStateStore(path).close()  # nothing keeps it open


def write_until_compacted(store: RocksStateStore) -> None:
    for number in range(50):
        write_batch(store, number)
        for table in store._tables.values():
            with contextlib.suppress(Exception):  # the next batch fails too
                table.flush()


@pytest.mark.slow
def test_damage_found_by_compaction_stops_writes(flushed, copy):
    path = copy(flushed)
    flip(largest_file(path, "*.sst"), 1000)
    store = RocksStateStore(path)
    with pytest.raises(StateDamaged, match="checksum"):
        write_until_compacted(store)
    store.close()  # does not raise either
    directory = RocksStateDirectory(path.parent)
    path.rename(path.parent / "task-0")
    directory.quarantine(0)
    again = directory.open(0)
    assert content(again) == {table: [] for table in TABLES}
    again.close()


# Rows that are not read again


def queries_of(numbers: Iterable[int]) -> list[tuple[bytes, bytes]]:
    return [query_of(number) for number in numbers]


@lru_cache(maxsize=2_000)
def query_of(number: int) -> tuple[bytes, bytes]:
    return number.to_bytes(8, "big"), random.Random(number).randbytes(1000)


def put_queries(store: RocksStateStore, numbers: Iterable[int]) -> None:
    batch = store.batch()
    batch.put("queries", queries_of(numbers))
    batch.write()


@pytest.mark.slow
def test_discarded_rows_and_only_those_are_deleted_from_disk(tmp_path, monkeypatch):
    """Rows are deleted only once they are certainly in sorted files."""
    monkeypatch.setattr(rocksdb, "_SURELY_FLUSHED_BYTES", 400_000)
    monkeypatch.setattr(rocksdb, "_WRITE_BUFFER_BYTES", {"queries": 100_000})
    store = RocksStateStore(tmp_path / "store")
    sizes = []
    for first in range(0, 20_000, 100):
        put_queries(store, range(first, first + 100))
        before = max(0, first - 1_000)
        store.discard_before("queries", before.to_bytes(8, "big"))
        kept = list(store.rows("queries", before.to_bytes(8, "big")))
        assert kept == queries_of(range(before, first + 100))
        sizes.append(store.n_bytes())
    n_first = len(list(store.rows("queries")))
    assert n_first < 3_000  # of 20,000: 1,100 are needed, 800 more were written meanwhile
    store.close()
    store = RocksStateStore(tmp_path / "store")
    store._tables["queries"].compact_range(None, None)
    assert list(store.rows("queries", before.to_bytes(8, "big"))) == kept
    assert store.n_bytes() < 5_000_000
    store.close()


def test_rows_discarded_after_opening_are_deleted_at_once(tmp_path, copy):
    """Rows that only the write-ahead log had are in sorted files then."""
    killed = RocksStateStore(tmp_path / "killed")
    put_queries(killed, range(100))
    left = copy(tmp_path / "killed")
    killed.close()
    store = RocksStateStore(left)
    store.discard_before("queries", (90).to_bytes(8, "big"))
    assert list(store.rows("queries")) == queries_of(range(90, 100))
    put_queries(store, range(100, 110))
    store.discard_before("queries", (105).to_bytes(8, "big"))  # a power cut could bring 90 back
    assert list(store.rows("queries")) == queries_of(range(90, 110))
    store.close()


# The write-ahead log


@pytest.mark.parametrize("n", in_shares(36, quick=4))
def test_a_truncated_log_leaves_an_earlier_consistent_store(logged, copy, whole, n):
    size = largest_file(logged, "*.log").stat().st_size
    heads = set()
    for part in range(n + 1):
        store = copy(logged)
        os.truncate(largest_file(store, "*.log"), part * size // n)
        found = reopened(store)
        head = dict(found["meta"]).get(b"head")
        heads.add(head)
        n_written = 0 if head is None else int(head) + 1
        assert found == only_batches(whole, n_written)
    assert {None, b"%d" % (N_BATCHES - 1)} < heads


@pytest.mark.parametrize("n", in_shares(24, quick=4))
def test_a_flipped_byte_in_the_log_leaves_an_earlier_store_or_is_detected(logged, copy, whole, n):
    size = largest_file(logged, "*.log").stat().st_size
    for part in range(n):
        store = copy(logged)
        flip(largest_file(store, "*.log"), part * (size - 1) // n)
        try:
            found = reopened(store)
        except StateDamaged:
            continue
        head = dict(found["meta"]).get(b"head")
        assert found == only_batches(whole, 0 if head is None else int(head) + 1)


@pytest.fixture(scope="module")
def flushed_periodically(tmp_path_factory) -> Path:
    """As `kill -9` leaves a store of which the older part is in sorted files."""
    path = tmp_path_factory.mktemp("flushed-now-and-then")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocksdb, "_WRITE_BUFFER_BYTES", {"queries": 64 << 10})
        store = RocksStateStore(path / "store")
    for number in range(5 * N_BATCHES):
        write_batch(store, number)
    store._db.cancel_all_background(True)
    left = Path(shutil.copytree(path / "store", path / "left"))
    store.close()
    assert len(list(left.glob("*.sst"))) > 4
    return left


@pytest.mark.parametrize("n", in_shares(24, quick=4))
def test_a_truncated_manifest_leaves_an_earlier_store_or_is_detected(flushed_periodically, copy, n):
    whole = reopened(copy(flushed_periodically))
    size = largest_file(flushed_periodically, "MANIFEST-*").stat().st_size
    outcomes = set()
    for part in range(n):
        path = copy(flushed_periodically)
        os.truncate(largest_file(path, "MANIFEST-*"), part * size // n)
        try:
            found = reopened(path)
        except StateDamaged:
            outcomes.add("damaged")
            continue
        head = dict(found["meta"]).get(b"head")
        outcomes.add(head)
        assert found == only_batches(whole, 0 if head is None else int(head) + 1)
    assert "damaged" in outcomes


@pytest.mark.slow(alone=False)
def test_a_log_that_ends_too_early_before_another_is_damage(tmp_path, copy):
    """RocksDB itself would continue with the next log, and skip the rows between."""
    store = RocksStateStore(tmp_path / "made")
    for number in range(N_BATCHES):
        write_batch(store, number)
        if number == N_BATCHES // 2:
            store._tables["queries"].flush()  # begins another log
    left = Path(shutil.copytree(tmp_path / "made", tmp_path / "left"))
    store.close()
    assert len(list(left.glob("*.log"))) == 2
    assert dict(reopened(copy(left))["meta"])[b"head"] == b"%d" % (N_BATCHES - 1)
    size = min(left.glob("*.log")).stat().st_size
    for part in range(10):
        path = copy(left)
        os.truncate(min(path.glob("*.log")), part * size // 10)
        with pytest.raises(StateDamaged):
            reopened(path)


def only_batches(whole: Content, n_batches: int) -> Content:
    found: Content = {
        table: [row for row in rows if table != "meta" and int(row[0].split(b"-")[0]) < n_batches]
        for table, rows in whole.items()
    }
    if n_batches:
        found["meta"] = [(b"head", b"%d" % (n_batches - 1))]
    return found


# Unwritable directories and disks


@pytest.fixture
def read_only(tmp_path) -> Iterator[Path]:
    """A directory that cannot be written, with an empty store in it."""
    path = tmp_path / "read-only"
    path.mkdir()
    RocksStateStore(path / "task-0").close()
    if os.geteuid():
        path.chmod(0o555)
        yield path
        path.chmod(0o755)
        return
    mounted = subprocess.run(["mount", "--bind", path, path], check=False).returncode == 0
    if mounted:
        options = "remount,ro,bind"
        mounted = subprocess.run(["mount", "-o", options, path], check=False).returncode == 0
    if not mounted:
        pytest.skip("root may write everywhere, and may not mount here")
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_directory_that_cannot_be_written_is_refused(read_only):
    with pytest.raises(StateUnusable, match=r"cannot be written.*--set state_dir="):
        RocksStateDirectory(read_only).hold()


def test_a_read_only_store_is_unusable_and_not_damaged(read_only):
    if os.geteuid():
        pytest.skip("the store itself can be written; only root mounts it")
    with pytest.raises(StateUnusable, match="Read-only file system"):
        RocksStateStore(read_only / "task-0")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(StateUnusable, match="cannot be written"):
        RocksStateDirectory(tmp_path / "state").hold()


FULL_DISK = """
import sys
from pathlib import Path
from evaluator.ports import StateUnusable
from evaluator.wire.state.task_rows import StateDamaged
from tests.adapters.test_rocksdb import RocksStateStore, write_batch
store = RocksStateStore(Path(sys.argv[1]))
try:
    for number in range(100_000):
        write_batch(store, number)
except StateUnusable as error:
    print(f"{number}: {error}")
store.close()
"""


@pytest.mark.slow
def test_a_full_disk_is_unusable_and_keeps_committed_rows(tmp_path):
    """The limit simulates a disk: a write beyond it fails, in the log and in sorted files."""
    limit = 3 << 20

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path / "store"],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    number, _, words = ended.stdout.partition(": ")
    assert os.strerror(errno.EFBIG) in words
    assert "full" in words
    assert ended.stdout.count("\n") == 1
    found = reopened(tmp_path / "store")
    assert dict(found["meta"])[b"head"] == b"%d" % (int(number) - 1)
    assert len(found["queries"]) == int(number) * ROWS_PER_BATCH


def test_a_new_state_directory_is_accessible_to_its_user_only(tmp_path):
    before = os.umask(0o022)
    try:
        states = RocksStateDirectory(tmp_path / "parent" / "state")
        states.hold()
        states.release()
    finally:
        os.umask(before)
    assert (tmp_path / "parent" / "state").stat().st_mode & 0o777 == 0o700


def test_an_existing_state_directory_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o750)
    states = RocksStateDirectory(tmp_path)
    states.hold()
    states.release()
    assert tmp_path.stat().st_mode & 0o777 == 0o750


LIST_THREADS = """
import os, sys
from pathlib import Path
from evaluator.adapters.rocksdb.directory import RocksStateDirectory

states = RocksStateDirectory(Path(sys.argv[1]))
states.hold()
store = states.open(0)
for thread in Path("/proc/self/task").iterdir():
    print((thread / "comm").read_text().strip(), os.getpriority(os.PRIO_PROCESS, int(thread.name)))
"""


@pytest.mark.slow(alone=False)
def test_only_the_threads_that_flush_and_compact_have_a_low_priority(tmp_path):
    command = [sys.executable, "-c", LIST_THREADS, str(tmp_path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    low = {f"rocksdb:{pool} {min(os.nice(0) + 10, 19)}" for pool in ("low", "high")}
    threads = set(listed.splitlines())
    assert {line for line in threads if line.startswith("rocksdb")} == low
    assert {line.split()[-1] for line in threads - low} == {f"{os.nice(0)}"}


def test_the_error_without_free_file_descriptors_names_the_limit(tmp_path, monkeypatch):
    def raise_too_many_open_files(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", raise_too_many_open_files)
    with pytest.raises(StateUnusable, match=r"Too many open files\. Raise the limit of open files"):
        RocksStateDirectory(tmp_path).hold()
