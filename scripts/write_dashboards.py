"""Writes the Grafana dashboards of `deploy/grafana/dashboards`: `make generate`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    DataSourceRef,
    GraphThresholdsStyleMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER: Final = Path(__file__).parent.parent / "deploy" / "grafana" / "dashboards"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")

PAIR: Final = 'job=~"$job",model=~"$model",variant=~"$variant"'
OF: Final = PAIR + ',ranker=~"$ranker",measure=~"$measure"'
WHOSE: Final = "{{model}}/{{variant}} {{ranker}} {{measure}}"
FIRING: Final = 'ALERTS{alertname=~"Evaluator.+",alertstate="firing"}'
N_FIRING: Final = f"count({FIRING}) or vector(0)"
BAND: Final = "scalar(evaluator:bound_z) * "


def increases(name: str, labels: str, by: str, window: str, offset: str = "") -> str:
    """The growth of a counter by job and more."""
    return f"sum by (job, {by}) (increase({name}{{{labels}}}[{window}]{offset}))"


def mean_of_counters(window: str, offset: str = "") -> str:
    """What a rule records as quality_mean, from the counters."""
    by = "model, variant, ranker, measure"
    score = increases("evaluator_quality_score_total", OF, by, window, offset)
    queries = increases("evaluator_quality_queries_total", OF, by, window, offset)
    return f"{score} / ({queries} > 0)"


def coverage(offset: str = "") -> str:
    """The recorded figure, and the counters where none was recorded."""
    by = "model, variant"
    name = "evaluator_queries_settled_total"
    judged = increases(name, PAIR + ',judged="yes"', by, "1h", offset)
    settled = increases(name, PAIR, by, "1h", offset)
    return f"evaluator:coverage:ratio1h{{{PAIR}}}{offset} or {judged} / ({settled} > 0)"


# A history that was loaded has counters but, for the most part, no recorded figures
# (docs/backfill.md), so the counters stand in where nothing was recorded.
MEAN_1H: Final = f"evaluator:quality_mean:ratio1h{{{OF}}} or {mean_of_counters('1h')}"
MEAN_1D: Final = f"evaluator:quality_mean:ratio1d{{{OF}}} or {mean_of_counters('1d')}"
QUERIES_1H: Final = f"evaluator:quality_queries:increase1h{{{OF}}} or " + increases(
    "evaluator_quality_queries_total", OF, "model, variant, ranker, measure", "1h"
)

Target = tuple[str, str]
"""PromQL and legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: what it is called, what it says, and what to do about it.

    `red` are the values from which on (or, with `red_below`, below which) it turns red.
    """

    title: str
    says: str
    runbook: str
    targets: Sequence[Target]
    unit: str = "short"
    decimals: int | None = None
    red: float | None = None
    red_below: bool = False
    width: int = 12

    def thresholds(self) -> dashboard.ThresholdsConfig:
        """Green, and red beyond the limit."""
        before, beyond = ("red", "green") if self.red_below else ("green", "red")
        steps = [Threshold(color="green")]
        if self.red is not None:
            steps = [Threshold(color=before), Threshold(value=self.red, color=beyond)]
        return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)

    def dress(self, panel: "timeseries.Panel | stat.Panel | heatmap.Panel", *, height: int) -> None:
        """Gives a panel of either kind what both have."""
        link = dashboard.DashboardLink(f"Runbook: {self.runbook}").type(DashboardLinkType.LINK)
        link.url(f"${{runbooks:raw}}#{self.runbook.lower()}").target_blank(True)
        panel.title(self.title).description(self.says).datasource(SOURCE).links([link])
        panel.unit(self.unit).span(self.width).height(height).thresholds(self.thresholds())
        if self.decimals is not None:
            panel.decimals(self.decimals)
        for number, (expr, legend) in enumerate(self.targets):
            query = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(SOURCE)
            if self is VALUES:
                query.format(PromQueryFormat.HEATMAP).exemplar(True)
            panel.with_target(query.ref_id(chr(ord("A") + number)))


def figure(panel: Panel) -> stat.Panel:
    """One large number."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    made = stat.Panel().graph_mode(BigValueGraphMode.AREA).reduce_options(last)
    panel.dress(made, height=5)
    return made


def curve(panel: Panel) -> timeseries.Panel:
    """Lines over time; those whose legend ends in "bound" are thin, a limit is dashed."""
    made = timeseries.Panel().line_width(2).fill_opacity(0)
    panel.dress(made, height=9)
    if panel.red is not None:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        made.thresholds_style(style)
    made.override_by_regexp("/bound$/", [DynamicConfigValue("custom.lineWidth", 0.5)])
    dashed = {"fill": "dash", "dash": [8, 8]}
    made.override_by_regexp("/limit$/", [DynamicConfigValue("custom.lineStyle", dashed)])
    return made


def heat(panel: Panel) -> heatmap.Panel:
    """Counts by bucket over time, with exemplars."""
    made = heatmap.Panel()
    panel.dress(made, height=9)
    return made


def drawn(panel: Panel) -> "timeseries.Panel | heatmap.Panel":
    """The panel as what it is."""
    return heat(panel) if panel is VALUES else curve(panel)


def with_bounds(mean: str, stderr: str, legend: str, *, shown: str = "") -> list[Target]:
    """A figure, *shown* as something else if need be, with the bounds that the alerts use."""
    return [
        (shown or mean, legend),
        (f"{mean} - {BAND}{stderr}", f"{legend} lower bound"),
        (f"{mean} + {BAND}{stderr}", f"{legend} upper bound"),
    ]


QUALITY_NOW: Final = [
    Panel(
        title="Mean of the last hour",
        says="Mean of the queries that settled within the last hour. A settled query was ranked one"
        " maturity_ms before.",
        runbook="EvaluatorQualityBelowFloor",
        targets=[(MEAN_1H, WHOSE)],
        unit="none",
        decimals=3,
        width=8,
    ),
    Panel(
        title="Change to last week",
        says="The mean of the last hour less that of the same hour last week. Empty during the"
        " first week, and while either hour has too few queries.",
        runbook="EvaluatorQualityDrop",
        targets=[(f"evaluator:quality_change:ratio1h{{{OF}}}", WHOSE)],
        unit="none",
        decimals=3,
        red=-0.02,
        red_below=True,
        width=8,
    ),
    Panel(
        title="Judged in time",
        says="Share of the settled queries that had a judgment: quality is measured on these only.",
        runbook="EvaluatorCoverageDrop",
        targets=[(coverage(), "{{model}}/{{variant}}")],
        unit="percentunit",
        decimals=1,
        width=4,
    ),
    Panel(
        title="Alerts firing",
        says="Alerts of the evaluator that fire now, of all kinds.",
        runbook="EvaluatorQualityDrop",
        targets=[(N_FIRING, "firing")],
        red=1,
        width=4,
    ),
]
QUALITY: Final = [
    Panel(
        title="Mean by the hour, with its bounds",
        says="Sliding mean of one hour. The bounds hold for a whole week of looking, not for one"
        " look, and allow for queries of one trace that succeed together.",
        runbook="EvaluatorQualityDrop",
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
        says="An alarm when the upper bound is below the limit.",
        runbook="EvaluatorQualityDrop",
        targets=[
            *with_bounds(
                f"evaluator:quality_change:ratio1h{{{OF}}}",
                f"evaluator:quality_change_stderr:ratio1h{{{OF}}}",
                WHOSE,
            ),
            ('-evaluator:quality_tolerance{measure=~"$measure"}', "{{measure}} limit"),
        ],
        unit="none",
        decimals=3,
        red=0,
        red_below=True,
    ),
    Panel(
        title="Mean by the day",
        says="Sliding mean of 24 hours: slow changes.",
        runbook="EvaluatorQualityDropDay",
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
        title="Canary less prod, with its bounds",
        says="Both within the same hour. An alarm when the upper bound is below the limit.",
        runbook="EvaluatorCanaryWorse",
        targets=[
            *with_bounds(
                'evaluator:canary_change:ratio1h{job=~"$job",model=~"$model",ranker=~"$ranker",'
                'measure=~"$measure"}',
                'evaluator:canary_change_stderr:ratio1h{job=~"$job",model=~"$model",'
                'ranker=~"$ranker",measure=~"$measure"}',
                "{{model}} {{ranker}} {{measure}}",
            ),
            ('-evaluator:quality_tolerance{measure=~"$measure"}', "{{measure}} limit"),
        ],
        unit="none",
        decimals=3,
        red=0,
        red_below=True,
    ),
    Panel(
        title="Running mean of each worker",
        says="Over every query with a value so far, corrected by each judgment: there at once, not"
        " what alerts look at.",
        runbook="EvaluatorQualityDrop",
        targets=[(f"evaluator_running_score_mean{{{OF}}}", "{{instance}} " + WHOSE)],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Settled queries with a value in an hour",
        says="What the means rest on. Below the limit an hour is not compared.",
        runbook="EvaluatorQualityDropDay",
        targets=[
            (QUERIES_1H, WHOSE),
            ("evaluator:min_queries", "limit"),
        ],
    ),
]
VALUES: Final = Panel(
    title="How the values spread",
    says="Settled queries by value, of the measures in histogram_measures. Points are exemplars:"
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
        says="Queries with a value of at most 0.1, of the measures in histogram_measures, over an"
        " hour and over five minutes. An alarm when both are beyond the limit.",
        runbook="EvaluatorBadQueries",
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
        says="Share of the settled queries that had a judgment. If it moves, do not believe a"
        " change of quality.",
        runbook="EvaluatorCoverageDrop",
        targets=[
            (coverage(), "{{model}}/{{variant}}"),
            (coverage(" offset 1w"), "{{model}}/{{variant}} last week"),
        ],
        unit="percentunit",
    ),
    Panel(
        title="Delay of judgments",
        says="Age of a query when a judgment was applied to it, by event time. Later than the limit"
        " (maturity_ms) it does not count in settled figures.",
        runbook="EvaluatorJudgmentDelay",
        targets=[
            (
                (
                    f"histogram_quantile({quantile}, sum by (le) ("
                    'increase(evaluator_judgment_delay_seconds_bucket{job=~"$job"}[1h])))'
                ),
                f"{quantile:.0%}",
            )
            for quantile in (0.5, 0.75, 0.95)
        ]
        + [("evaluator:judgment_delay_limit_seconds", "limit")],
        unit="s",
    ),
    Panel(
        title="Judged, but nothing relevant",
        says="Share of the judged settled queries without any relevant candidate: no ranker can do"
        " well on them.",
        runbook="EvaluatorQualityDrop",
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
        says="Share of the judgments. Many mean that keys or partitioners of the topics differ.",
        runbook="EvaluatorOrphans",
        targets=[
            ('evaluator:orphan_share:ratio1h{job=~"$job"}', "{{job}}"),
            ("evaluator:orphan_share_limit", "limit"),
        ],
        unit="percentunit",
        decimals=1,
    ),
]


def _gauge(title: str, says: str, runbook: str, expr: str, **how: Any) -> Panel:
    targets = [(expr, title.lower())]
    return Panel(title=title, says=says, runbook=runbook, targets=targets, width=4, **how)


PIPELINE_NOW: Final = [
    _gauge(
        *("Workers ready", "1 if all workers are ready, as /readyz says.", "EvaluatorNotReady"),
        'min(evaluator_ready{job=~"$job"})',
        red=1,
        red_below=True,
    ),
    _gauge(
        *("Tasks owned", "Should be the number of partitions.", "EvaluatorTasksUnowned"),
        'sum(evaluator_tasks_owned{job=~"$job"})',
    ),
    _gauge(
        *("Tasks restoring", "They re-read what was committed.", "EvaluatorNotReady"),
        'sum(evaluator_restoring{job=~"$job"})',
        red=1,
    ),
    _gauge(
        *("Unread records", "Lag over all partitions of both topics.", "EvaluatorStalled"),
        'sum(evaluator_consumer_lag{job=~"$job"})',
        red=10_000,
    ),
    _gauge(
        *("Oldest watermark", "How far event time is behind.", "EvaluatorWatermarkStale"),
        'max(evaluator:watermark_age_seconds:min{job=~"$job"})',
        unit="s",
        red=1800,
    ),
    _gauge(
        *("Alerts firing", "Of the evaluator, of all kinds.", "EvaluatorAbsent"), N_FIRING, red=1
    ),
]


def _outcomes(topic: str, runbook: str) -> Panel:
    return Panel(
        title=f"Records of {topic} by outcome",
        says="What became of them for good, a second. What waits or is held is counted later.",
        runbook=runbook,
        targets=[
            (
                (
                    "sum by (outcome) (rate(evaluator_messages_total"
                    f'{{job=~"$job",topic="{topic}"}}[$__rate_interval]))'
                ),
                "{{outcome}}",
            )
        ],
        unit="cps",
    )


LEDGER: Final = [
    _outcomes("rankings", "EvaluatorNoRankings"),
    _outcomes("judgments", "EvaluatorNoJudgments"),
    Panel(
        title="Messages that count, and what is usual",
        says="In a quarter of an hour; usual is the same time last week, else the last day's mean.",
        runbook="EvaluatorNoRankings",
        targets=[
            ('evaluator:messages:increase15m{job=~"$job"}', "{{topic}}"),
            ('evaluator:messages_expected:increase15m{job=~"$job"}', "{{topic}} usual"),
        ],
    ),
    Panel(
        title="Dead letters by reason",
        says="Share of all records, without orphans and late judgments.",
        runbook="EvaluatorDeadLetters",
        targets=[
            ('evaluator:dead_letter_share:ratio15m{job=~"$job"}', "{{reason}}"),
            ("evaluator:dead_letter_share_limit", "limit"),
        ],
        unit="percentunit",
        decimals=2,
    ),
]
PROGRESS: Final = [
    Panel(
        title="Unread records by task",
        says="Both logs of a task together.",
        runbook="EvaluatorStalled",
        targets=[
            ('evaluator:lag:sum{job=~"$job"}', "task {{task}}"),
            ("evaluator:lag_limit", "limit"),
        ],
    ),
    Panel(
        title="Age of the watermark by task",
        says="Event time is certain up to the watermark; it delays settling.",
        runbook="EvaluatorWatermarkStale",
        targets=[
            ('evaluator:watermark_age_seconds:min{job=~"$job"}', "task {{task}}"),
            ("evaluator:watermark_age_limit_seconds", "limit"),
        ],
        unit="s",
    ),
    Panel(
        title="Held queries and waiting judgments",
        says="What memory is needed for: queries that a judgment can still belong to, judgments"
        " whose ranking has not come.",
        runbook="EvaluatorOrphans",
        targets=[
            ('sum(evaluator_held_queries{job=~"$job"})', "held queries"),
            ('sum(evaluator_waiting_judgments{job=~"$job"})', "waiting judgments"),
        ],
    ),
    Panel(
        title="Records out of order",
        says="More than out_of_orderness_ms behind the newest of their log, a second.",
        runbook="EvaluatorWatermarkStale",
        targets=[
            (
                'sum(rate(evaluator_out_of_order_total{job=~"$job"}[$__rate_interval]))',
                "out of order",
            )
        ],
        unit="cps",
    ),
    Panel(
        title="Since the last commit",
        says="Wall clock since each worker committed.",
        runbook="EvaluatorNotReady",
        targets=[
            (
                'time() - evaluator_last_commit_timestamp_seconds{job=~"$job"}',
                "{{instance}}",
            )
        ],
        unit="s",
    ),
    Panel(
        title="Records read",
        says="By partition, a second; negative after a task began anew.",
        runbook="EvaluatorStalled",
        targets=[
            ('deriv(evaluator_input_position{job=~"$job"}[5m])', "{{topic}} {{partition}}"),
        ],
        unit="cps",
    ),
    Panel(
        title="Age of the last checkpoint by task",
        says="If its disk is lost, a task is read again from there. None is written while nothing"
        " is read.",
        runbook="EvaluatorCheckpointStale",
        targets=[
            ('evaluator:checkpoint_age_seconds:min{job=~"$job"}', "task {{task}}"),
            ("evaluator:checkpoint_age_limit_seconds", "limit"),
        ],
        unit="s",
    ),
    Panel(
        title="State by task",
        says="The store on the disk, the queries in memory, and the last checkpoint.",
        runbook="EvaluatorStateRebuilt",
        targets=[
            ('max by (task) (evaluator_state_bytes{job=~"$job"})', "store, task {{task}}"),
            ('max by (task) (evaluator_held_bytes{job=~"$job"})', "memory, task {{task}}"),
            (
                'max by (task) (evaluator_checkpoint_bytes{job=~"$job"})',
                "checkpoint, task {{task}}",
            ),
        ],
        unit="bytes",
    ),
    Panel(
        title="Left to restore by task",
        says="Offsets of both logs until a task speaks again.",
        runbook="EvaluatorNotReady",
        targets=[('max by (task) (evaluator_restore_left{job=~"$job"})', "task {{task}}")],
    ),
    Panel(
        title="Rebalances, commits, stores set aside",
        says="In an hour, over all workers.",
        runbook="EvaluatorStateRebuilt",
        targets=[
            ('sum(increase(evaluator_rebalances_total{job=~"$job"}[1h]))', "rebalances"),
            (
                'sum(increase(evaluator_commits_total{job=~"$job",outcome="refused"}[1h]))',
                "refused commits",
            ),
            (
                'sum(increase(evaluator_commits_total{job=~"$job",outcome="committed"}[1h]))',
                "commits",
            ),
            (
                'sum(evaluator:states_set_aside:increase1h{job=~"$job"}) or vector(0)',
                "stores set aside",
            ),
        ],
    ),
    Panel(
        title="Memory",
        says="Resident memory of each worker.",
        runbook="EvaluatorTargetDown",
        targets=[('process_resident_memory_bytes{job=~"$job"}', "{{instance}}")],
        unit="bytes",
    ),
    Panel(
        title="Processor time",
        says="Of each worker, in processors; a worker can use little more than one.",
        runbook="EvaluatorStalled",
        targets=[
            (
                'rate(process_cpu_seconds_total{job=~"$job"}[$__rate_interval])',
                "{{instance}}",
            )
        ],
    ),
]


def variable(name: str, query: str) -> dashboard.QueryVariable:
    """A choice of values of a label, all of them at first."""
    made = dashboard.QueryVariable(name).label(name).datasource(SOURCE).query(query)
    made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    everything = VariableOption(selected=True, text="All", value="$__all")
    return made.multi(True).include_all(True).all_value(".*").current(everything)


def board(title: str, says: str, *, names: Sequence[str]) -> dashboard.Dashboard:
    """An empty dashboard with its variables, links and annotations."""
    uid = f"evaluator-{title.rsplit(maxsplit=1)[-1].lower()}"
    made = dashboard.Dashboard(title).uid(uid).description(says).tags(["evaluator"])
    made.time("now-24h", "now").refresh("1m").timezone("browser").editable()
    made.with_variable(
        dashboard.DatasourceVariable("datasource").label("data source").type("prometheus")
    )
    seen = '{__name__=~"evaluator_build_info|evaluator_queries_settled_total"}'
    made.with_variable(variable("job", f"label_values({seen}, job)"))
    for name in names:
        query = f'label_values(evaluator_quality_queries_total{{job=~"$job"}}, {name})'
        made.with_variable(variable(name, query))
    made.with_variable(
        dashboard.TextBoxVariable("runbooks")
        .label("runbooks")
        .description("Address of docs/runbooks.md in your copy of the repository")
        .default_value("https://example.com/docs/runbooks.md")
    )
    made.link(
        dashboard.DashboardLink("Evaluator")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["evaluator"])
        .include_vars(True)
        .keep_time(True)
    )
    for name, colour, expr, text in (
        ("Alerts", "red", f'{FIRING[:-1]},job=~"$job|"}}', "{{alertname}} {{model}} {{variant}}"),
        (
            "Deployments",
            "blue",
            (
                'count by (version) (evaluator_build_info{job=~"$job"})'
                ' unless count by (version) (evaluator_build_info{job=~"$job"} offset 5m)'
            ),
            "version {{version}}",
        ),
    ):
        made.annotation(
            dashboard.AnnotationQuery()
            .name(name)
            .datasource(SOURCE)
            .enable(True)
            .icon_color(colour)
            .expr(expr)
            .title_format(text)
        )
    return made


def filled(
    made: dashboard.Dashboard, now: Sequence[Panel], rows: Mapping[str, Sequence[Panel]]
) -> dashboard.Dashboard:
    """The dashboard with its panels numbered: figures first, then rows of curves."""
    ids = count(1)
    for panel in now:
        made.with_panel(figure(panel).id(next(ids)))
    for title, panels in rows.items():
        made.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            made.with_panel(drawn(panel).id(next(ids)))
    return made


def quality() -> dashboard.Dashboard:
    """What, since when, for whom, and can I believe it."""
    made = board(
        "Evaluator: Quality",
        "How well the rankers rank, since when, for whom, and whether to believe it.",
        names=("model", "variant", "ranker", "measure"),
    )
    return filled(made, QUALITY_NOW, {"Quality": [*QUALITY, VALUES], "Judgments": JUDGMENTS})


def pipeline() -> dashboard.Dashboard:
    """Whether everything that comes in is read, joined and settled in time."""
    made = board(
        "Evaluator: Pipeline",
        "Whether everything that comes in is read, joined and settled in time.",
        names=(),
    )
    rows = {"What came, and what became of it": LEDGER, "How far it is": PROGRESS}
    return filled(made, PIPELINE_NOW, rows)


def documents() -> dict[Path, str]:
    """Every file with its content."""
    made = {"quality": quality(), "pipeline": pipeline()}
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {
        FOLDER / f"{name}.json": re.sub(r" +$", "", encoder.encode(one.build()), flags=re.MULTILINE)
        + "\n"
        for name, one in made.items()
    }


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in documents().items():
        path.write_text(text, "utf-8")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
