"""Directories of results as parts of a merge: their manifest, totals, and rows with keys.

Every file is read once, and its hash is compared with the manifest at its end.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import LOGS
from evaluator.core.types.tally import Path as TallyPath
from evaluator.core.types.tally import Tally
from evaluator.ports import SourceUnusable
from evaluator.replay.manifest import MANIFEST_FORMAT, Code, chain_of
from evaluator.replay.results import DERIVED, ResultFile, SortKey
from evaluator.replay.writing import (
    DEAD_LETTERS,
    EVALUATIONS,
    MANIFEST,
    SETTLED,
    TOTALS,
    WINDOWS,
    Part,
    TaskEnd,
)
from evaluator.wire.canonical import encode_document
from evaluator.wire.outputs.encoding import (
    DEAD_LETTER_REASONS,
    LEDGER_MEMBERS,
    QUERY_MEMBERS,
    TOTALS_FORMAT,
)
from evaluator.wire.reading import UNREADABLE, Count, too_deep

MAX_ROW_BYTES: Final = 64 << 20
"""A longer line of results is refused."""
_Task = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,9}$")]


class _Range(Struct):
    start: Count
    end: Count


class _Part(Struct, kw_only=True):
    place: dict[str, Any] | None
    ranges: dict[str, _Range]
    tasks: dict[_Task, TaskEnd]
    gaps: dict[str, list[tuple[Count, Count]]] = {}

    def part(self) -> Part:
        ranges = {name: (of.start, of.end) for name, of in self.ranges.items()}
        ends = {int(task): end for task, end in self.tasks.items()}
        return Part(self.place, ranges, ends, self.gaps)


class ManifestDocument(_Part, kw_only=True):
    """The members of manifest.json."""

    format: int
    version: str | None
    code_sha256: str | None
    meaning: str
    settings: dict[str, Any]
    files: dict[str, ResultFile]
    chain: str
    tasks: dict[_Task, TaskEnd] = {}
    parts: list[_Part] = []
    levels: dict[str, list[str]] = {}
    tables: dict[str, ResultFile] = {}


class _EvaluationKey(Struct):
    event_time_ms: int
    trace_id: str
    node_id: str


class _DeadLetterKey(Struct):
    topic: str
    partition: int
    offset: int


_KEYS: Final[Mapping[str, Callable[[bytes], Struct]]] = {
    EVALUATIONS: msgspec.json.Decoder(_EvaluationKey).decode,
    DEAD_LETTERS: msgspec.json.Decoder(_DeadLetterKey).decode,
}
_decode_manifest = msgspec.json.Decoder(ManifestDocument).decode


class Shard(Struct, frozen=True, dict=True):
    """A directory that `replay` or `merge` wrote. Methods raise SourceUnusable."""

    directory: Path

    @cached_property
    def manifest(self) -> ManifestDocument:
        """The manifest, with its hash checked."""
        path = self.directory / MANIFEST
        try:
            text = path.read_bytes()
        except OSError as error:
            raise SourceUnusable(
                f"{path} cannot be read: {error.strerror or error}. Name directories that "
                "`evaluator replay` or `evaluator merge` has finished."
            ) from None
        return manifest_in(text, path)

    @property
    def code(self) -> Code:
        """The code that wrote the results."""
        return Code(self.manifest.version, self.manifest.code_sha256)

    @property
    def parts(self) -> list[Part]:
        """The tasks, by place."""
        return [each.part() for each in self.manifest.parts or [self.manifest]]

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, whose hash is checked at the end; none if it is not listed."""
        path, entry = self.directory / name, self.manifest.files.get(name)
        if entry is None:
            return
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while line := file.readline(MAX_ROW_BYTES):
                    digest.update(line)
                    yield line.removesuffix(b"\n")
        except OSError as error:
            raise SourceUnusable(
                f"{path} cannot be read: {error.strerror or error}. Replay it again."
            ) from None
        if digest.hexdigest() != entry.sha256:
            raise self.damaged(name)

    def damaged(self, name: str) -> SourceUnusable:
        """The error of a file that differs from the manifest."""
        return SourceUnusable(
            f"{self.directory / name} is not the file of its manifest. Replay it again."
        )

    def rows(self, name: str, measures: MeasureSet) -> Iterator[tuple[SortKey, bytes]]:
        """Keys and lines as a replay sorts them."""
        firsts = {measures.canonical_of(name): name for name in reversed(measures.spellings)}
        columns = {name: measures.canonical.index(key) for key, name in firsts.items()}
        for line in self.lines(name):
            try:
                if name != WINDOWS:
                    yield msgspec.structs.astuple(_KEYS[name](line)), line
                    continue
                of = json.loads(line)  # sums may exceed 64 bits
                if (column := columns.get(of["measure"])) is not None:
                    key = of["start_ms"], of["model"], of["variant"], of["ranker"], column
                    yield key, b"%d %d" % (of["queries"], of["sum_units"])
            except UNREADABLE:
                raise self.damaged(name) from None

    def tally(self, measures: MeasureSet) -> Tally:
        """The counts and sums of TOTALS, and zero for each level."""
        try:
            totals = json.loads(b"\n".join(self.lines(TOTALS)))
            return tally_of(totals, measures, self.manifest.levels)
        except UNREADABLE:
            raise self.damaged(TOTALS) from None

    def settled(self) -> Iterator[tuple[bytes, int, "Shard", Iterator[bytes]]]:
        """Key of the place, number and settled rows of each task; read before the next one."""
        lines = self.lines(SETTLED)
        for part in self.parts:
            for task, end in part.tasks.items():
                yield place_key(part), task, self, islice(lines, end.settled)
        for _ in lines:
            raise self.damaged(SETTLED)


def manifest_in(text: bytes, path: object) -> ManifestDocument:
    """A manifest with its hash checked. Raises SourceUnusable, which names *path*."""
    try:
        if too_deep(text):
            raise ValueError("nested too deep")
        found = _decode_manifest(text)
        document = json.loads(text)
        origin = dict(islice(document.items(), list(document).index("counts")))
        intact = chain_of(origin, document["files"]) == found.chain
    except UNREADABLE as error:
        raise SourceUnusable(f"{path} is not a manifest of results: {error}.") from None
    if found.format != MANIFEST_FORMAT or not (found.tasks or found.parts):
        raise SourceUnusable(
            f"{path} is of format {found.format}, without the tasks that this version needs. "
            "Replay it again with this version."
        )
    if not intact:
        raise SourceUnusable(f"{path} has changed: its chain differs. Replay it again.")
    if others := found.tables.keys() - {*DERIVED}:  # the chain leaves tables out
        raise SourceUnusable(
            f"{path} has changed: {min(others)!r:.100} is not a table of results. Replay it again."
        )
    return found


def place_key(part: Part) -> bytes:
    """Orders places; equal for tasks of the same topics."""
    place = part.place or {}
    ids = place.get("topic_ids")
    return encode_document(ids if isinstance(ids, dict) and all(ids.values()) else place)


def tally_of(
    totals: Mapping[str, Any], measures: MeasureSet, levels: Mapping[str, Sequence[str]]
) -> Tally:
    """The counts and sums of a document of TOTALS, and zero for each of *levels* by segment.

    Raises an exception of UNREADABLE.
    """
    if totals["format"] != TOTALS_FORMAT:
        raise ValueError(f"a format of totals of {totals['format']}")
    tally: Tally = {
        (log, name): totals["ledger"][log][name] for log in LOGS for name in LEDGER_MEMBERS[log]
    }
    tally |= {("queries", name): totals["queries"][name] for name in QUERY_MEMBERS}
    tally |= {("dead_letters", name): totals["dead_letters"][name] for name in DEAD_LETTER_REASONS}
    tally |= {("extra", name): n for name, n in totals["extra"].items()}
    for segment, of_segment in levels.items():
        for level in of_segment:
            path: TallyPath = ("segment_running", "", "", segment, level, "", "", "queries")
            tally[path] = 0
    for row in (*totals["totals"], *totals.get("segments", ())):
        of_level = (row["segment"], row["level"]) if "level" in row else ()
        kind = f"segment_{row['kind']}" if of_level else row["kind"]
        measure = measures.canonical_of(row["measure"])
        path = (kind, row["model"], row["variant"], *of_level, row["ranker"], measure)
        tally[*path, "queries"] = row["queries"]
        tally[*path, "sum_units"] = row["sum_units"]
    if not all(type(n) is int for n in tally.values()):
        raise ValueError("a count is not an integer")
    return tally
