"""Reads the values of a replay into columns, line by line."""

import hashlib
import stat
from array import array
from collections.abc import Callable, Collection, Iterator
from itertools import chain, repeat
from math import nan
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.comparison.question import Kind
from evaluator.core.types.records import FloatArray, IntArray
from evaluator.ports import SourceUnusable
from evaluator.wire.reading import Reader, compression_of

FILES: Final[dict[Kind, str]] = {"running": "evaluations.ndjson", "settled": "settled.ndjson"}
MANIFEST: Final = "manifest.json"
MANIFEST_FORMAT: Final = 2

MAX_LINE_BYTES: Final = 256 << 20
"""Upper limit of the row of a query with the most candidates."""
MAX_VALUE: Final = 1e6
"""The largest value of weighted clicks; larger numbers are invalid and would exceed int64."""
MAX_LEVELS: Final = 100_000
"""Upper limit of the levels of a segment in a file; more are ids, not levels."""
NO_LEVEL: Final = -1

HashArray = NDArray[np.uint64]


class Row(Struct):
    """The used members of a line."""

    trace_id: str
    node_id: str
    event_time_ms: int
    grades: msgspec.Raw
    values: dict[str, dict[str, float]]
    segments: dict[str, str] = {}


class ShownRow(Struct):
    """The reported members of a line; settled rows lack the last three."""

    trace_id: str
    node_id: str
    event_time_ms: int
    query: str | None = None
    rank: dict[str, int | None] = {}
    top3: dict[str, list[tuple[str, float | None]]] = {}


class _FileEntry(Struct):
    sha256: str


class Manifest(Struct):
    """The used members of manifest.json."""

    format: int
    version: str | None  # None: of a merge of several
    code_sha256: str | None
    settings: dict[str, Any]
    files: dict[str, _FileEntry]
    chain: str

    @property
    def weighted(self) -> list[str]:
        """The measures that compare rankers by weighted clicks; they are settled values only."""
        names = self.settings.get("measures")
        names = names if isinstance(names, list) else []
        return [name for name in map(str, names) if name.startswith("ips_dcg@")]


class Evaluations(Struct, frozen=True):
    """The queries of one file, in its order, with their values.

    `keys` is `[n_rows, 2]`, 128-bit hashes of (trace_id, node_id, event_time_ms); `traces` and
    `grades` are 64-bit hashes, `[n_rows]`, of the trace id and of the sorted grades; `offsets` are
    the offsets of the lines, `[n_rows]`. `values` has one column `[n_rows]` per requested (ranker,
    measure), NaN for missing values. `rankers` and `measures` are all in the file, by first
    occurrence. `levels` are places in `level_names`, `[n_rows]`, NO_LEVEL for a query without one.
    """

    path: Path
    manifest: Manifest | None
    intact: bool  # matches the manifest; True without one
    keys: HashArray
    traces: HashArray
    grades: HashArray
    offsets: IntArray
    values: dict[tuple[str, str], FloatArray]
    rankers: tuple[str, ...]
    measures: tuple[str, ...]
    levels: IntArray
    level_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.offsets)

    def shown(self, row: int) -> ShownRow:
        """Reads the line of a row again. Raises SourceUnusable."""
        try:
            with self.path.open("rb") as file:
                file.seek(int(self.offsets[row]))
                return _shown_row(file.readline())
        except (OSError, _InvalidText) as error:
            raise SourceUnusable(
                f"{self.path} has changed while it was read ({error}). Compare again."
            ) from error


class _InvalidText(ValueError):
    """A text that is not valid; the message has the reason."""


def _reader(kind: Any) -> Reader[Any]:
    return Reader(kind, _InvalidText, max_bytes=MAX_LINE_BYTES)


_row: Final[Reader[Row]] = _reader(Row)
_shown_row: Final[Reader[ShownRow]] = _reader(ShownRow)
_grades: Final[Reader[dict[str, float]]] = _reader(dict[str, float])
_manifest: Final[Reader[Manifest]] = _reader(Manifest)
_sorted: Final = msgspec.json.Encoder(order="sorted")


def size_of(folder: Path, kind: Kind) -> int:
    """The size of the file with the values of a folder. Raises SourceUnusable."""
    path = folder / FILES[kind]
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return path.stat().st_size
    except FileNotFoundError:
        if compressed := [each.name for each in sorted(folder.glob(f"{path.name}.*"))]:
            raise SourceUnusable(
                f"{folder} has {compressed[0]}, and comparisons read {path.name} without "
                "compression. Decompress it."
            ) from None
        if folder.is_dir():
            raise SourceUnusable(
                f"{folder} has no {path.name}, so it is not a complete output of `evaluator replay "
                "--out`. Name such a directory."
            ) from None
    except OSError as error:
        raise SourceUnusable(f"{path} cannot be read: {error.strerror}.") from error
    raise SourceUnusable(
        f"{folder} is not a directory. Name the --out directory of `evaluator replay`."
    )


def read_folder(
    folder: Path,
    kind: Kind,
    *,
    rankers: Collection[str] | None,
    measures: Collection[str] | None,
    with_grades: bool,
    on_read: Callable[[bytes], object],
    by: str | None = None,
) -> Evaluations:
    """Reads the values of a folder.

    Args:
        folder: the output of `replay`.
        kind: running or settled values.
        rankers: to keep values of; None: all.
        measures: to keep values of; None: all.
        with_grades: hash the grades; else all hashes are 0.
        on_read: called with every block that was read.
        by: keep the levels of this segment.
    Raises:
        SourceUnusable: if the folder is not the output of a replay, or a line is invalid.
    """
    size_of(folder, kind)  # raises for other folders
    manifest = read_manifest(folder)
    reader = _Reader(folder / FILES[kind], rankers, measures, with_grades=with_grades, by=by)
    digest = hashlib.sha256()
    try:
        with reader.path.open("rb") as file:
            if found := compression_of(file.peek(10)):
                raise SourceUnusable(
                    f"{reader.path} has {found} data, and comparisons read it without compression. "
                    "Decompress it."
                )
            for line in _lines(file, reader.path, digest.update, on_read):
                reader.add(line)
    except OSError as error:
        raise SourceUnusable(f"{reader.path} cannot be read: {error.strerror}.") from error
    entry = None if manifest is None else manifest.files.get(reader.path.name)
    intact = manifest is None or (entry is not None and entry.sha256 == digest.hexdigest())
    return reader.evaluations(manifest, intact=intact)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, if it has one. Raises SourceUnusable."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceUnusable(f"{path} cannot be read: {error.strerror}.") from error
    try:
        manifest = _manifest(text)
    except _InvalidText as error:
        raise SourceUnusable(
            f"{path} is not the manifest of a replay: {error}. Replay again, or remove it to "
            "compare without the settings."
        ) from error
    if manifest.format != MANIFEST_FORMAT:
        raise SourceUnusable(
            f"{path} has format {manifest.format}; this version reads {MANIFEST_FORMAT}. Compare "
            "with the version that wrote it, or replay again with this one."
        )
    return manifest


def _lines(file: BinaryIO, path: Path, *on_line: Callable[[bytes], object]) -> Iterator[bytes]:
    """The lines of a file. Raises SourceUnusable for one without a newline."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        for handle in on_line:
            handle(line)
        if not line.endswith(b"\n"):
            if len(line) > MAX_LINE_BYTES:
                raise SourceUnusable(
                    f"{path}: line {number} is longer than {MAX_LINE_BYTES >> 20} MiB, so it is "
                    "not a row of a replay. Name the --out directory of `evaluator replay`."
                )
            raise SourceUnusable(
                f"{path}: line {number}, the last, is cut off. The file is incomplete: replay "
                "again, or copy it again."
            )
        yield line[:-1]


class _Reader:
    """Collects rows into columns."""

    def __init__(
        self,
        path: Path,
        rankers: Collection[str] | None,
        measures: Collection[str] | None,
        *,
        with_grades: bool,
        by: str | None,
    ) -> None:
        self.path = path
        self._by = by
        self._wanted_rankers = rankers
        self._wanted_measures = measures
        self._with_grades = with_grades
        self._n_rows = 0
        self._next_offset = 0
        self._keys = bytearray()
        self._traces = array("Q")
        self._grades = array("Q")
        self._offsets = array("q")
        self._levels = array("q")
        self._level_numbers: dict[str, int] = {}
        self._columns: dict[str, dict[str, array[float] | None]] = {}  # None: not requested

    def add(self, line: bytes) -> None:
        """Adds the next line of the file. Raises SourceUnusable if it is not a row."""
        try:
            row = _row(line)
            grades = _sorted.encode(_grades(bytes(row.grades))) if self._with_grades else None
        except _InvalidText as error:
            raise self._refused(self._n_rows, str(error)) from error
        key = f"{row.event_time_ms} {len(row.trace_id)} {row.trace_id}{row.node_id}"
        self._keys += xxhash.xxh3_128_digest(key.encode())
        self._traces.append(xxhash.xxh3_64_intdigest(row.trace_id.encode()))
        self._grades.append(0 if grades is None else xxhash.xxh3_64_intdigest(grades))
        self._offsets.append(self._next_offset)
        self._levels.append(NO_LEVEL if self._by is None else self._level(row.segments))
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

    def _level(self, segments: dict[str, str]) -> int:
        """The number of the level of a query. Raises SourceUnusable if there are too many."""
        level = segments.get(self._by or "")
        if not level:
            return NO_LEVEL
        number = self._level_numbers.setdefault(level, len(self._level_numbers))
        if number >= MAX_LEVELS:
            raise SourceUnusable(
                f"{self.path} has more than {MAX_LEVELS:,} levels of {self._by}: these are ids. "
                "Choose another segment for --by."
            )
        return number

    def _new_column(self, ranker: str, measure: str) -> "array[float] | None":
        rankers, measures = self._wanted_rankers, self._wanted_measures
        wanted = (rankers is None or ranker in rankers) and (
            measures is None or measure in measures
        )
        return array("d") if wanted else None

    def _pad(self, column: "array[float]") -> None:
        """Fills the rows since the last value with NaN."""
        column.extend(repeat(nan, self._n_rows - len(column)))

    def _refused(self, row: int, reason: str) -> SourceUnusable:
        return SourceUnusable(
            f"{self.path}: line {row + 1} is not a row of a replay: {reason}. Name the --out "
            "directory of `evaluator replay`; if it is one, replay again."
        )

    def _whole_column(self, measure: str, column: "array[float]") -> FloatArray:
        """One number per row. Raises SourceUnusable for an invalid one."""
        self._pad(column)
        values = np.frombuffer(column)
        invalid = np.flatnonzero(np.abs(values) > MAX_VALUE)
        if len(invalid):
            row = int(invalid[0])
            raise self._refused(row, f"{values[row]:g} is not a value of {measure}")
        return values

    def evaluations(self, manifest: Manifest | None, *, intact: bool) -> Evaluations:
        """All columns. Raises SourceUnusable for a repeated query or an invalid number."""
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
            levels=np.frombuffer(self._levels, dtype=np.int64),
            level_names=tuple(self._level_numbers),
        )


def first_repeated(keys: HashArray) -> tuple[int, int]:
    """The first row with the key of an earlier one, as (earlier, row); (0, 0) without one."""
    order = np.lexsort(keys.T)
    same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    if not same.any():
        return 0, 0
    at = np.flatnonzero(same)
    pick = at[np.argmin(order[at + 1])]  # lexsort is stable: of equal keys the earlier row first
    return int(order[pick]), int(order[pick + 1])
