"""Formats of a report: JSON, CSV, a plain table and Markdown."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, log10
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict

from evaluator.comparison.folder import ShownRow
from evaluator.comparison.paired import Paired
from evaluator.comparison.report import Change, Comparison, Report, verdict_of
from evaluator.tables import format_table, printable

REPORT_FORMAT: Final = 1

MAX_QUERY_LETTERS: Final = 60
"""Length limit of a query in tables; JSON has the whole query."""

_FEWEST_DECIMALS: Final = 4
_MOST_DECIMALS: Final = 9
_UNDEFINED: Final = "-"


class _Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]
    numbers: list[int]


def as_json(report: Report) -> str:
    """The whole report as one document."""
    question = report.question
    document = {
        "format": REPORT_FORMAT,
        "kind": question.kind,
        "baseline": question.baseline,
        "resamples": question.resamples,
        "confidence": question.confidence,
        "seed": question.seed,
        "fail_below": question.fail_below,
        "sources": [asdict(source) for source in report.sources],
        "common": report.common,
        "judged_differently": report.judged_differently,
        "warnings": list(report.warnings),
        "comparisons": [
            {
                **_facts(comparison, report),
                **({} if question.by is None else _by_level(comparison)),
                "changes": _changes(comparison, report),
            }
            for comparison in report.comparisons
        ],
    }
    if question.by is not None:
        document["by"] = question.by
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def as_csv(report: Report) -> str:
    """One row per ranker and measure; an empty cell is an undefined number.

    With a segment, the row has an empty level, and is followed by one row per level.
    """
    file = io.StringIO()
    rows = list(_csv_rows(report))
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        fails = "" if row["fails"] is None else str(row["fails"]).lower()
        writer.writerow({**row, "fails": fails})
    return file.getvalue()


def _csv_rows(report: Report) -> Iterator[dict[str, Any]]:
    for comparison in report.comparisons:
        total = _facts(comparison, report)
        if report.question.by is None:
            yield total
            continue
        yield {"level": "", **total, "p_holm": None}
        names = {"ranker": comparison.ranker, "measure": comparison.measure}
        for level in _by_level(comparison)["levels"]:
            yield {**dict.fromkeys(total), **names, **level}


def _facts(comparison: Comparison, report: Report) -> dict[str, Any]:
    """The members of a comparison in JSON and CSV."""
    limit = report.question.fail_below
    return {
        "ranker": comparison.ranker,
        "measure": comparison.measure,
        **_numbers(comparison.paired, comparison.measure),
        "only_baseline": comparison.only_baseline,
        "only_ranker": comparison.only_ranker,
        "fails": None if limit is None else comparison.fails(limit),
    }


def _numbers(result: Paired | None, measure: str) -> dict[str, Any]:
    """The members of pairs."""
    interval = result and result.interval
    return {
        "pairs": result.pairs if result else 0,
        "traces": result.traces if result else 0,
        "baseline_mean": result and result.baseline_mean,
        "ranker_mean": result and result.other_mean,
        "difference": result and result.difference,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "verdict": verdict_of(result, measure),
        "wins": result.wins if result else 0,
        "ties": result.ties if result else 0,
        "losses": result.losses if result else 0,
        "p": result and result.p,
    }


def _by_level(comparison: Comparison) -> dict[str, Any]:
    """The levels of a comparison, and the difference of all queries with the part of the mix."""
    return {
        "levels": [
            {
                "level": level.name,
                **_numbers(level.paired, comparison.measure),
                "p_holm": level.p_holm,
            }
            for level in comparison.levels
        ],
        "mix": comparison.mix and asdict(comparison.mix),
    }


def _changes(comparison: Comparison, report: Report) -> list[dict[str, Any]]:
    def side(row: ShownRow, ranker: str, value: float) -> dict[str, Any]:
        return {"value": value, "rank": row.rank.get(ranker), "top3": row.top3.get(ranker)}

    baseline = report.question.baseline
    return [
        {
            "trace_id": change.baseline_row.trace_id,
            "node_id": change.baseline_row.node_id,
            "event_time_ms": change.baseline_row.event_time_ms,
            "query": change.baseline_row.query,
            "difference": change.difference,
            "judged_differently": change.judged_differently,
            "baseline": side(change.baseline_row, baseline, change.baseline_value),
            "ranker": side(change.ranker_row, comparison.ranker, change.ranker_value),
        }
        for change in comparison.changes
    ]


def as_table(report: Report) -> str:
    """Plain text for a terminal or a file."""
    parts = [_introduction(report)]
    for table in _tables(report):
        text = format_table(table.header, table.rows, numbers=table.numbers)
        parts.append(f"{table.title}\n{text}" if table.title else text)
    return "\n\n".join(parts) + "\n"


def as_markdown(report: Report) -> str:
    """The tables in Markdown."""
    parts = [_introduction(report)]
    for table in _tables(report):
        if table.title:
            parts.append(f"**{_markdown_cell(table.title)}**")
        marks = ["---:" if i in table.numbers else "---" for i in range(len(table.header))]
        lines = [list(map(_markdown_cell, row)) for row in (table.header, *table.rows)]
        lines.insert(1, marks)
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def _markdown_cell(text: str) -> str:
    """The text with Markdown escapes, which an underscore within a name does not need."""
    return re.sub(r"[\\`*\[\]<|~&]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def _introduction(report: Report) -> str:
    question = report.question
    baseline = printable(question.baseline)
    if len(report.sources) == 1:
        compared = f"Rankers and {baseline}: {question.kind} values, {report.common:,} queries."
    else:
        first, second = (f"{source.rows:,}" for source in report.sources)
        compared = (
            f"Rankers of the second source and {baseline} of the first: {question.kind} "
            f"values, {report.common:,} queries in both, of {first} and {second}."
        )
    return (
        f"{compared}\nDifference: ranker - {baseline} on the same queries. Interval and p: "
        f"bootstrap and sign flips by trace, {question.resamples:,} resamples, seed "
        f"{question.seed}."
    )


def _tables(report: Report) -> list[_Table]:
    changes = [_change_table(one, report) for one in report.comparisons if one.changes]
    levels = [_level_table(one, report) for one in report.comparisons if one.levels]
    return [_difference_table(report), _count_table(report), *levels, *changes]


def _difference_table(report: Report) -> _Table:
    intervals = [one.paired.interval for one in report.comparisons if one.paired is not None]
    decimals = _decimals([one.high - one.low for one in intervals if one is not None])
    percent = f"{report.question.confidence * 100:.10g} %"
    header = ["ranker", "measure", "pairs", "traces", printable(report.question.baseline)]
    header += ["ranker", "difference", f"{percent} from", "to", "verdict"]
    rows = []
    for comparison in report.comparisons:
        facts = _facts(comparison, report)
        row = [*_names(comparison), f"{facts['pairs']:,}", f"{facts['traces']:,}"]
        row += [_number(facts[name], f".{decimals}f") for name in ("baseline_mean", "ranker_mean")]
        row += [_number(facts[name], f"+.{decimals}f") for name in ("difference", "low", "high")]
        rows.append([*row, comparison.verdict])
    return _Table("", header, rows, list(range(2, 9)))


def _count_table(report: Report) -> _Table:
    header = ["ranker", "measure", "wins", "ties", "losses", "p"]
    header += [f"only {printable(report.question.baseline)}", "only ranker"]
    rows = []
    for comparison in report.comparisons:
        facts = _facts(comparison, report)
        row = [*_names(comparison), *(f"{facts[name]:,}" for name in ("wins", "ties", "losses"))]
        row += [_number(facts["p"], ".2g"), f"{facts['only_baseline']:,}"]
        rows.append([*row, f"{facts['only_ranker']:,}"])
    return _Table("", header, rows, list(range(2, 8)))


def _level_table(comparison: Comparison, report: Report) -> _Table:
    by, ranker = printable(report.question.by or ""), printable(comparison.ranker)
    title = f"{printable(comparison.measure)} of {ranker} by {by}, the largest difference first:"
    levels = _by_level(comparison)["levels"]
    decimals = _decimals([one["high"] - one["low"] for one in levels if one["low"] is not None])
    percent = f"{report.question.confidence * 100:.10g} %"
    header = [by, "pairs", "traces", printable(report.question.baseline), "ranker", "difference"]
    header += [f"{percent} from", "to", "verdict", "wins", "ties", "losses", "p (Holm)"]
    rows = []
    for one in levels:
        row = [_shortened(one["level"]), f"{one['pairs']:,}", f"{one['traces']:,}"]
        row += [_number(one[name], f".{decimals}f") for name in ("baseline_mean", "ranker_mean")]
        row += [_number(one[name], f"+.{decimals}f") for name in ("difference", "low", "high")]
        row += [one["verdict"], *(f"{one[name]:,}" for name in ("wins", "ties", "losses"))]
        rows.append([*row, _number(one["p_holm"], ".2g")])
    return _Table(title, header, rows, [*range(1, 8), *range(9, 13)])


def _change_table(comparison: Comparison, report: Report) -> _Table:
    baseline, ranker = report.question.baseline, comparison.ranker
    n = len(comparison.changes)
    which = "The query" if n == 1 else f"The {n} queries"
    sides = _arrow(printable(baseline), printable(ranker))
    if len(report.sources) > 1:
        sides = _arrow(f"{printable(baseline)} of the first", f"{printable(ranker)} of the second")
    title = f"{which} that changed most in {printable(comparison.measure)}, {sides}:"
    decimals = _decimals([abs(change.difference) for change in comparison.changes])
    columns: list[tuple[str, Callable[[Change], str]]] = [
        ("difference", lambda change: f"{change.difference:+.{decimals}f}"),
        ("value", lambda change: _arrow(*_values(change, decimals))),
    ]
    if any(change.judged_differently for change in comparison.changes):
        columns.append(("grades", lambda change: "differ" if change.judged_differently else "same"))
    if any(change.baseline_row.rank for change in comparison.changes):
        columns.append(("first relevant", lambda change: _arrow(*_ranks(change, baseline, ranker))))
    columns += [
        ("trace_id", lambda change: printable(change.baseline_row.trace_id)),
        ("node_id", lambda change: printable(change.baseline_row.node_id)),
        ("event time", lambda change: utc_text(change.baseline_row.event_time_ms)),
    ]
    if any(change.baseline_row.query for change in comparison.changes):
        columns.append(("query", lambda change: _shortened(change.baseline_row.query or "")))
    if any(change.baseline_row.top3 for change in comparison.changes):
        columns.append(("on top", lambda change: _arrow(*_tops(change, baseline, ranker))))
    rows = [[cell(change) for _, cell in columns] for change in comparison.changes]
    return _Table(title, [name for name, _ in columns], rows, [0])


def _names(comparison: Comparison) -> tuple[str, str]:
    return printable(comparison.ranker), printable(comparison.measure)


def _values(change: Change, decimals: int) -> tuple[str, str]:
    return f"{change.baseline_value:.{decimals}f}", f"{change.ranker_value:.{decimals}f}"


def _ranks(change: Change, baseline: str, ranker: str) -> tuple[str, str]:
    ranks = change.baseline_row.rank.get(baseline), change.ranker_row.rank.get(ranker)
    one, other = (_UNDEFINED if rank is None else str(rank) for rank in ranks)
    return one, other


def _tops(change: Change, baseline: str, ranker: str) -> tuple[str, str]:
    def top(listed: Mapping[str, Sequence[tuple[str, float | None]]], name: str) -> str:
        first = listed.get(name)
        return _shortened(first[0][0]) if first else _UNDEFINED

    return top(change.baseline_row.top3, baseline), top(change.ranker_row.top3, ranker)


def _arrow(one: str, other: str) -> str:
    return f"{one} -> {other}"


def _decimals(sizes: Iterable[float]) -> int:
    """Decimals that show two digits of the smallest size above 0."""
    needed = [ceil(1 - log10(size)) for size in sizes if size > 0]
    return min(_MOST_DECIMALS, max([_FEWEST_DECIMALS, *needed]))


def _number(number: float | None, form: str) -> str:
    """A number without a negative zero, or a dash for an undefined one."""
    if number is None:
        return _UNDEFINED
    text = format(number, form)
    return text if text.strip("+-0.,") else format(0, form)


def utc_text(event_time_ms: int) -> str:
    """The time as ISO 8601 in UTC; beyond the year 9999 the number."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=event_time_ms)
    except OverflowError:  # beyond the year 9999
        return str(event_time_ms)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _shortened(text: str) -> str:
    return cut(printable(" ".join(text.split())))


def cut(text: str) -> str:
    """The text up to MAX_QUERY_LETTERS."""
    return text if len(text) <= MAX_QUERY_LETTERS else f"{text[: MAX_QUERY_LETTERS - 1]}…"
