"""The files of a replay or a merge, written from sorted rows and totals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal, NamedTuple, cast

from msgspec import Struct, field
from msgspec.structs import asdict

from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import LOGS, OTHER, FinalWindow
from evaluator.core.types.segments import NO_SEGMENTS, SegmentRules
from evaluator.core.types.tally import LEVEL_KINDS, Tally
from evaluator.replay.alarms import ALARM_COMMANDS, ALARMS, AlarmReplay
from evaluator.replay.exposition import Written
from evaluator.replay.manifest import Code, described, manifest
from evaluator.replay.online_learning import WEIGHTS, OnlineLearning
from evaluator.replay.results import ResultDirectory, ResultFile, SortKey
from evaluator.wire.canonical import encode_document
from evaluator.wire.outputs import encoding as wire
from evaluator.wire.reading import Count, Int64

EVALUATIONS: Final = "evaluations.ndjson"
TOTALS: Final = "totals.json"
SETTLED: Final = "settled.ndjson"
WINDOWS: Final = "windows.ndjson"
DEAD_LETTERS: Final = "dead-letters.ndjson"
SCHEMAS: Final = "schemas.json"
MANIFEST: Final = "manifest.json"

_ALWAYS: Final = (EVALUATIONS, TOTALS, SETTLED, WINDOWS, DEAD_LETTERS)
_DOCUMENTS: Final = frozenset({TOTALS, SCHEMAS})
FILES: Final = (*_ALWAYS, ALARMS, ALARM_COMMANDS, WEIGHTS, SCHEMAS, MANIFEST)

AtEnd = Literal["settle", "hold"]

SortedRows = Callable[[str], Iterator[tuple[SortKey, bytes]]]
"""The rows of a file by its name: keys and lines, in order, once."""


class TaskEnd(Struct, frozen=True):
    """Watermark of a task whose queries are held, and its number of rows in SETTLED."""

    watermark_ms: Int64 | None
    settled: Count


class Part(Struct, frozen=True):
    """Tasks with logs in one place: offsets by partition, and the end of each task.

    `place` is the document of a Place; None for files. `gaps` are the missing offsets of archives,
    from the first to before the second.
    """

    place: Mapping[str, object] | None
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    tasks: dict[int, TaskEnd] = field(default_factory=dict)
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def as_document(self) -> dict[str, object]:
        """Members of the manifest."""
        ranges = {name: {"start": start, "end": end} for name, (start, end) in self.ranges.items()}
        tasks = {str(task): asdict(end) for task, end in self.tasks.items()}
        gaps = {"gaps": dict(sorted(self.gaps.items()))} if self.gaps else {}
        return {"place": self.place, "ranges": ranges, "tasks": tasks, **gaps}


class FileRules(Struct, frozen=True, kw_only=True):
    """Data of the files besides their rows; `settings` are a member of the manifest."""

    settings: Mapping[str, object]
    meaning: str
    measures: MeasureSet
    window_ms: int
    retention_ms: int
    at_end: AtEnd
    segments: SegmentRules = NO_SEGMENTS
    code: Code | None = None
    schemas: Callable[[], bytes] | None = None


class WrittenFiles(NamedTuple):
    """The documents of TOTALS and MANIFEST, all files but MANIFEST, the samples of OPENMETRICS."""

    totals: Mapping[str, object]
    manifest: Mapping[str, object]
    files: dict[str, ResultFile]
    samples: Written | None = None

    def commit(self, results: ResultDirectory) -> None:
        """Writes MANIFEST, with the tables that were derived, and makes all files visible."""
        tables = {"tables": described(derived)} if (derived := results.derive()) else {}
        results.write(MANIFEST, [encode_document({**self.manifest, **tables}, indent=2)])
        self.files[MANIFEST] = results.finish(MANIFEST)
        results.commit(FILES)


def write_files(
    results: ResultDirectory,
    rules: FileRules,
    parts: Sequence[Part],
    tally: Tally,
    rows: SortedRows,
    *,
    alarms: AlarmReplay | None,
    online_learning: OnlineLearning | None,
) -> WrittenFiles:
    """Writes all files but MANIFEST; the rows of SETTLED are written already."""
    totals = wire.totals_document(tally, rules.measures, rules.segments)
    results.write(EVALUATIONS, (line for _, line in rows(EVALUATIONS)))
    results.write(TOTALS, [encode_document(totals, indent=2)])
    results.write(SETTLED, [])
    results.write(WINDOWS, _window_lines(rows(WINDOWS), rules, parts))
    results.write(DEAD_LETTERS, (line for _, line in rows(DEAD_LETTERS)))
    names: tuple[str, ...] = _ALWAYS
    settings = dict(rules.settings)
    ends = rules.at_end == "settle"
    if alarms is not None:
        results.write(ALARMS, alarms.lines(results, ends=ends))
        results.write(ALARM_COMMANDS, alarms.command_lines())
        names, settings["alarms"] = (*names, ALARMS, ALARM_COMMANDS), alarms.settings
    if online_learning is not None:
        results.write(WEIGHTS, online_learning.lines(results, ends=ends))
        names, settings["learning"] = (*names, WEIGHTS), online_learning.settings
    if rules.schemas is not None:
        results.write(SCHEMAS, [rules.schemas()])
        names = (*names, SCHEMAS)
    files = {name: results.finish(name) for name in names}
    counts = {
        **{f"{log}_read": tally.get((log, "read"), 0) for log in LOGS},
        **{name.split(".")[0]: files[name].rows for name in names if name not in _DOCUMENTS},
    }
    places = [part.as_document() for part in parts]
    members: dict[str, object] = {"settings": settings, "place": None, "ranges": {}, "tasks": {}}
    members |= places[0] if len(places) == 1 else {"parts": places}
    if rules.segments.names:
        members["levels"] = levels_of(tally)
    document = manifest(members, counts, files, meaning=rules.meaning, code=rules.code)
    return WrittenFiles(totals, document, files)


def levels_of(tally: Tally) -> dict[str, list[str]]:
    """The levels with sums of their own by segment, also those without a value."""
    found: dict[str, set[str]] = {}
    for path in tally:
        if path[0] in LEVEL_KINDS and path[4] != OTHER:
            found.setdefault(path[3], set()).add(path[4])
    return {segment: sorted(levels) for segment, levels in sorted(found.items())}


def _window_lines(
    rows: Iterator[tuple[SortKey, bytes]], rules: FileRules, parts: Sequence[Part]
) -> Iterator[bytes]:
    """Windows summed over the tasks, once per spelling of each measure."""
    measures = rules.measures
    ends = [end.watermark_ms for part in parts for end in part.tasks.values()]
    for key, alike in groupby(rows, key=itemgetter(0)):
        start_ms, model, variant, ranker, column = cast("tuple[int, str, str, str, int]", key)
        deadline_ms = start_ms + rules.window_ms - 1 + rules.retention_ms
        if rules.at_end == "hold" and any(
            watermark_ms is None or watermark_ms <= deadline_ms for watermark_ms in ends
        ):
            continue  # a task can still change it
        sums = [tuple(map(int, numbers.split())) for _, numbers in alike]
        queries, sum_units = (sum(column) for column in zip(*sums, strict=True))
        merged = FinalWindow(
            start_ms, model, variant, ranker, measures.canonical[column], queries, sum_units
        )
        for window in wire.spell_windows([merged], measures):
            yield encode_document(wire.window_row(window, window_ms=rules.window_ms))
