"""Evaluations and settled queries as Parquet files, from the lines of their NDJSON.

Of each there are two files: a row per query, with its grades, and a row per value.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from evaluator.ports import ResultsUnusable
from evaluator.replay.results import DERIVED
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


class _Columns(NamedTuple):
    """The columns of both tables of a file, and those of the rows of queries alone."""

    key: tuple[str, ...]
    more: tuple[str, ...]


_COLUMNS: Final = {
    EVALUATIONS: _Columns(_QUERY, ("query", "revision", *_LISTS)),
    SETTLED: _Columns(("task", "n", *_QUERY), ("settled_time_ms", "offset", "silent", *_LISTS)),
}


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
    """One Parquet file; rows are kept until there are enough for a row group."""

    def __init__(self, path: Path, columns: Iterable[str]) -> None:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415 - of the same extra

        self._arrow = pa
        self._schema = pa.schema([(name, self._type(name)) for name in columns])
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[tuple[Any, ...]] = []

    def _type(self, name: str) -> Any:
        pa = self._arrow
        if name in _LISTS:
            return pa.list_(pa.struct([(each, self._type(each)) for each in _LISTS[name]]))
        if name in _TEXTS:
            return pa.string()
        if name == "silent":
            return pa.bool_()
        return pa.float64() if name in {"value", "grade"} else pa.int64()

    def add(self, rows: Iterable[tuple[Any, ...]], *, flush: bool) -> None:
        self._rows += rows
        if self._rows and (flush or len(self._rows) >= BATCH_ROWS):
            columns = zip(*self._rows, strict=True)
            arrays = [
                self._arrow.array(list(column), field.type)
                for column, field in zip(columns, self._schema, strict=True)
            ]
            self._writer.write_batch(self._arrow.record_batch(arrays, schema=self._schema))
            self._rows = []

    def close(self) -> None:
        self._writer.close()


def parquet_writer() -> Callable[[Path], None]:
    """The function that writes DERIVED beside the NDJSON in a directory.

    Raises ImportError without the extra `evaluator[parquet]`.
    """
    import pyarrow.parquet  # noqa: F401, PLC0415 - an extra

    return _write_all


def _write_all(directory: Path) -> None:
    for source, queries, values in zip(_COLUMNS, DERIVED[::2], DERIVED[1::2], strict=True):
        try:
            _write(directory / source, directory / queries, directory / values)
        except OverflowError:
            raise ResultsUnusable(
                f"{source} has a time of 2^63 ms or later, which Parquet cannot have. Leave "
                "--format parquet out."
            ) from None


def _write(source: Path, queries: Path, values: Path) -> None:
    columns = _COLUMNS[source.name]
    with ExitStack() as closing:
        of_queries = _Table(queries, (*columns.key, *columns.more))
        closing.callback(of_queries.close)
        of_values = _Table(values, (*columns.key, *_VALUE))
        closing.callback(of_values.close)
        n_bytes = 0
        for line in closing.enter_context(source.open("rb")):
            row = _line(line)
            n_bytes += len(line)
            flush = n_bytes >= BATCH_BYTES
            n_bytes = 0 if flush else n_bytes
            key = tuple(getattr(row, name) for name in columns.key)
            of_queries.add([(*key, *(_cell(row, name) for name in columns.more))], flush=flush)
            of_values.add(
                (
                    (*key, ranker, measure, value)
                    for ranker, of in row.values.items()
                    for measure, value in of.items()
                ),
                flush=flush,
            )
        of_queries.add((), flush=True)
        of_values.add((), flush=True)


def _cell(row: _Line, name: str) -> Any:
    cell = getattr(row, name)
    if name in _LISTS:
        return [dict(zip(_LISTS[name], pair, strict=True)) for pair in cell.items()]
    return cell
