"""A backfill as two pure functions for engines that distribute work: one task, and the merge.

`run_task` evaluates the records of one task as `evaluator replay` does, with the same bytes, and
returns Arrow batches of one schema; `merge` adds the summaries of tasks without an error.
"""

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from evaluator.adapters.files.arrow import SortedRange
from evaluator.cli.ranges import replay_rules_of, require_no_keys
from evaluator.cli.shards import settings_in
from evaluator.cli.wiring import from_settings, segment_rules_of, stages_of, topic_names
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.tally import Tally
from evaluator.ports import RequestRefused, SourceUnusable
from evaluator.replay.manifest import Code, manifest
from evaluator.replay.parquet import (
    BATCH_BYTES,
    BATCH_ROWS,
    TABLED,
    columns_of,
    schema_of,
    table_batches,
)
from evaluator.replay.ranges import ReadRules
from evaluator.replay.results import ResultDirectory, ResultFile
from evaluator.replay.run import replay
from evaluator.replay.shards import ManifestDocument, manifest_in, tally_of
from evaluator.replay.writing import (
    DEAD_LETTERS,
    MANIFEST,
    TOTALS,
    WINDOWS,
    AtEnd,
    Part,
    levels_of,
)
from evaluator.wire.canonical import encode_document
from evaluator.wire.outputs.encoding import totals_document
from evaluator.wire.reading import refused_as
from evaluator.wire.records import MAX_RECORD_BYTES

SUMMARIES: Final = "tasks"
"""The table with a row for each task, whose line has its manifest and its totals."""
QUERIES: Final = tuple(Path(name).stem for name in TABLED)
"""Tables of queries, each with a table of their values."""
LINES: Final = {"windows": WINDOWS, "dead-letters": DEAD_LETTERS}
"""Tables with the lines of a file."""


def result_schema() -> Any:
    """The Arrow schema of all tables: the name of the table, all columns of any, and `line`."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    of_tables = (columns_of(name).values() for name in sorted(TABLED, reverse=True))
    names = dict.fromkeys(name for columns in of_tables for each in columns for name in each)
    text = pa.string()
    return pa.schema([pa.field("table", text), *schema_of(names), pa.field("line", text)])


def run_task(
    task: int,
    batches: Iterable[Any],
    settings: Settings,
    *,
    at_end: AtEnd = "settle",
    queries: Collection[str] = QUERIES,
) -> Iterator[Any]:
    """Evaluates the records of one task.

    Args:
        task: number of the partition of both logs.
        batches: Arrow record batches of the columns `log`, `offset`, `timestamp_ms`, `key` and
            `value`. The offsets of each log ascend; how the logs alternate changes no result, and
            bounds memory if it is in the order of time.
        settings: learning and alarms are left out, because they need the queries of all tasks.
        at_end: as in `evaluator replay`.
        queries: of QUERIES; the tables of others are left out.
    Yields:
        Arrow record batches of `result_schema`, after all records were read. Results are on the
        local disk meanwhile.
    Raises:
        SourceUnusable, UsageError, ResultsUnusable: as in `evaluator replay`.
    """
    require_no_keys(settings)
    settings = replace(settings, learning="off")
    measures, stages = measure_set(settings), stages_of(settings)
    read = from_settings(ReadRules, settings, stages=stages, tasks=(task,))
    options = argparse.Namespace(at_end=at_end)
    rules = replay_rules_of(options, settings, measures, read, learns=False)
    source = SortedRange(task, batches, dict.fromkeys(stages, MAX_RECORD_BYTES))
    with tempfile.TemporaryDirectory(prefix="evaluator-") as place:
        out = Path(place) / "results"
        results, names = ResultDirectory(out, force=False), topic_names(settings)
        asyncio.run(replay(source, results, rules, topic_names=names, show_progress=False))
        yield from _tables(task, out, queries)


def _tables(task: int, out: Path, queries: Collection[str]) -> Iterator[Any]:
    """The tables of the results of a task."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    schema = result_schema()

    def widened(table: str, n_rows: int, columns: dict[str, Any]) -> Any:
        """A record batch of *schema* from some of its columns."""
        columns["table"] = pa.repeat(table, n_rows)
        columns["task"] = pa.repeat(pa.scalar(task, pa.int64()), n_rows)
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(n_rows, field.type)
            for field in schema
        ]
        return pa.record_batch(arrays, schema=schema)

    for name in (name for name in TABLED if Path(name).stem in queries):
        for table, batch in table_batches(out / name):
            of = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield widened(table, len(batch), of)
    for table, name in LINES.items():
        n = 0
        for lines in _blocks(out / name):
            numbers = pa.array(range(n, n + len(lines)), pa.int64())
            yield widened(table, len(lines), {"n": numbers, "line": pa.array(lines)})
            n += len(lines)
    documents = {
        kind: json.loads((out / name).read_bytes())
        for kind, name in (("manifest", MANIFEST), ("totals", TOTALS))
    }
    yield widened(SUMMARIES, 1, {"line": pa.array([json.dumps(documents)])})


def _blocks(path: Path) -> Iterator[list[str]]:
    """The lines of a file in lists of a limited size."""
    block: list[str] = []
    n_bytes = 0
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            block.append(line.removesuffix("\n"))
            n_bytes += len(line)
            if len(block) >= BATCH_ROWS or n_bytes >= BATCH_BYTES:
                yield block
                block, n_bytes = [], 0
    if block:
        yield block


def merge(summaries: Iterable[str]) -> str:
    """The summary of all tasks of some summaries, which may be merges; the grouping is free.

    A summary is a document of `manifest` and `totals`. Equal ones count once. A merge has no count
    of windows, as tasks have some in common.

    Raises:
        RequestRefused: if a task is there twice, or meanings differ.
        SourceUnusable: if a summary is damaged, or there is none.
    """
    different = _different(summaries)
    opening = next(different, None)
    if opening is None:
        raise SourceUnusable("there is no summary of a task: the input has no records.")
    first = opening[1]
    settings = settings_in(first.settings)
    measures, segments = measure_set(settings), segment_rules_of(settings)
    part, tally, counts, codes = Part(None), Tally(), Counter[str](), set[Code]()
    for document, of in chain([opening], different):
        added = of.part()
        _require_fits(part, added, first, of)
        with refused_as(SourceUnusable, f"the summary of task {min(of.tasks)}"):
            segments.fold(add_tally(tally, tally_of(document["totals"], measures, of.levels)))
        counts.update(document["manifest"]["counts"])
        counts.pop("windows", None)
        for mine, others in zip(_members(part), _members(added), strict=True):
            mine.update(others)
        codes.add(Code(of.version, of.code_sha256))
    totals = totals_document(tally, measures, segments)
    tasks = Part(None, *(dict(sorted(of.items())) for of in _members(part)))
    members = {"settings": first.settings, **tasks.as_document()}
    if segments.names:
        members["levels"] = levels_of(tally)
    code = codes.pop() if len(codes) == 1 else Code(None, None)
    files = {TOTALS: _file_of(totals)}
    described = manifest(members, counts, files, meaning=first.meaning, code=code)
    return json.dumps({"manifest": described, "totals": totals})


def _file_of(totals: Mapping[str, Any]) -> ResultFile:
    """The file of the document of TOTALS."""
    lines = encode_document(totals, indent=2) + b"\n"
    return ResultFile(1, len(lines), sha256(lines).hexdigest())


def _different(summaries: Iterable[str]) -> Iterator[tuple[dict[str, Any], ManifestDocument]]:
    """The documents of summaries, those with one chain once. Raises SourceUnusable."""
    chains: set[str] = set()
    for text in summaries:
        with refused_as(SourceUnusable, "a summary of tasks is damaged"):
            document = json.loads(text)
            of = manifest_in(json.dumps(document["manifest"]).encode(), "its manifest")
            if of.files[TOTALS].sha256 != _file_of(document["totals"]).sha256:
                raise ValueError(f"task {min(of.tasks)} has other totals than its manifest")
        if of.chain not in chains:
            chains.add(of.chain)
            yield document, of


def _members(part: Part) -> tuple[dict[Any, Any], ...]:
    return part.ranges, part.tasks, part.gaps


def _require_fits(part: Part, added: Part, first: ManifestDocument, of: ManifestDocument) -> None:
    if twice := part.tasks.keys() & added.tasks.keys():
        raise RequestRefused(f"task {min(twice)} occurs twice and differs. Merge it once.")
    if (of.meaning, of.settings) != (first.meaning, first.settings):
        raise RequestRefused(
            f"task {min(added.tasks)} has another meaning than task {min(part.tasks)}. Evaluate "
            "all tasks with the same settings and version."
        )
