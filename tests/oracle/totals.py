"""`totals.json` of the oracle for any number of tasks."""

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cramjam import zstd

from tests.oracle.measures import ONE, canonical
from tests.oracle.messages import (
    Raw,
    read_judgments,
    read_rankings,
)
from tests.oracle.oracle import Settings, Tally, Task, fold, judge
from tests.oracle.refusals import MAX_FUTURE_SKEW_MS, by_the_models

LEDGER = {
    "rankings": (
        "read",
        "malformed",
        "heartbeat",
        "duplicate",
        "conflicting",
        "left_out",
        "open",
        "expired",
    ),
    "judgments": (
        "read",
        "malformed",
        "heartbeat",
        "duplicate",
        "conflicting",
        "late",
        "orphan",
        "over_limit",
        "left_out",
        "early",
        "applied",
    ),
}
QUERIES = (
    *("started", "with_value", "settled"),
    *("settled_judged", "settled_silent", "settled_unjudged"),
)
TaskRaws = tuple[Iterable[Raw], Iterable[Raw]]
"""The prefixes of `rankings` and `judgments` of one task."""


def judge_raws(
    raws: TaskRaws,
    settings: Settings,
    *,
    at_end: bool = False,
    max_future_skew_ms: int = MAX_FUTURE_SKEW_MS,
) -> Task:
    """One task from records as bytes."""
    rankings = read_rankings(raws[0], by_the_models("rankings", max_future_skew_ms))
    judgments = read_judgments(raws[1], by_the_models("judgments", max_future_skew_ms))
    return judge(rankings, judgments, settings, at_end=at_end)


def totals_of_records(
    tasks: Mapping[int, TaskRaws],
    settings: Settings,
    *,
    at_end: bool = False,
    max_future_skew_ms: int = MAX_FUTURE_SKEW_MS,
) -> dict[str, Any]:
    """The structure of `totals.json`, all tasks merged.

    Args:
        tasks: by task, the raw records of both inputs from the start of the prefix.
        at_end: True for `--at-end settle`, False for `hold` and for a live worker.
    """
    return totals_of_tasks(
        (
            judge_raws(raws, settings, at_end=at_end, max_future_skew_ms=max_future_skew_ms)
            for raws in tasks.values()
        ),
        settings,
    )


def totals_of_tasks(tasks: Iterable[Task], settings: Settings) -> dict[str, Any]:
    """The structure of `totals.json` from the sum of the tallies of tasks."""
    tally: Tally = {}
    for task in tasks:
        for path, count in task.tally().items():
            tally[path] = tally.get(path, 0) + count
    tally = fold(tally, settings)
    return {
        "format": 2,
        "ledger": {
            log: {name: tally.get((log, name), 0) for name in names}
            for log, names in LEDGER.items()
        },
        "dead_letters": members(tally, "dead_letters"),
        "queries": {name: tally.get(("queries", name), 0) for name in QUERIES},
        "extra": members(tally, "extra"),
        "totals": rows(tally, settings),
        **({"segments": level_rows(tally, settings)} if settings.segments else {}),
    }


def level_rows(tally: Tally, settings: Settings) -> list[dict[str, Any]]:
    """One row for each kind, labels and configured spelling with at least one query."""
    spellings = settings.segment_measures or settings.spellings
    found = []
    for path in sorted({path[:-2] for path in tally if path[0].startswith("segment_")}):
        if len(path) == 6:
            for spelling in spellings:
                measured = row(tally, path, spelling)
                if measured["queries"]:
                    found.append(measured)
    return found


def members(tally: Tally, section: str) -> dict[str, int]:
    """The counts of a section by name."""
    return {path[1]: count for path, count in sorted(tally.items()) if path[0] == section}


def rows(tally: Tally, settings: Settings) -> list[dict[str, Any]]:
    """One row for each kind, model, variant, ranker and configured spelling, even if empty."""
    found = sorted(
        {path[:4] for path in tally if path[0] in ("running", "settled") and len(path) == 6}
    )
    return [row(tally, path, spelling) for path in found for spelling in settings.spellings]


def row(tally: Tally, path: tuple[str, ...], spelling: str) -> dict[str, Any]:
    """A row; its mean is the double nearest to the exact quotient."""
    kind, model, variant, *level, ranker = path
    queries = tally[(*path, canonical(spelling), "queries")]
    sum_units = tally[(*path, canonical(spelling), "sum_units")]
    return {
        "kind": kind.removeprefix("segment_"),
        "model": model,
        "variant": variant,
        "ranker": ranker,
        "measure": spelling,
        **dict(zip(("segment", "level"), level, strict=False)),
        "queries": queries,
        "sum_units": sum_units,
        "mean": sum_units / (queries * ONE) if queries else None,
    }


def comparable(totals: Mapping[str, Any]) -> dict[str, Any]:
    """*totals* without the parts that the format leaves open: means, empty rows, order, other
    extras.

    The seven reasons of malformed records are merged, because their priority is not specified.
    """
    named = {"late", "orphan", "conflicting", "over_limit"}
    letters = {name: n for name, n in totals["dead_letters"].items() if n}
    return {
        "ledger": totals["ledger"],
        "queries": totals["queries"],
        "out_of_order": totals["extra"].get("out_of_order", 0),
        "dead_letters": {name: n for name, n in letters.items() if name in named},
        "dead_letters_malformed": sum(n for name, n in letters.items() if name not in named),
        "totals": {
            (r["kind"], r["model"], r["variant"], r["ranker"], r["measure"]): (
                r["queries"],
                r["sum_units"],
            )
            for r in totals["totals"]
            if r["queries"]
        },
        "segments": [{k: v for k, v in r.items() if k != "mean"} for r in totals["segments"]]
        if "segments" in totals
        else None,
    }


def totals_of_files(directory: Path, settings: Settings, *, at_end: bool = True) -> dict[str, Any]:
    """The same for a file source with all its partitions, compressed or not."""
    tasks = {task: (rankings, judgments) for task, rankings, judgments in file_tasks(directory)}
    return totals_of_records(tasks, settings, at_end=at_end)


def file_tasks(directory: Path) -> Iterable[tuple[int, list[Raw], list[Raw]]]:
    """Files by partition; a missing file of a pair is an empty log."""
    by_task: dict[int, dict[str, list[Raw]]] = {}
    for path in sorted(directory.glob("*.ndjson*")):
        log, _, task = path.name.split(".")[0].partition("-")
        if log in ("rankings", "judgments"):
            by_task.setdefault(int(task or 0), {})[log] = file_records(path)
    for number, logs in sorted(by_task.items()):
        yield number, logs.get("rankings", []), logs.get("judgments", [])


def file_records(path: Path) -> list[Raw]:
    """Only a newline ends a line, a final one adds none, and the line number is the offset."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if path.suffix == ".zst":
        content = bytes(zstd.decompress(content))
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [Raw(n, None, line.removesuffix(b"\r")) for n, line in enumerate(lines)]
