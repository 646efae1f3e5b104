"""The state store of a task in RocksDB."""

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar, cast

import cramjam
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from evaluator.ports import TOO_MANY_FILES, StateUnusable
from evaluator.wire.state.task_rows import HEAD, TABLES, Row, StateDamaged, Table

_LARGE: Final = frozenset(("queries", "judgments"))
"""Tables with large values. They are compressed here and not by RocksDB, so that they are small in
the write buffers and in the write-ahead log too."""
_WRITE_BUFFER_BYTES: Final[dict[str, int]] = {"queries": 16 << 20, "judgments": 12 << 20}
_SMALL_BUFFER_BYTES: Final = 4 << 20
CACHE_BYTES: Final = 128 << 20
_WAL_BYTES: Final = 128 << 20
_SURELY_FLUSHED_BYTES: Final = 2 * _WAL_BYTES
"""After this many further bytes a row is in a sorted file, safe from power loss."""
_READERS: Final = 8
_KEYS_PER_READER: Final = 64
_ROWS_AT_ONCE: Final = 4_096
_LINKS: Final = "links"
_ORIGIN: Final = b""
_link: Final = struct.Struct(">q")
_DAMAGED: Final = ("corruption", "not implemented", "invalid argument", "not found")
_FILE_IS_MISSING: Final = "no such file or directory"
_FLUSH_POLLS: Final = 3_000
_FLUSH_POLL_SECONDS: Final = 0.01

Values = list[bytes | None]

P = ParamSpec("P")
T = TypeVar("T")


class RocksBatch:
    """Implements `evaluator.ports.StateBatch` by a write batch of RocksDB."""

    def __init__(self, handles: Mapping[str, Any], write: Callable[[WriteBatch], None]) -> None:
        self._handles = handles
        self._write = write
        self._changes = WriteBatch(raw_mode=True)

    def put(self, table: Table, rows: Iterable[Row]) -> None:
        handle = self._handles[table]
        put, delete = self._changes.put, self._changes.delete
        for key, value in _compressed(rows) if table in _LARGE else rows:
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def delete_range(self, table: Table, first: bytes, end: bytes) -> None:
        self._changes.delete_range(first, end, self._handles[table])

    def write(self) -> None:
        self._write(self._changes)


class RocksStateStore:
    """Implements `evaluator.ports.StateStore`: one RocksDB, with a column family for each table.

    The write-ahead log is not synchronised: after power loss the store is an earlier one, and
    complete. RocksDB does not detect a log that ends early and is followed by another one.
    Therefore every batch deletes the link of the previous batch from `links` and puts its own: if
    batches are lost in between, an earlier link remains. The origin is always in a sorted file.
    All tables are flushed together, so the links prove that all tables are complete.
    """

    def __init__(self, path: Path, cache: Cache | None = None) -> None:
        cache = Cache(CACHE_BYTES) if cache is None else cache
        families = {table: _options(table, cache) for table in (*TABLES, _LINKS)}
        self._path = path
        self._db: Rdict | None = _checked(
            lambda: Rdict(str(path), _database_options(cache), column_families=families)
        )
        self._tables = {table: self._open.get_column_family(table) for table in TABLES}
        self._handles: dict[str, Any] = {
            table: self._open.get_column_family_handle(table) for table in families
        }
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="state-reader")
        self._n_bytes_written = 0
        self._changing = Lock()  # against a copy by another thread
        self._discarded: dict[Table, tuple[bytes, int]] = {}  # end of rows; n_bytes then
        try:
            self._n_written = _checked(self._last_link)
        except BaseException:
            self.close()
            raise

    def _last_link(self) -> int:
        """The number of the last batch. Raises StateDamaged if an earlier batch is lost."""
        table = self._open.get_column_family(_LINKS)
        links = [key for key, _ in _rows_between(table, b"", None)]
        if links[:1] == [_ORIGIN] and len(links[1:]) == 1:
            return int(_link.unpack(links[1])[0])
        if links or any(_rows_between(rows, b"", None) for rows in self._tables.values()):
            raise StateDamaged("some of the batches that were written are lost")
        changes = WriteBatch(raw_mode=True)
        for key in (_ORIGIN, _link.pack(0)):
            changes.put(key, b"", self._handles[_LINKS])
        self._open.write(changes)
        table.flush()
        return 0

    @property
    def _open(self) -> Rdict:
        if self._db is None:
            raise StateUnusable(f"the store {self._path} was closed")
        return self._db

    def _table(self, table: Table) -> Rdict:
        return self._tables[table] if self._tables else self._open

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        rows, wanted = self._table(table), list(keys)
        values = _decompressed_values if table in _LARGE else _values
        if len(wanted) < 2 * _KEYS_PER_READER:
            return _checked(values, rows, wanted)
        futures = [
            self._readers.submit(values, rows, wanted[first : first + _KEYS_PER_READER])
            for first in range(0, len(wanted), _KEYS_PER_READER)
        ]
        return list(chain.from_iterable(_checked(_results, futures)))

    def rows(
        self, table: Table, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        source = self._table(table)
        found = _rows_in_parts(source, _checked(_rows_between, source, first, end), end)
        if table in _LARGE:
            return ((key, _decompressed(value)) for key, value in found)
        return found

    def discard_before(self, table: Table, end: bytes) -> None:
        rows, n_bytes = self._table(table), self._n_bytes_written
        before, n_bytes_then = self._discarded.setdefault(table, (end, n_bytes))
        # Rows that existed when the store was opened are in sorted files.
        if 0 < n_bytes < n_bytes_then + _SURELY_FLUSHED_BYTES:
            return
        self._discarded[table] = (end, n_bytes)
        changes = WriteBatch(raw_mode=True)
        changes.delete_range(b"", before, self._handles[table])
        _checked(self._delete_in_own_file, rows, changes)

    def _delete_in_own_file(self, table: Rdict, changes: WriteBatch) -> None:
        """Writes a range deletion into a file without newer rows.

        In a file with newer rows, a compaction would rewrite all rows of both ranges.
        """
        table.flush(wait=False)
        self._open.write(changes)
        table.flush(wait=False)

    def batch(self) -> RocksBatch:
        self._table("meta")
        return RocksBatch(self._handles, self._write)

    def _write(self, changes: WriteBatch) -> None:
        database = self._open
        changes.delete(_link.pack(self._n_written), self._handles[_LINKS])
        changes.put(_link.pack(self._n_written + 1), b"", self._handles[_LINKS])
        n_bytes = changes.size_in_bytes()
        with self._changing:
            _checked(database.write, changes)
        self._n_written += 1
        self._n_bytes_written += n_bytes

    def n_bytes(self) -> int:
        return _checked(lambda: sum(map(_size_of, os.scandir(self._path))))

    def copy_to(self, folder: Path) -> bytes | None:
        """Copies the store as of a commit by hard links; returns its row `head`.

        Another thread may do this while the store is in use. RocksDB holds the interpreter during
        a copy, so its rows are written to files before that.
        """
        with self._changing:
            self._table("meta").flush(wait=False)
        for _ in range(_FLUSH_POLLS):
            time.sleep(_FLUSH_POLL_SECONDS)
            with self._changing:
                if not self._table("meta").property_int_value("rocksdb.num-running-flushes"):
                    break
        with self._changing:
            _checked(lambda: Checkpoint(self._open).create_checkpoint(str(folder)))
            return self.get("meta", [HEAD])[0]

    def close(self) -> None:
        with self._changing:
            db, self._db, self._tables = self._db, None, {}
        self._handles.clear()  # shared with batches; a handle keeps the database open
        self._readers.shutdown()
        if db is not None:
            # A close flushes rows of the write-ahead log. If that fails they stay in the log, and
            # the next open reports the error.
            with suppress(Exception):
                db.close()


def _values(table: Rdict, keys: list[Any]) -> Values:
    return cast("Values", table.get(keys))


def _decompressed_values(table: Rdict, keys: list[Any]) -> Values:
    return [None if each is None else _decompressed(each) for each in _values(table, keys)]


def _compressed(rows: Iterable[Row]) -> Iterator[Row]:
    for key, value in rows:
        yield key, None if value is None else bytes(cramjam.lz4.compress_block(value))


def _decompressed(value: bytes) -> bytes:
    try:
        return bytes(cramjam.lz4.decompress_block(value))
    except cramjam.DecompressionError as error:
        raise StateDamaged(f"a value cannot be decompressed: {error}") from None


def _results(futures: list[Future[Values]]) -> list[Values]:
    """The results in order; empties *futures*, also on errors.

    The traceback of a failed future refers to the table, and would keep the database open.
    """
    futures.reverse()
    found = []
    try:
        while futures:
            found.append(futures.pop().result())
    finally:
        futures.clear()
    return found


def _rows_in_parts(
    table: Rdict, part: list[tuple[bytes, bytes]], end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Rows from the first *part*, which is read already; later parts are read when needed."""
    while part:
        yield from part
        behind = part[-1][0] + b"\0"
        part = _checked(_rows_between, table, behind, end) if len(part) == _ROWS_AT_ONCE else []


def _rows_between(table: Rdict, first: bytes, end: bytes | None) -> list[tuple[bytes, bytes]]:
    """At most _ROWS_AT_ONCE of these rows.

    An iterator also ends at a corrupt block, which only its status shows.
    """
    rows = table.iter()
    try:
        found: list[tuple[bytes, bytes]] = []
        rows.seek(first)
        key: Any = rows.key()
        while key is not None and (end is None or key < end) and len(found) < _ROWS_AT_ONCE:
            found.append((key, rows.value()))
            rows.next()
            key = rows.key()
        if key is None:
            rows.status()
        return found
    finally:
        del rows  # the traceback of an exception would keep the database open


def _size_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # deleted meanwhile
        return 0


def _database_options(cache: Cache) -> Options:
    options = _options("meta", cache)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(_WAL_BYTES)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(1 << 20)
    options.set_max_open_files(512)
    options.set_bytes_per_sync(1 << 20)
    return options


def _options(table: str, cache: Cache) -> Options:
    options, is_large = Options(raw_mode=True), table in _LARGE
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES.get(table, _SMALL_BUFFER_BYTES))
    options.set_compression_type(DBCompressionType.none() if is_large else DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_block_size((8 if is_large else 4) << 10)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(blocks)
    return options


def _checked(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of *call*; errors of RocksDB become those of the port."""
    try:
        return call(*args, **kwargs)
    except (StateDamaged, StateUnusable):
        raise
    except DbClosedError:
        raise StateUnusable("the store was closed") from None
    except Exception as error:  # noqa: BLE001  # rocksdict raises no narrower type
        text = " ".join(str(error).split())
    low = text.lower()
    if TOO_MANY_FILES not in low and (low.startswith(_DAMAGED) or _FILE_IS_MISSING in low):
        raise StateDamaged(text)
    raise StateUnusable.because(
        f"the state cannot be read or written: {text}",
        "Check whether the disk of state_dir is full, read-only or failing, and start again: the "
        "state on it is kept.",
    )
