"""A folder that `replay` wrote, as columns: read line by line, a few numbers kept per query."""

import hashlib
import stat
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from math import nan
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray, IntArray
from evaluator.ports import SourceUnusable
from evaluator.wire.reading import Reader

Kind = Literal["running", "settled"]
FILES: Final[dict[Kind, str]] = {"running": "evaluations.ndjson", "settled": "settled.ndjson"}
MANIFEST: Final = "manifest.json"
MANIFEST_FORMAT: Final = 1

MAX_LINE_BYTES: Final = 256 << 20
"""A query may name so many candidates that its row is as long; nothing longer is a row."""
MAX_VALUE: Final = 1024.0
"""Measures lie in [0, 1]; a number far beyond is none of theirs and would leave int64."""

_BLOCK_BYTES: Final = 1 << 20

HashArray = NDArray[np.uint64]


class Row(msgspec.Struct):
    """What is kept of a line while the file is read."""

    trace_id: str
    node_id: str
    event_time_ms: int
    grades: msgspec.Raw
    values: dict[str, dict[str, float]]


class ShownRow(msgspec.Struct):
    """What is shown of a query; settled rows lack the last three."""

    trace_id: str
    node_id: str
    event_time_ms: int
    query: str | None = None
    rank: dict[str, int | None] = {}
    top3: dict[str, list[tuple[str, float | None]]] = {}


class _FileEntry(msgspec.Struct):
    sha256: str


class Manifest(msgspec.Struct):
    """What manifest.json says of a replay."""

    format: int
    version: str
    code_sha256: str
    settings: dict[str, Any]
    files: dict[str, _FileEntry]
    chain: str


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The queries of one file, in its order, and what each was worth.

    `keys` is `[n_rows, 2]`, 128 bits of (trace_id, node_id, event_time_ms); `traces` and `grades`
    are 64-bit hashes, `[n_rows]`, of the trace id and of the grades whatever their order;
    `offsets` is where the line of a row begins, `[n_rows]`. `values` has one column `[n_rows]`
    per (ranker, measure) that was asked for, NaN where the query has no such value. `rankers` and
    `measures` are all that there are, asked for or not, as they come first.
    """

    path: Path
    manifest: Manifest | None
    intact: bool  # as the manifest describes it; True without one
    keys: HashArray
    traces: HashArray
    grades: HashArray
    offsets: IntArray
    values: dict[tuple[str, str], FloatArray]
    rankers: tuple[str, ...]
    measures: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.offsets)

    def shown(self, row: int) -> ShownRow:
        """What the line of a row says, read again. Raises SourceUnusable."""
        try:
            with self.path.open("rb") as file:
                file.seek(int(self.offsets[row]))
                return _shown_row(file.readline())
        except (OSError, _NoRow) as error:
            raise SourceUnusable(
                f"{self.path} has changed while it was read ({error}). Compare again."
            ) from error


class _NoRow(ValueError):
    """Text is not what it should be; the message says why."""


def _reader(kind: Any) -> Reader[Any]:
    return Reader(kind, _NoRow, max_bytes=MAX_LINE_BYTES)


_row: Final[Reader[Row]] = _reader(Row)
_shown_row: Final[Reader[ShownRow]] = _reader(ShownRow)
_grades: Final[Reader[dict[str, float]]] = _reader(dict[str, float])
_manifest: Final[Reader[Manifest]] = _reader(Manifest)
_sorted: Final = msgspec.json.Encoder(order="sorted")


def size_of(folder: Path, kind: Kind) -> int:
    """Bytes of the file with the values of a folder. Raises SourceUnusable."""
    path = folder / FILES[kind]
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return path.stat().st_size
    except FileNotFoundError:
        if folder.is_dir():
            raise SourceUnusable(
                f"{folder} has no {path.name}, so it is not what `evaluator replay --out` leaves "
                "at its end. Name such a directory."
            ) from None
    except OSError as error:
        raise SourceUnusable(f"{path} cannot be read: {error.strerror}.") from error
    raise SourceUnusable(
        f"{folder} is no directory. Name the --out directory of `evaluator replay`."
    )


def read_folder(
    folder: Path,
    kind: Kind,
    *,
    rankers: Collection[str] | None,
    measures: Collection[str] | None,
    with_grades: bool,
    on_read: Callable[[bytes], object],
) -> Evaluations:
    """Reads the values of a folder.

    Args:
        folder: what `replay` wrote.
        kind: running values, or settled ones.
        rankers: keep the values of these only; None: of all.
        measures: the same of measures.
        with_grades: whether to hash the grades; else they are all 0.
        on_read: hears of every block that was read.
    Raises:
        SourceUnusable: if the folder is not one of a replay, or a line is not one of its rows.
    """
    size_of(folder, kind)  # refuses what is no folder of a replay
    manifest = _read_manifest(folder / MANIFEST)
    reader = _Reader(folder / FILES[kind], rankers, measures, with_grades=with_grades)
    digest = hashlib.sha256()
    try:
        with reader.path.open("rb") as file:
            for line in _lines(_blocks(file, digest.update, on_read), reader.path):
                reader.take(line)
    except OSError as error:
        raise SourceUnusable(f"{reader.path} cannot be read: {error.strerror}.") from error
    entry = None if manifest is None else manifest.files.get(reader.path.name)
    intact = manifest is None or (entry is not None and entry.sha256 == digest.hexdigest())
    return reader.evaluations(manifest, intact=intact)


def _read_manifest(path: Path) -> Manifest | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceUnusable(f"{path} cannot be read: {error.strerror}.") from error
    try:
        manifest = _manifest(text)
    except _NoRow as error:
        raise SourceUnusable(
            f"{path} is not the manifest of a replay: {error}. Replay again, or remove it to "
            "compare without knowing the settings."
        ) from error
    if manifest.format != MANIFEST_FORMAT:
        raise SourceUnusable(
            f"{path} has format {manifest.format}; this version reads {MANIFEST_FORMAT}. Compare "
            "with the version that wrote it, or replay again with this one."
        )
    return manifest


def _blocks(file: BinaryIO, *on_block: Callable[[bytes], object]) -> Iterator[bytes]:
    while block := file.read(_BLOCK_BYTES):
        for hear in on_block:
            hear(block)
        yield block


def _lines(blocks: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a file without their ends. Raises SourceUnusable for one without an end."""
    number, begun, size_bytes = 1, [b""], 0
    for block in blocks:
        *lines, rest = block.split(b"\n")
        if lines:
            yield b"".join((*begun, lines[0]))
            yield from lines[1:]
            number, begun, size_bytes = number + len(lines), [], 0
        begun.append(rest)
        size_bytes += len(rest)
        if size_bytes > MAX_LINE_BYTES:
            raise SourceUnusable(
                f"{path}: line {number} is longer than {MAX_LINE_BYTES >> 20} MiB, so it is no row "
                "of a replay. Name the --out directory of `evaluator replay`."
            )
    if size_bytes:
        raise SourceUnusable(
            f"{path}: line {number}, the last, is cut off. The file is not whole: replay again, "
            "or copy it again."
        )


class _Reader:
    """Rows to columns."""

    def __init__(
        self,
        path: Path,
        rankers: Collection[str] | None,
        measures: Collection[str] | None,
        *,
        with_grades: bool,
    ) -> None:
        self.path = path
        self._wanted_rankers = rankers
        self._wanted_measures = measures
        self._with_grades = with_grades
        self._n_rows = 0
        self._next_offset = 0
        self._keys = bytearray()
        self._traces = array("Q")
        self._grades = array("Q")
        self._offsets = array("q")
        self._columns: dict[str, dict[str, array[float] | None]] = {}  # None: not asked for

    def take(self, line: bytes) -> None:
        """The next line of the file. Raises SourceUnusable if it is not a row."""
        try:
            row = _row(line)
            grades = _sorted.encode(_grades(bytes(row.grades))) if self._with_grades else None
        except _NoRow as error:
            raise self._refused(self._n_rows, str(error)) from error
        key = f"{row.event_time_ms} {len(row.trace_id)} {row.trace_id}{row.node_id}"
        self._keys += xxhash.xxh3_128_digest(key.encode())
        self._traces.append(xxhash.xxh3_64_intdigest(row.trace_id.encode()))
        self._grades.append(0 if grades is None else xxhash.xxh3_64_intdigest(grades))
        self._offsets.append(self._next_offset)
        for ranker, values in row.values.items():
            columns = self._columns.get(ranker)
            if columns is None:
                columns = self._columns[ranker] = {}
            for measure, value in values.items():
                try:
                    column = columns[measure]
                except KeyError:
                    column = columns[measure] = self._new_column(ranker, measure)
                if column is not None:
                    if len(column) != self._n_rows:
                        self._pad(column)
                    column.append(value)
        self._next_offset += len(line) + 1
        self._n_rows += 1

    def _new_column(self, ranker: str, measure: str) -> "array[float] | None":
        rankers, measures = self._wanted_rankers, self._wanted_measures
        wanted = (rankers is None or ranker in rankers) and (
            measures is None or measure in measures
        )
        return array("d") if wanted else None

    def _pad(self, column: "array[float]") -> None:
        """Says of the rows since the last value that they have none."""
        column.extend(repeat(nan, self._n_rows - len(column)))

    def _refused(self, row: int, reason: str) -> SourceUnusable:
        return SourceUnusable(
            f"{self.path}: line {row + 1} is not a row of a replay: {reason}. Name the --out "
            "directory of `evaluator replay`; if it is one, replay again."
        )

    def _whole_column(self, measure: str, column: "array[float]") -> FloatArray:
        """One number per row. Raises SourceUnusable if one is no value."""
        self._pad(column)
        values = np.frombuffer(column)
        odd = np.flatnonzero(np.abs(values) > MAX_VALUE)
        if len(odd):
            row = int(odd[0])
            raise self._refused(row, f"{values[row]:g} is no value of {measure}")
        return values

    def evaluations(self, manifest: Manifest | None, *, intact: bool) -> Evaluations:
        """All that was taken. Raises SourceUnusable for a query twice or a number beyond values."""
        values = {
            (ranker, measure): self._whole_column(measure, column)
            for ranker, columns in self._columns.items()
            for measure, column in columns.items()
            if column is not None
        }
        keys = np.frombuffer(bytes(self._keys), dtype=np.uint64).reshape(-1, 2)
        first, second = first_repeated(keys)
        if second:
            raise self._refused(second, f"its query is on line {first + 1} too")
        return Evaluations(
            path=self.path,
            manifest=manifest,
            intact=intact,
            keys=keys,
            traces=np.frombuffer(self._traces, dtype=np.uint64),
            grades=np.frombuffer(self._grades, dtype=np.uint64),
            offsets=np.frombuffer(self._offsets, dtype=np.int64),
            values=values,
            rankers=tuple(self._columns),
            measures=tuple(dict.fromkeys(chain.from_iterable(self._columns.values()))),
        )


def first_repeated(keys: HashArray) -> tuple[int, int]:
    """The first row with the key of an earlier one, after that one; (0, 0) if there is none."""
    order = np.lexsort(keys.T)
    same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    if not same.any():
        return 0, 0
    at = np.flatnonzero(same)
    pick = at[np.argmin(order[at + 1])]  # lexsort is stable: of equal keys the earlier row first
    return int(order[pick]), int(order[pick + 1])
