"""Records in Parquet files: raw values in a column, or rows of columns as JSON."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

_RAW: Final = frozenset({"key", "value", "topic", "partition", "offset", "timestamp", "headers"})
"""Columns of a table of raw records; one more, `timestampType`, is written by Spark."""
_BUFFER_BYTES: Final = 1 << 20
_STEP: Final = 64
"""Rows that are decoded at once: the size of a row is unknown before that."""


class StoredRecord(NamedTuple):
    """A record of a raw table; the offset is None if the table has none, the time -1."""

    value: bytes | None
    key: bytes | None
    timestamp_ms: int
    offset: int | None


def read_parquet(
    path: Path, partition: int, *, max_records: int, max_bytes: int
) -> Iterator[list[bytes] | list[StoredRecord]]:
    """The rows of a file in batches of about *max_bytes*, and of 64 rows more at most.

    A table is raw if its column `value` is binary, or text among columns of raw records only; rows
    of others become JSON. Raises ImportError without the extra `evaluator[parquet]`, ValueError for
    raw records of another partition or of several topics, and errors of pyarrow: ValueError or
    OSError.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415 - of the same extra

    with parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
        schema = file.schema_arrow
        groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
        widest = max((of.total_byte_size / max(1, of.num_rows) for of in groups), default=1.0)
        step = max(1, min(_STEP, max_records, int(max_bytes / max(1.0, widest))))
        raw = _is_raw(pa, schema)
        columns = [name for name in schema.names if not raw or name in _RAW - {"headers"}]
        of_file: dict[str, set[Any]] = {"partition": {partition}, "topic": set()}
        rows: list[Any] = []
        n_bytes = 0
        for batch in file.iter_batches(batch_size=step, columns=columns):
            if raw:
                _require_one(batch, of_file)
            rows += _stored(pa, batch) if raw else _documents(pa, batch)
            n_bytes += batch.nbytes
            if n_bytes + batch.nbytes > max_bytes or len(rows) + step > max_records:
                yield rows
                rows, n_bytes = [], 0
        if rows:
            yield rows


def _is_raw(pa: Any, schema: Any) -> bool:
    if "value" not in schema.names:
        return False
    of = schema.field("value").type
    if pa.types.is_binary(of) or pa.types.is_large_binary(of):
        return True
    is_text = pa.types.is_string(of) or pa.types.is_large_string(of)
    return is_text and {*schema.names} <= _RAW | {"timestampType"}


def _require_one(batch: Any, of_file: dict[str, set[Any]]) -> None:
    """Raises ValueError if a batch is not of the one partition or topic of its file."""
    for name, found in of_file.items():
        if name in batch.schema.names:
            found |= set(batch.column(name).unique().to_pylist())
        if len(found) > 1:
            raise ValueError(
                f"its column {name} has {' and '.join(map(str, sorted(found, key=str)[:3]))}. "
                "Write one file for each topic and partition, which its name has "
                "(docs/history.md has a statement for DuckDB)"
            )


def _stored(pa: Any, batch: Any) -> list[StoredRecord]:
    def column(name: str, *types: Any) -> list[Any]:
        if name not in batch.schema.names:
            return [None] * len(batch)
        cells = batch.column(name)
        for each in types:
            cells = cells.cast(each, safe=False)
        found: list[Any] = cells.to_pylist()
        return found

    times: tuple[Any, ...] = (pa.int64(),)
    if "timestamp" in batch.schema.names and pa.types.is_timestamp(
        batch.schema.field("timestamp").type
    ):
        times = (pa.timestamp("ms"), pa.int64())
    found = [
        StoredRecord(value, key, -1 if time_ms is None else time_ms, offset)
        for value, key, time_ms, offset in zip(
            column("value", pa.binary()),
            column("key", pa.binary()),
            column("timestamp", *times),
            column("offset", pa.int64()),
            strict=True,
        )
    ]
    if "offset" in batch.schema.names and any((row.offset or 0) < 0 for row in found):
        raise ValueError("the column offset has negative numbers")
    if len({row.offset is None for row in found}) > 1:
        raise ValueError("the column offset has nulls")
    return found


def _documents(pa: Any, batch: Any) -> list[bytes]:
    """Rows as JSON: times in epoch ms, maps as objects; a null in a row or a struct is left out."""
    schema = batch.schema
    for instant in (pa.timestamp("ms"), pa.int64()):
        plain = [(field.name, _plain(pa, field.type, instant)) for field in schema]
        batch = batch.cast(pa.schema(plain), safe=False)
    of_row = _member_of(pa, pa.struct(list(batch.schema)))
    return [msgspec.json.encode(of_row(row)) for row in batch.to_pylist()]


def _plain(pa: Any, of: Any, instant: Any) -> Any:
    """A type with other types of times, decimals and bytes."""
    types = pa.types
    if types.is_timestamp(of):
        return instant
    if types.is_decimal(of):
        return pa.float64()
    if types.is_binary(of) or types.is_large_binary(of):
        return pa.string()
    if types.is_map(of):
        return pa.map_(pa.string(), _plain(pa, of.item_type, instant))
    if types.is_list(of) or types.is_large_list(of):
        return pa.list_(_plain(pa, of.value_type, instant))
    if types.is_struct(of):
        return pa.struct([(each.name, _plain(pa, each.type, instant)) for each in of])
    return of


def _member_of(pa: Any, of: Any) -> Callable[[Any], Any]:
    """A function of the cells of a type that gives members of a document."""
    types = pa.types
    if types.is_struct(of):
        members = {each.name: _member_of(pa, each.type) for each in of}
        return lambda cell: {
            name: members[name](each) for name, each in cell.items() if each is not None
        }
    if types.is_map(of):
        member = _member_of(pa, of.item_type)
        return lambda cell: {name: None if each is None else member(each) for name, each in cell}
    if types.is_list(of):
        member = _member_of(pa, of.value_type)
        return lambda cell: [None if each is None else member(each) for each in cell]
    return lambda cell: cell
