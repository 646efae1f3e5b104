"""The report of the demo, from published figures and records."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import msgspec

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.online.views import LeaderView
from evaluator.core.types.records import LOGS
from evaluator.core.types.tally import Tally
from evaluator.demo.world import REGRESSED, REGRESSION_MS
from evaluator.exposition.snapshot import Snapshot
from evaluator.tables import format_table
from evaluator.wire.records import OutputRecord


def n_read(snapshot: Snapshot) -> int:
    """Committed messages of both logs and all tasks, without heartbeats."""
    return sum(
        view.tally.get((log, "read"), 0) - view.tally.get((log, "heartbeat"), 0)
        for view in snapshot
        for log in LOGS
    )


def total(snapshot: Snapshot) -> Tally:
    """The sum of the tallies of all tasks."""
    return reduce(add_tally, (view.tally for view in snapshot), Tally())


Series = tuple[str, str, str, str]  # model, variant, ranker, measure


class Mean(NamedTuple):
    """An exact mean: a count and a sum in units of 2^-40."""

    queries: int = 0
    units: int = 0

    @property
    def value(self) -> float:
        """The mean of at least one query."""
        return self.units / UNITS_PER_ONE / self.queries

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.queries else "-"


class _Settled(msgspec.Struct):
    """The members of a settled record that are used; watermark records have none."""

    event_time_ms: int = 0
    model: str = ""
    variant: str = ""
    grades: dict[str, float] = {}
    values: dict[str, dict[str, float]] = {}


def split_settled(
    settled: Iterable[OutputRecord], regression_ms: int
) -> dict[Series, tuple[Mean, Mean]]:
    """Settled means by series, before *regression_ms* and from then on."""
    means: dict[Series, tuple[Mean, Mean]] = {}
    read = msgspec.json.Decoder(_Settled).decode
    for query in (read(record.value) for record in settled):
        if not query.grades:  # unjudged, or a watermark record
            continue
        is_after = query.event_time_ms >= regression_ms
        for ranker, values in query.values.items():
            for measure, value in values.items():
                series = (query.model, query.variant, ranker, measure)
                before, after = means.get(series, (Mean(), Mean()))
                n, units = after if is_after else before
                mean = Mean(n + 1, units + int(value * UNITS_PER_ONE))  # a multiple of 2^-40: exact
                means[series] = (before, mean) if is_after else (mean, after)
    return means


QUALITY_TITLE: Final = """\
Quality of every ranker. Settled: each query once, an hour after its ranking. Running: with every
judgment so far. Before and after: the settled queries of the first and the second half."""

FAULT: Final = f"""\
A fault was planted in the {REGRESSED.variant} of {REGRESSED.model} at half time; it should be the \
largest decrease.
No alarm begins: alarms compare with past weeks, and these are eight hours."""

PLACES_TITLE: Final = """\
Addresses of the worker, available during the run; `make demo ARGS=--keep` keeps them until
Ctrl-C."""


def report(
    snapshot: Snapshot,
    settled: Iterable[OutputRecord],
    places: Sequence[tuple[str, str]],
    *,
    learned: str = "",
) -> str:
    """The report: largest change, learned weights, quality, ledger, addresses."""
    tally = total(snapshot)
    split = split_settled(settled, REGRESSION_MS)
    parts = [
        f"{_verdict(split)}\n{FAULT}",
        *([learned] if learned else []),
        QUALITY_TITLE,
        quality_table(tally, split),
        "Ledger: the outcome of every record.",
        ledger_table(tally),
        PLACES_TITLE,
        format_table(["what", "where"], [list(place) for place in places]),
    ]
    return "\n\n".join(parts)


def quality_table(tally: Tally, split: Mapping[Series, tuple[Mean, Mean]]) -> str:
    """One line per model, variant, ranker and measure."""
    series: list[Series] = sorted(
        (path[1], path[2], path[3], path[4])
        for path in tally
        if path[0] == "settled" and path[-1] == "queries"
    )
    header = "model variant ranker measure queries settled running before after change".split()
    rows = []
    for one in series:
        before, after = split.get(one, (Mean(), Mean()))
        settled, running = _mean(tally, "settled", one), _mean(tally, "running", one)
        change = f"{after.value - before.value:+.4f}" if before.queries and after.queries else "-"
        numbers = [str(mean) for mean in (settled, running, before, after)]
        rows.append([*one, f"{settled.queries:,}", *numbers, change])
    return format_table(header, rows, numbers=range(4, 10))


def _mean(tally: Tally, kind: str, series: Series) -> Mean:
    return Mean(
        tally.get((kind, *series, "queries"), 0), tally.get((kind, *series, "sum_units"), 0)
    )


def _verdict(split: Mapping[Series, tuple[Mean, Mean]]) -> str:
    """A sentence about the series with the largest decrease."""
    changes = {
        series: after.value - before.value
        for series, (before, after) in split.items()
        if before.queries and after.queries
    }
    if not changes:
        return "Too few queries have settled to compare the two halves."
    worst = min(changes, key=lambda series: (changes[series], series))
    model, variant, ranker, measure = worst
    before, after = split[worst]
    return (
        f"Largest decrease at half time: {model} {variant}, ranker {ranker}, {measure} "
        f"from {before} to {after} ({changes[worst]:+.4f})."
    )


LEDGER_MEANINGS: Final[Mapping[tuple[str, str], str]] = {
    ("rankings", "read"): "records of the topic rankings, the sum of the following",
    ("rankings", "malformed"): "not a valid message; kept in dead-letters with the reason",
    ("rankings", "heartbeat"): "no value, only moves the clock",
    ("rankings", "duplicate"): "the same ranking again; counts once",
    ("rankings", "conflicting"): "another ranking with the same key; the first one counts",
    ("rankings", "open"): "queries still open for judgments",
    ("rankings", "expired"): "queries past retention_ms; their figures stay",
    ("judgments", "read"): "records of the topic judgments, the sum of the following",
    ("judgments", "malformed"): "not a valid message; kept in dead-letters with the reason",
    ("judgments", "heartbeat"): "no value, only moves the clock",
    ("judgments", "duplicate"): "the same judgment again; counts once",
    ("judgments", "conflicting"): "a judgment_id again with other content; the first one counts",
    ("judgments", "late"): "older than retention_ms; kept in dead-letters",
    ("judgments", "orphan"): "no such ranking; kept in dead-letters",
    ("judgments", "over_limit"): "more than 1,000 judgments, or 10,000 candidates, of one query",
    ("judgments", "early"): "their ranking has not arrived yet",
    ("judgments", "applied"): "counted",
    ("queries", "settled"): "settled queries",
    ("queries", "settled_judged"): "of these with a judgment before maturity",
    ("queries", "settled_unjudged"): "of these without: they have no value",
    ("extra", "out_of_order"): "records far behind the clock of their log; they are not dropped",
    ("extra", "nothing_relevant"): "judged queries without a relevant candidate; they count as 0",
}


def ledger_table(tally: Tally) -> str:
    """Every count of the ledger with its meaning."""
    rows = [
        [section, name, f"{tally.get((section, name), 0):,}", words]
        for (section, name), words in LEDGER_MEANINGS.items()
    ]
    return format_table(["", "outcome", "count", "meaning"], rows, numbers=[2])


LEARNED_TITLE: Final = "Learned from the judged queries, and tested on later ones:"


def learned_text(view: LeaderView, records: Iterable[OutputRecord]) -> str:
    """Lines for each model, from the view of the leader and its published records in order."""
    documents = [json.loads(record.value) for record in records]
    lines = [LEARNED_TITLE]
    for model_view in view.models:
        mine = [one for one in documents if one["model"] == model_view.model]
        n_tested = sum(one["status"] == "challenger" for one in mine)
        promoted = [one for one in mine if one["status"] == "promoted"]
        head = (
            f"- {model_view.model}: {model_view.updates:,} updates; of {n_tested} weights tested, "
        )
        lines += [head + (_promotions(promoted) if promoted else "none is promoted so far.")]
        if promoted:
            lines.append(f"  Live: {_weights(promoted[-1])}.")
    return "\n".join(lines)


def _promotions(promoted: list[dict[str, Any]]) -> str:
    first, measure = promoted[0]["evidence"], promoted[0]["settings"]["gate"]["measure"]
    return (
        f"{len(promoted)} promoted, the first after {first['traces']:,} traces:\n"
        f"  {measure} {first['mean_difference']:+.4f} against what was served."
    )


def _weights(document: dict[str, Any]) -> str:
    pairs = zip(document["feature_names"], document["weights"], strict=True)
    return ", ".join(f"{name} {weight:.2f}" for name, weight in pairs)
