"""State in RocksDB: a directory for each task, in a directory of the process."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from evaluator.ports import StateInUse, StateUnusable
from evaluator.wire.state import TABLES, Row, StateDamaged, Table

_WRITE_BUFFER_BYTES: Final[dict[Table, int]] = {"queries": 64 << 20, "names": 16 << 20}
_SMALL_BUFFER_BYTES: Final = 4 << 20
_CACHE_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 8 << 10
_BLOOM_BITS: Final = 10
_LOCK_NAME: Final = "in-use"

P = ParamSpec("P")
T = TypeVar("T")


class RocksBatch:
    """Changes in order, gathered by RocksDB itself."""

    def __init__(self, database: Rdict, handles: dict[Table, Any]) -> None:
        self._database = database
        self._handles = handles
        self._changes = WriteBatch(raw_mode=True)

    def put(self, table: Table, rows: Iterable[Row]) -> None:
        handle = self._handles[table]
        put, delete = self._changes.put, self._changes.delete
        for key, value in rows:
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def delete_range(self, table: Table, first: bytes, end: bytes) -> None:
        self._changes.delete_range(first, end, self._handles[table])

    def write(self) -> None:
        _checked(self._database.write, self._changes)


class RocksStateStore:
    """One RocksDB, a column family for each table.

    The write-ahead log is on and is not synchronised: after a power cut the store is an earlier
    one, and whole.
    """

    def __init__(self, path: Path) -> None:
        cache = Cache(_CACHE_BYTES)
        families: dict[str, Options] = {table: _options(table, cache) for table in TABLES}
        self._path = path
        self._db: Rdict | None = _checked(
            lambda: Rdict(str(path), _database_options(cache), column_families=families)
        )
        self._tables = {table: self._open.get_column_family(table) for table in TABLES}
        self._handles = {table: self._open.get_column_family_handle(table) for table in TABLES}

    @property
    def _open(self) -> Rdict:
        if self._db is None:
            raise StateUnusable(f"{self._path} was closed")
        return self._db

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast("list[bytes | None]", _checked(self._tables[table].get, list(keys)))

    def rows_under(
        self, table: Table, prefixes: Sequence[bytes]
    ) -> list[list[tuple[bytes, bytes]]]:
        return _checked(self._rows_under, table, prefixes)

    def _rows_under(
        self, table: Table, prefixes: Sequence[bytes]
    ) -> list[list[tuple[bytes, bytes]]]:
        rows = self._tables[table].iter()
        found: list[list[tuple[bytes, bytes]]] = []
        key: Any = None
        for prefix in prefixes:
            if key is None or key < prefix:
                rows.seek(prefix)
                key = rows.key()
            under = []
            while key is not None and key.startswith(prefix):
                under.append((key, rows.value()))
                rows.next()
                key = rows.key()
            found.append(under)
        rows.status()
        return found

    def rows(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        rows = _checked(lambda: list(self._tables[table].items()))
        return cast("Iterator[tuple[bytes, bytes]]", iter(rows))

    def batch(self) -> RocksBatch:
        return RocksBatch(self._open, self._handles)

    def n_bytes(self) -> int:
        try:
            return sum(entry.stat().st_size for entry in os.scandir(self._path))
        except FileNotFoundError:  # a file went while they were counted
            return self.n_bytes()

    def close(self) -> None:
        if self._db is not None:
            self._tables, self._handles = {}, {}
            db, self._db = self._db, None
            db.close()


class RocksStateDirectory:
    """`task-0`, `task-1` ... in one directory, held by a lock that ends with its process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None

    def hold(self) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StateUnusable(
                f"state_dir {self._path} cannot be written: {error.strerror}. Give a directory "
                "that this user may write, e.g. --set state_dir=/var/lib/evaluator."
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(lock, 100).decode(errors="replace").strip() or "another process"
            os.close(lock)
            raise StateInUse(
                f"state_dir {self._path} is in use by {owner}. Every worker needs a directory of "
                "its own: end the other one, or give --set state_dir=OTHER."
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        self._lock = lock

    def open(self, task: int) -> RocksStateStore:
        return RocksStateStore(self._of(task))

    def set_aside(self, task: int) -> str:
        place = self._path / f"task-{task}-aside"
        try:
            shutil.rmtree(place, ignore_errors=True)
            self._of(task).rename(place)
        except OSError as error:
            raise StateUnusable(f"{self._of(task)} cannot be set aside: {error.strerror}") from None
        return str(place)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _of(self, task: int) -> Path:
        return self._path / f"task-{task}"


def _database_options(cache: Cache) -> Options:
    options = _options("meta", cache)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(256 << 20)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(1 << 20)
    options.set_max_open_files(512)
    options.set_bytes_per_sync(1 << 20)
    return options


def _options(table: Table, cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES.get(table, _SMALL_BUFFER_BYTES))
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_block_size(_BLOCK_BYTES)
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    blocks.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(blocks)
    return options


_DAMAGED: Final = ("corruption", "not implemented", "invalid argument", "not found")


def _checked(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What RocksDB says, in words of the port."""
    try:
        return call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # rocksdict raises nothing more particular
        text = str(error)
        if text.lower().startswith(_DAMAGED):
            raise StateDamaged(text) from None
        raise StateUnusable(
            f"the state cannot be read or written: {text}. Is the disk full, or read-only?"
        ) from None
