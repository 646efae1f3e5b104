"""The dashboard *Quality*: values of measures, their changes and their reliability."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from scripts.dashboards.boards import (
    DELAY,
    N_FIRING,
    OF,
    PAIR,
    PROMOTIONS,
    SERIES,
    WHOSE,
    Panel,
    board,
    filled,
    with_bounds,
)


def increases(name: str, labels: str, by: str, window: str, offset: str = "") -> str:
    """The increase of a counter by job and further labels."""
    return f"sum by (job, {by}) (increase({name}{{{labels}}}[{window}]{offset}))"


def mean_of_counters(window: str, offset: str = "") -> str:
    """The equal of the recorded quality_mean, computed from the counters."""
    by = "model, variant, ranker, measure"
    score = increases("evaluator_quality_value_total", OF, by, window, offset)
    queries = increases("evaluator_quality_queries_total", OF, by, window, offset)
    return f"{score} / ({queries} > 0)"


def coverage(offset: str = "") -> str:
    """The recorded figure, or the counters if none was recorded."""
    by = "model, variant"
    name = "evaluator_queries_settled_total"
    judged = increases(name, PAIR + ',judged="yes"', by, "1h", offset)
    settled = increases(name, PAIR, by, "1h", offset)
    return f"evaluator:coverage:ratio1h{{{PAIR}}}{offset} or {judged} / ({settled} > 0)"


# Loaded history has counters but mostly no recorded figures (docs/backfill.md), so the counters are
# used where nothing was recorded.
MEAN_1H: Final = f"evaluator:quality_mean:ratio1h{{{OF}}} or {mean_of_counters('1h')}"
MEAN_1D: Final = f"evaluator:quality_mean:ratio1d{{{OF}}} or {mean_of_counters('1d')}"
QUERIES_1H: Final = f"evaluator:quality_queries:increase1h{{{OF}}} or " + increases(
    "evaluator_quality_queries_total", OF, "model, variant, ranker, measure", "1h"
)

QUALITY_NOW: Final = [
    Panel(
        title="Mean of the last hour",
        text="Mean of the queries that settled within the last hour. A settled query was ranked one"
        " maturity_ms before.",
        runbook="EvaluatorObjectiveAlarm",
        targets=[(MEAN_1H, WHOSE)],
        unit="none",
        decimals=3,
        width=8,
    ),
    Panel(
        title="Change to last week",
        text="The mean of the last hour minus that of the same hour last week. Empty during the"
        " first week, and while either hour has too few queries.",
        runbook="EvaluatorQualityAlarm",
        targets=[(f"evaluator:quality_change:ratio1h{{{OF}}}", WHOSE)],
        unit="none",
        decimals=3,
        width=8,
    ),
    Panel(
        title="Judged in time",
        text="Share of the settled queries that had a judgment: quality is measured on these only.",
        runbook="EvaluatorCoverageAlarm",
        also=("EvaluatorJudgedShareLow",),
        targets=[(coverage(), "{{model}}/{{variant}}")],
        unit="percentunit",
        decimals=1,
        width=4,
    ),
    Panel(
        title="Alerts firing",
        text="All firing alerts of the evaluator.",
        runbook="EvaluatorQualityAlarm",
        targets=[(N_FIRING, "firing")],
        red=1,
        width=4,
    ),
]
QUALITY: Final = [
    Panel(
        title="Mean by the hour, with its bounds",
        text="Sliding mean of one hour. The bounds are for a whole week of evaluations, and"
        " account for queries of one trace that succeed together.",
        runbook="EvaluatorQualityAlarm",
        targets=with_bounds(
            f"evaluator:quality_mean:ratio1h{{{OF}}}",
            f"evaluator:quality_stderr:ratio1h{{{OF}}}",
            WHOSE,
            shown=MEAN_1H,
        ),
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Change to the same hour last week, with its bounds",
        text="A comparison of two hours. Alerts use alarms, which consider more of the past.",
        runbook="EvaluatorQualityAlarm",
        targets=[
            *with_bounds(
                f"evaluator:quality_change:ratio1h{{{OF}}}",
                f"evaluator:quality_change_stderr:ratio1h{{{OF}}}",
                WHOSE,
            ),
        ],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Mean by the day",
        text="Sliding mean of 24 hours: slow changes.",
        runbook="EvaluatorQualityAlarm",
        targets=with_bounds(
            f"evaluator:quality_mean:ratio1d{{{OF}}}",
            f"evaluator:quality_stderr:ratio1d{{{OF}}}",
            WHOSE,
            shown=MEAN_1D,
        ),
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Running mean of each worker",
        text="Over all queries with a value so far, corrected by each judgment. It is available at"
        " once; no alert uses it.",
        runbook="EvaluatorQualityAlarm",
        targets=[(f"evaluator_running_value_mean{{{OF}}}", "{{instance}} " + WHOSE)],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Settled queries with a value in an hour",
        text="The basis of the means. An hour below the limit is not compared.",
        runbook="EvaluatorQualityAlarm",
        targets=[
            (QUERIES_1H, WHOSE),
            ("evaluator:min_queries", "limit"),
        ],
    ),
]
QUALITY.insert(
    0,
    Panel(
        title="Overview, the largest loss first",
        text="Change from the same hour last week to the last hour, its mean and its queries. Rows"
        " without a change are new, or have too few queries.",
        runbook="EvaluatorQualityAlarm",
        targets=[
            (f"evaluator:quality_change:ratio1h{{{OF}}}", "change"),
            (MEAN_1H, "mean"),
            (QUERIES_1H, "queries"),
        ],
        unit="none",
        decimals=3,
        rows=True,
    ),
)
WATCHED: Final = "{{model}}/{{variant}} {{ranker}} {{measure}} {{segment}} {{level}} {{kind}}"
OF_ALARMS: Final = 'job=~"$job",model=~"$model",variant=~"(.+-)?$variant(-.+)?"'
"""Alarms of a variant, and of names that begin or end with it, as the pair `canary-prod`."""


def day(name: str) -> str:
    """A figure of the last day of watched series."""
    return f"max by (job, {SERIES}) (evaluator_alarm_day_{name}{{{OF_ALARMS}}})"


ALARMS: Final = [
    Panel(
        title="Evidence of alarms",
        text="Share of the evidence that an alarm needs, for each watched series. At 1 an alarm"
        " begins; it stays on until the level is back.",
        runbook="EvaluatorQualityAlarm",
        also=(
            "EvaluatorPairAlarm",
            "EvaluatorVariantsAlarm",
            "EvaluatorObjectiveAlarm",
            "EvaluatorCoverageAlarm",
        ),
        targets=[
            (
                (f"max without (instance, pod) (evaluator_alarm_evidence_ratio{{{OF_ALARMS}}})"),
                WATCHED,
            ),
            ("vector(1)", "limit"),
        ],
        unit="none",
        decimals=2,
    ),
    Panel(
        title="Last day of watched series, and the expected level",
        text="Mean of the last 24 hours, the expected mean by the reference, and bounds: twice the"
        " standard deviation of their difference, from the days of the reference and from chance."
        " An alarm also considers 1 hour, 6 hours and 7 days.",
        runbook="EvaluatorQualityAlarm",
        targets=[
            (day("mean"), f"{WATCHED} level"),
            (day("expected_mean"), f"{WATCHED} expected"),
            (f"{day('expected_mean')} - 2 * {day('spread')}", f"{WATCHED} lower bound"),
            (f"{day('expected_mean')} + 2 * {day('spread')}", f"{WATCHED} upper bound"),
        ],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Watched series, the most evidence first",
        text="Evidence, whether the alarm is on, the weeks of the reference, of which two are"
        " needed, and how many of the four windows have enough queries: with 0, none is compared."
        " `evaluator alarms list` has level, expected level and onset.",
        runbook="EvaluatorQualityAlarm",
        targets=[
            (f"max by (job, {SERIES}) (evaluator_alarm_{name}{{{OF_ALARMS}}})", head)
            for name, head in (
                ("evidence_ratio", "evidence"),
                ("active", "on"),
                ("reference_weeks", "weeks"),
                ("usable_windows", "windows"),
            )
        ],
        unit="none",
        decimals=2,
        rows=True,
        most_first=True,
    ),
]
LEVEL: Final = OF + ',segment=~"$segment"'
BY_LEVEL: Final = "model, variant, ranker, measure, segment, level"
MEAN_OF_LEVELS: Final = (
    increases("evaluator_segment_value_total", LEVEL, BY_LEVEL, "1h")
    + " / ("
    + increases("evaluator_segment_queries_total", LEVEL, BY_LEVEL, "1h")
    + " > 0)"
)
_OF_LEVELS: Final = ("evaluator_segment_queries_settled_total", PAIR + ',segment=~"$segment"')
_PER_LEVEL: Final = "model, variant, segment, level"
SEGMENTS: Final = [
    Panel(
        title="Mean of levels by the hour",
        text="Sliding mean of one hour of each level of the segments in `segments`: declared levels"
        " and large ones, the rest is __other__.",
        runbook="EvaluatorQualityAlarm",
        targets=[(MEAN_OF_LEVELS, WHOSE + " {{segment}}={{level}}")],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Levels minus all queries, the worst first",
        text="Mean of the last hour of a level, minus that of all queries of its model, variant,"
        " ranker and measure.",
        runbook="EvaluatorQualityAlarm",
        targets=[
            (
                (
                    f"({MEAN_OF_LEVELS}) - on (job, model, variant, ranker, measure)"
                    f" group_left () ({MEAN_1H})"
                ),
                "difference",
            )
        ],
        unit="none",
        decimals=3,
        rows=True,
    ),
    Panel(
        title="Judged in time, by level",
        text="Share of the settled queries of a level that had a judgment.",
        runbook="EvaluatorCoverageAlarm",
        targets=[
            (
                increases(_OF_LEVELS[0], _OF_LEVELS[1] + ',judged="yes"', _PER_LEVEL, "1h")
                + " / ("
                + increases(*_OF_LEVELS, _PER_LEVEL, "1h")
                + " > 0)",
                "{{model}}/{{variant}} {{segment}}={{level}}",
            )
        ],
        unit="percentunit",
        decimals=1,
    ),
]
VALUES: Final = Panel(
    heat=True,
    title="How the values spread",
    text="Settled queries by value, of the measures in histogram_measures. Points are exemplars:"
    " traces of queries with a low value.",
    runbook="EvaluatorBadQueries",
    targets=[
        (
            f"sum by (le) (increase(evaluator_quality_values_bucket{{{OF}}}[$__rate_interval]))",
            "{{le}}",
        )
    ],
)
QUALITY.append(
    Panel(
        title="Share of bad queries",
        text="Queries with a value of at most 0.1, of the measures in histogram_measures, over an"
        " hour and over five minutes. An alert fires when both are beyond the limit.",
        runbook="EvaluatorBadQueries",
        also=("EvaluatorBadQueriesUnwatched",),
        targets=[
            (f"evaluator:bad_share:ratio1h{{{OF}}}", WHOSE),
            (f"evaluator:bad_share:ratio5m{{{OF}}}", f"{WHOSE} within 5 minutes"),
            (
                (
                    'evaluator:bad_share_accepted{measure=~"$measure"}'
                    " * scalar(evaluator:bad_share_burn)"
                ),
                "{{measure}} limit",
            ),
        ],
        unit="percentunit",
        decimals=1,
    )
)
JUDGMENTS: Final = [
    Panel(
        title="Judged in time, and last week",
        text="Share of the settled queries that had a judgment. If it changes, a change of quality"
        " is not reliable.",
        runbook="EvaluatorCoverageAlarm",
        targets=[
            (coverage(), "{{model}}/{{variant}}"),
            (coverage(" offset 1w"), "{{model}}/{{variant}} last week"),
        ],
        unit="percentunit",
    ),
    DELAY,
    Panel(
        title="Judged, but nothing relevant",
        text="Share of the judged settled queries without any relevant candidate: no ranker can do"
        " well on them.",
        runbook="EvaluatorQualityAlarm",
        targets=[
            (
                (
                    'sum(increase(evaluator_queries_nothing_relevant_total{job=~"$job"}[1h]))'
                    " / sum(increase(evaluator_queries_settled_total"
                    '{job=~"$job",judged="yes"}[1h]))'
                ),
                "nothing relevant",
            )
        ],
        unit="percentunit",
        decimals=1,
    ),
    Panel(
        title="Judgments without a ranking",
        text="Share of the judgments. Many mean that keys or partitioners of the topics differ.",
        runbook="EvaluatorOrphans",
        targets=[
            ('evaluator:orphan_share:ratio1h{job=~"$job"}', "{{job}}"),
            ("evaluator:orphan_share_limit", "limit"),
        ],
        unit="percentunit",
        decimals=1,
    ),
]


def quality() -> dashboard.Dashboard:
    """Values of measures, their changes and their reliability."""
    made = board(
        "Evaluator: Quality",
        "Quality by model, variant, ranker and measure, its changes, and how reliable it is.",
        names=("model", "variant", "ranker", "measure", "segment"),
        annotations=[PROMOTIONS],
    )
    rows = {"Alarms": ALARMS, "Quality": [*QUALITY, VALUES], "Segments": SEGMENTS}
    return filled(made, QUALITY_NOW, rows | {"Judgments": JUDGMENTS})
