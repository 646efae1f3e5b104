"""Evaluations and settled queries as Parquet files, from the lines of their NDJSON.

Of each there are two files: a row per query, with its grades, and a row per value.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from evaluator.replay.writing import EVALUATIONS, SETTLED

BATCH_ROWS: Final = 20_000
"""Rows of one table that are kept in memory before they are written."""
BATCH_BYTES: Final = 8 << 20
"""The same in bytes of their lines."""

_QUERY: Final = ("trace_id", "node_id", "event_time_ms", "model", "variant")
_VALUE: Final = ("ranker", "measure", "value")
_LISTS: Final = {"segments": ("segment", "level"), "grades": ("candidate_id", "grade")}
_TEXTS: Final = {"query", *_QUERY, *_VALUE, "segment", "level", "candidate_id"} - {
    "event_time_ms",
    "value",
}
_TIME_END: Final = 1 << 63
"""First ms that a column cannot have."""


class _Columns(NamedTuple):
    """The columns of both tables of a file, and those of the rows of queries alone."""

    key: tuple[str, ...]
    more: tuple[str, ...]


_COLUMNS: Final = {
    EVALUATIONS: _Columns(_QUERY, ("query", "revision", *_LISTS)),
    SETTLED: _Columns(("task", "n", *_QUERY), ("settled_time_ms", "offset", "silent", *_LISTS)),
}
TABLED: Final = tuple(_COLUMNS)
"""The files of which there are tables."""


class _Line(msgspec.Struct):
    """The used members of a line of either file."""

    trace_id: str
    node_id: str
    event_time_ms: int
    model: str
    variant: str
    values: dict[str, dict[str, float]]
    grades: dict[str, float]
    segments: dict[str, str] = {}
    query: str | None = None
    revision: int = 0
    task: int = 0
    n: int = 0
    settled_time_ms: int = 0
    offset: int = 0
    silent: bool = False


_line: Final = msgspec.json.Decoder(_Line).decode


class _Table:
    """Rows of one table, kept until there are enough for a row group."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._rows: list[tuple[Any, ...]] = []

    def add(self, rows: Iterable[tuple[Any, ...]], *, flush: bool) -> Iterator[Any]:
        """The record batch of all rows, once there are enough or with *flush*."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        self._rows += rows
        if self._rows and (flush or len(self._rows) >= BATCH_ROWS):
            columns = zip(*self._rows, strict=True)
            arrays = [
                pa.array(list(column), field.type)
                for column, field in zip(columns, self.schema, strict=True)
            ]
            self._rows = []
            yield pa.record_batch(arrays, schema=self.schema)


def schema_of(names: Iterable[str]) -> Any:
    """The Arrow schema of these columns."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    return pa.schema([(name, _type(pa, name)) for name in names])


def _type(pa: Any, name: str) -> Any:
    if name in _LISTS:
        return pa.list_(pa.struct([(each, _type(pa, each)) for each in _LISTS[name]]))
    if name in _TEXTS:
        return pa.string()
    if name == "silent":
        return pa.bool_()
    return pa.float64() if name in {"value", "grade"} else pa.int64()


def parquet_writer() -> Callable[[Path], dict[str, int]]:
    """The function that writes DERIVED from the NDJSON in a directory, and counts their rows.

    Raises ImportError without the extra `evaluator[parquet]`.
    """
    import pyarrow.parquet  # noqa: F401, PLC0415 - an extra

    return _write_all


def _write_all(directory: Path) -> dict[str, int]:
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    n_rows: Counter[str] = Counter()
    for name in TABLED:
        with ExitStack() as closing:
            writers = {
                table: closing.enter_context(
                    parquet.ParquetWriter(
                        directory / f"{table}.parquet", schema_of(columns), compression="zstd"
                    )
                )
                for table, columns in columns_of(name).items()
            }
            n_rows.update(dict.fromkeys(writers, 0))
            for table, batch in table_batches(directory / name):
                writers[table].write_batch(batch)
                n_rows[table] += len(batch)
    return {f"{table}.parquet": n for table, n in n_rows.items()}


def columns_of(name: str) -> dict[str, tuple[str, ...]]:
    """The columns of both tables of a file of TABLED, by the name of the table."""
    columns, stem = _COLUMNS[name], Path(name).stem
    queries, values = (*columns.key, *columns.more), (*columns.key, *_VALUE)
    return {stem: queries, f"{stem}-values": values}


def table_batches(source: Path) -> Iterator[tuple[str, Any]]:
    """The record batches of both tables of a file of TABLED, each with the name of its table."""
    columns = _COLUMNS[source.name]
    tables = {name: _Table(schema_of(of)) for name, of in columns_of(source.name).items()}
    n_bytes = 0
    with source.open("rb") as lines:
        for line in chain(lines, (None,)):
            n_bytes += len(line or b"")
            flush = line is None or n_bytes >= BATCH_BYTES
            n_bytes = 0 if flush else n_bytes
            rows = _rows(line, columns) if line is not None else ((), ())
            for (name, table), added in zip(tables.items(), rows, strict=True):
                for batch in table.add(added, flush=flush):
                    yield name, batch


def _rows(line: bytes, columns: _Columns) -> tuple[Iterable[tuple[Any, ...]], ...]:
    """The rows of a line in both tables."""
    row = _line(line)
    key = tuple(getattr(row, name) for name in columns.key)
    values = (
        (*key, ranker, measure, value)
        for ranker, of in row.values.items()
        for measure, value in of.items()
    )
    return [(*key, *(_cell(row, name) for name in columns.more))], values


def _cell(row: _Line, name: str) -> Any:
    cell = getattr(row, name)
    if name in _LISTS:
        return [dict(zip(_LISTS[name], pair, strict=True)) for pair in cell.items()]
    return None if name == "settled_time_ms" and cell >= _TIME_END else cell
