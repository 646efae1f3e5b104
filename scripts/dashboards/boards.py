"""Panels and boards: the common part of all dashboards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    DataSourceRef,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
PAIR: Final = 'job=~"$job",model=~"$model",variant=~"$variant"'
OF: Final = PAIR + ',ranker=~"$ranker",measure=~"$measure"'
WHOSE: Final = "{{model}}/{{variant}} {{ranker}} {{measure}}"
FIRING: Final = 'ALERTS{alertname=~"Evaluator.+",alertstate="firing"}'
N_FIRING: Final = f"count({FIRING}) or vector(0)"
BAND: Final = "scalar(evaluator:bound_z) * "


AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel
Target = tuple[str, str]
"""PromQL and legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: title, description and the runbooks of its alert, and of those in `also`.

    It is red from the value `red` on, or below it with `red_below`: the `limit` of an alert, or 1
    for something that should be absent. `heat` shows counts by bucket; `logarithmic` is the axis.
    `rows` is a table with a row per series and a column per target, the smallest of the first one
    on top, or the largest with `most_first`; there, legends are the heads of columns.
    """

    title: str
    text: str
    runbook: str
    targets: Sequence[Target]
    unit: str = "short"
    decimals: int | None = None
    red: float | None = None
    red_below: bool = False
    width: int = 12
    heat: bool = False
    logarithmic: bool = False
    rows: bool = False
    most_first: bool = False
    also: Sequence[str] = ()

    def thresholds(self) -> dashboard.ThresholdsConfig:
        """Green, and red beyond the limit."""
        before, beyond = ("red", "green") if self.red_below else ("green", "red")
        steps = [Threshold(color="green")]
        if self.red is not None:
            steps = [Threshold(color=before), Threshold(value=self.red, color=beyond)]
        return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)

    def dress(self, panel: "AnyPanel", *, height: int) -> None:
        """Adds the common options to a panel."""
        links = [
            dashboard.DashboardLink(f"Runbook: {alert}")
            .type(DashboardLinkType.LINK)
            .url(f"${{runbooks:raw}}#{alert.lower()}")
            .target_blank(True)
            for alert in (self.runbook, *self.also)
        ]
        panel.title(self.title).description(self.text).datasource(SOURCE).links(links)
        panel.unit(self.unit).span(self.width).height(height).thresholds(self.thresholds())
        if self.decimals is not None:
            panel.decimals(self.decimals)
        for number, (expr, legend) in enumerate(self.targets):
            query = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(SOURCE)
            if self.heat:
                query.format(PromQueryFormat.HEATMAP).exemplar(True)
            if self.rows:
                query.format(PromQueryFormat.TABLE).instant()
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
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST)
    made.legend(legend.placement(LegendPlacement.BOTTOM).show_legend(True))
    if panel.red is not None:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        made.thresholds_style(style)
    made.override_by_regexp("/bound$/", [DynamicConfigValue("custom.lineWidth", 0.5)])
    if panel.logarithmic:
        scale = common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10)
        made.scale_distribution(scale)
    dashed = {"fill": "dash", "dash": [8, 8]}
    made.override_by_regexp("/limit$/", [DynamicConfigValue("custom.lineStyle", dashed)])
    return made


def heat(panel: Panel) -> heatmap.Panel:
    """Counts by bucket over time, with exemplars."""
    made = heatmap.Panel()
    panel.dress(made, height=9)
    return made


def rows(panel: Panel) -> table.Panel:
    """A row per series and a column per target, sorted by the first target."""
    made = table.Panel()
    panel.dress(made, height=9)
    heads = {f"Value #{chr(ord('A') + n)}": legend for n, (_, legend) in enumerate(panel.targets)}
    if len(heads) == 1:
        heads = {"Value": panel.targets[0][1]}
    for name, options in (
        ("merge", {}),
        ("organize", {"excludeByName": {"Time": True}, "renameByName": heads}),
    ):
        made.with_transformation(DataTransformerConfig(id_val=name, options=options))
    order = common.TableSortByFieldState().display_name(panel.targets[0][1])
    return made.sort_by([order.desc(panel.most_first)])


def drawn(panel: Panel) -> AnyPanel:
    """The panel in the form of its kind."""
    if panel.rows:
        return rows(panel)
    return heat(panel) if panel.heat else curve(panel)


DELAY: Final = Panel(
    title="Delay of judgments",
    text="Age of a query when a judgment was applied to it, by event time. Later than the limit"
    " (maturity_ms) it does not count in settled figures.",
    runbook="EvaluatorJudgmentDelay",
    targets=[
        *(
            (
                (
                    f"histogram_quantile({quantile}, sum by (le) ("
                    'increase(evaluator_judgment_delay_seconds_bucket{job=~"$job"}[1h])))'
                ),
                f"{quantile:.0%}",
            )
            for quantile in (0.5, 0.75, 0.95)
        ),
        ("evaluator:judgment_delay_limit_seconds", "limit"),
    ],
    unit="s",
)


def with_bounds(mean: str, stderr: str, legend: str, *, shown: str = "") -> list[Target]:
    """A figure, drawn as *shown* if that is given, with the bounds that the alerts use."""
    return [
        (shown or mean, legend),
        (f"{mean} - {BAND}{stderr}", f"{legend} lower bound"),
        (f"{mean} + {BAND}{stderr}", f"{legend} upper bound"),
    ]


def variable(name: str, query: str) -> dashboard.QueryVariable:
    """A variable with the values of a label, all of them by default."""
    made = dashboard.QueryVariable(name).label(name).datasource(SOURCE).query(query)
    made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    everything = VariableOption(selected=True, text="All", value="$__all")
    return made.multi(True).include_all(True).all_value(".*").current(everything)


Annotation = tuple[str, str, str, str]
"""Name, colour, PromQL and text."""
PROMOTIONS: Final[Annotation] = (
    *("Promotions", "green"),
    (
        "sum by (model, status) (increase(evaluator_weights_releases_total"
        '{job=~"$job",status=~"promoted|rolled_back"}[5m])) > 0'
    ),
    "{{model}}: {{status}}",
)


SERIES: Final = "model, variant, ranker, measure, segment, level, kind"
"""Labels of a series that alarms watch."""
ALARMS: Final[Annotation] = (
    *("Alarms", "orange"),
    (
        f'max by (job, {SERIES}) (evaluator_alarm_active{{job=~"$job"}}) == 1'
        f' unless max by (job, {SERIES}) (evaluator_alarm_active{{job=~"$job"}} offset 5m) == 1'
    ),
    "{{measure}} of {{model}}/{{variant}} {{ranker}} {{segment}} {{level}}",
)


def board(
    title: str, text: str, *, names: Sequence[str], annotations: Sequence[Annotation] = ()
) -> dashboard.Dashboard:
    """An empty dashboard with its variables, links and annotations."""
    uid = f"evaluator-{title.rsplit(maxsplit=1)[-1].lower()}"
    made = dashboard.Dashboard(title).uid(uid).description(text).tags(["evaluator"])
    made.time("now-24h", "now").refresh("1m").timezone("browser").editable()
    made.with_variable(
        dashboard.DatasourceVariable("datasource").label("data source").type("prometheus")
    )
    seen = '{__name__=~"evaluator_build_info|evaluator_queries_settled_total"}'
    made.with_variable(variable("job", f"label_values({seen}, job)"))
    for name in names:
        of = "segment" if name == "segment" else "quality"
        query = f'label_values(evaluator_{of}_queries_total{{job=~"$job"}}, {name})'
        made.with_variable(variable(name, query))
    made.with_variable(
        dashboard.QueryVariable("runbooks")
        .label("runbooks")
        .description("Address of the runbooks: the setting runbook_url of the evaluator")
        .datasource(SOURCE)
        .query("label_values(evaluator:runbooks, url)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    made.link(
        dashboard.DashboardLink("Evaluator")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["evaluator"])
        .include_vars(True)
        .keep_time(True)
    )
    for name, colour, expr, legend in (
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
        ALARMS,
        *annotations,
    ):
        made.annotation(
            dashboard.AnnotationQuery()
            .name(name)
            .datasource(SOURCE)
            .enable(True)
            .icon_color(colour)
            .expr(expr)
            .title_format(legend)
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
