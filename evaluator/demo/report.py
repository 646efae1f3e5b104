"""What the demo says at the end; every figure is one that the worker published or produced."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import LOGS, Tally
from evaluator.demo.world import RECOMMENDERS, DemoWorld
from evaluator.exposition.snapshot import Snapshot
from evaluator.tables import format_table
from evaluator.wire.records import OutputRecord


def n_read(snapshot: Snapshot) -> int:
    """Messages read and committed, of both logs and all tasks; heartbeats are not messages."""
    return sum(
        view.tally.get((log, "read"), 0) - view.tally.get((log, "heartbeat"), 0)
        for view in snapshot
        for log in LOGS
    )


def total(snapshot: Snapshot) -> Tally:
    """The tallies of all tasks, added up."""
    tally: Tally = {}
    for view in snapshot:
        add_tally(tally, view.tally)
    return tally


Series = tuple[str, str, str, str]  # model, variant, ranker, measure


class Mean(NamedTuple):
    """An exact mean: a count and a sum in units of 2^-40."""

    queries: int = 0
    units: int = 0

    @property
    def value(self) -> float:
        """Of at least one query."""
        return self.units / UNITS_PER_ONE / self.queries

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.queries else "-"


class _Settled(msgspec.Struct):
    """What is looked at of a record; a mark has none of it."""

    event_time_ms: int = 0
    model: str = ""
    variant: str = ""
    grades: dict[str, float] = {}
    values: dict[str, dict[str, float]] = {}


def split_settled(
    settled: Iterable[OutputRecord], regression_ms: int
) -> dict[Series, tuple[Mean, Mean]]:
    """Settled means per series, of the queries before *regression_ms* and from it on."""
    counts: tuple[Counter[Series], Counter[Series]] = (Counter(), Counter())
    units: tuple[Counter[Series], Counter[Series]] = (Counter(), Counter())
    read = msgspec.json.Decoder(_Settled).decode
    for query in (read(record.value) for record in settled):
        if not query.grades:  # unjudged, or a mark without a query
            continue
        side = query.event_time_ms >= regression_ms
        for ranker, values in query.values.items():
            for measure, value in values.items():
                series = (query.model, query.variant, ranker, measure)
                counts[side][series] += 1
                units[side][series] += int(value * UNITS_PER_ONE)  # a multiple of 2^-40: exact
    both = counts[0] | counts[1]
    return {
        series: (
            Mean(counts[0][series], units[0][series]),
            Mean(counts[1][series], units[1][series]),
        )
        for series in both
    }


QUALITY_WORDS: Final = """\
Quality of every ranker. Settled: each query once, an hour after it was ranked. Running: with
every judgment so far. Before and after: the settled queries, split at half time."""


LOOK_WORDS: Final = """\
Where to look. The worker's addresses were up during the run; `make demo ARGS=--keep` leaves them
up until Ctrl-C."""


def report(
    world: DemoWorld,
    snapshot: Snapshot,
    settled: Iterable[OutputRecord],
    look_at: Sequence[tuple[str, str]],
    *,
    learned: str = "",
) -> str:
    """The whole report: what changed, what was learned, quality, ledger, where to look."""
    tally = total(snapshot)
    split = split_settled(settled, world.regression_ms)
    parts = [
        f"{_verdict(split)}\n{_fault_words()}",
        *([learned] if learned else []),
        QUALITY_WORDS,
        quality_table(tally, split),
        "Ledger: where every record went.",
        ledger_table(tally),
        LOOK_WORDS,
        format_table(["what", "where"], [list(place) for place in look_at]),
    ]
    return "\n\n".join(parts)


def quality_table(tally: Tally, split: Mapping[Series, tuple[Mean, Mean]]) -> str:
    """One line per model, variant, ranker and measure that was measured."""
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
    """The largest fall of any series, in a sentence."""
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
        f"Largest fall at half time: {model} {variant}, ranker {ranker}, {measure} "
        f"from {before} to {after} ({changes[worst]:+.4f})."
    )


def _fault_words() -> str:
    """What the world did on purpose."""
    planted = " and ".join(
        f"{one.variant} of {one.model}" for one in RECOMMENDERS if one.noise[0] != one.noise[1]
    )
    return f"A fault was planted in the {planted} at half time; it should be the largest fall."


LEDGER_WORDS: Final[Mapping[tuple[str, str], str]] = {
    ("rankings", "read"): "records of the topic rankings, the sum of the following",
    ("rankings", "malformed"): "not a valid message; kept in dead-letters with the reason",
    ("rankings", "heartbeat"): "no value, only moves the clock",
    ("rankings", "duplicate"): "the same ranking again; counts once",
    ("rankings", "conflicting"): "another ranking for a taken key; the first one counts",
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
    ("judgments", "early"): "their ranking has not come yet",
    ("judgments", "applied"): "counted",
    ("queries", "settled"): "settled queries",
    ("queries", "settled_judged"): "of these with a judgment in time",
    ("queries", "settled_unjudged"): "of these without: no value, never zero",
    ("extra", "out_of_order"): "records far behind their log's clock; none is dropped for it",
    ("extra", "nothing_relevant"): "judged queries without a relevant candidate; they count as 0",
}


def ledger_table(tally: Tally) -> str:
    """Every count of the ledger, with plain words."""
    rows = [
        [section, name, f"{tally.get((section, name), 0):,}", words]
        for (section, name), words in LEDGER_WORDS.items()
    ]
    return format_table(["", "outcome", "count", "meaning"], rows, numbers=[2])
