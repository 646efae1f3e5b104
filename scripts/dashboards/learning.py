"""The dashboard *Learning*: the learner, the experiment and the live weights."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from evaluator.leader.loop import MAX_BUFFERED
from scripts.dashboards.boards import N_FIRING, PROMOTIONS, Annotation, Panel, Target, board, filled

MODEL: Final = 'job=~"$job",model=~"$model"'
RELEASES: Final[Annotation] = (
    *("Other releases", "purple"),
    (
        "sum by (model, status) (increase(evaluator_weights_releases_total"
        f'{{{MODEL},status!~"promoted|rolled_back"}}[5m])) > 0'
    ),
    "{{model}}: {{status}}",
)


def mean(ranker: str, window: str) -> str:
    """Mean over the queries that settled within the window, over all processes."""
    of = f'{MODEL},measure=~"$measure",ranker="{ranker}"'
    score, queries = (
        f"sum by (job, model, measure) (increase(evaluator_quality_{what}_total{{{of}}}[{window}]))"
        for what in ("value", "queries")
    )
    return f"{score} / ({queries} > 0)"


def by_model(name: str, more: str = "", labels: str = "") -> str:
    """A gauge of the leader."""
    by = f"model, {labels}" if labels else "model"
    return f"max by ({by}) ({name}{{{MODEL}{more}}})"


def weights(ranker: str) -> list[Target]:
    """The targets of weights by feature."""
    expr = by_model("evaluator_weights_value", f',ranker="{ranker}"', "feature")
    return [(expr, "{{model}} {{feature}}")]


WHOSE: Final = "{{model}} {{measure}}"
EVIDENCE: Final = "evaluator_experiment_evidence"

NOW: Final = [
    Panel(
        title="Leaders",
        text="Processes that are leader: one, while learning is on.",
        runbook="EvaluatorNoLeader",
        targets=[('sum(evaluator_leader_active{job=~"$job"})', "leaders")],
        red=1,
        red_below=True,
        width=4,
    ),
    Panel(
        title="Frozen models",
        text="Models for which learning has stopped.",
        runbook="EvaluatorLearningFrozen",
        targets=[(f"sum({by_model('evaluator_learning_frozen')})", "frozen")],
        red=1,
        width=4,
    ),
    Panel(
        title="Evidence for the challenger",
        text="Of the current experiment; 1 without one. The challenger is promoted when the"
        " evidence reaches the limit and the other rules of the gate hold.",
        runbook="EvaluatorWeightsChanged",
        targets=[(by_model(EVIDENCE, ',side="for"'), "{{model}}")],
        decimals=1,
        width=4,
    ),
    Panel(
        title="Promotions in a week",
        text="Challengers that became champion, over all models.",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (
                f'sum(increase(evaluator_weights_releases_total{{{MODEL},status="promoted"}}[7d]))',
                "promoted",
            )
        ],
        decimals=0,
        width=4,
    ),
    Panel(
        title="Buffered queries",
        text="Settled queries that the leader has read and not processed yet. Beyond the limit only"
        " the awaited tasks are read.",
        runbook="EvaluatorLeaderWaits",
        targets=[('max(evaluator_leader_buffered_queries{job=~"$job"})', "waiting")],
        red=MAX_BUFFERED,
        width=4,
    ),
    Panel(
        title="Alerts firing",
        text="All firing alerts of the evaluator.",
        runbook="EvaluatorWeightsChanged",
        targets=[(N_FIRING, "firing")],
        red=1,
        width=4,
    ),
]
EXPERIMENT: Final = [
    Panel(
        title="Champion and challenger, means of an hour",
        text="On the queries of the intervals that ended within the hour. The champion has values"
        " once weights are live, the challenger during its experiment.",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (mean(ranker, "1h"), f"{WHOSE} {ranker}") for ranker in ("champion", "challenger")
        ],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Challenger minus champion",
        text="The difference of their means over an hour and over a day, during an experiment. The"
        " gate compares them on the same queries trace by trace.",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (f"{mean('challenger', window)} - {mean('champion', window)}", f"{WHOSE} {span}")
            for window, span in (("1h", "hour"), ("1d", "day"))
        ],
        unit="none",
        decimals=4,
        red=0,
        red_below=True,
    ),
    Panel(
        title="Evidence",
        text="Wealth of the bets for and against the challenger, logarithmic; 1 without an"
        " experiment. At 1 / gate_alpha the challenger may be promoted (for) or is rejected"
        " (against).",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (by_model(EVIDENCE, labels="side"), "{{model}} {{side}}"),
            (by_model("evaluator_experiment_evidence_needed"), "{{model}} limit"),
        ],
        logarithmic=True,
    ),
    Panel(
        title="Traces of the experiment",
        text="Traces that were bet on. The gate requires at least gate_min_traces.",
        runbook="EvaluatorWeightsChanged",
        targets=[(by_model("evaluator_experiment_traces"), "{{model}}")],
    ),
]
LEARNING: Final = [
    Panel(
        title="Weights of the champion",
        text="Live weights by feature, in raw units. Empty before the first promotion.",
        runbook="EvaluatorWeightsChanged",
        targets=weights("champion"),
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Weights of the challenger",
        text="Weights in the experiment by feature, in raw units.",
        runbook="EvaluatorWeightsChanged",
        targets=weights("challenger"),
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Loss",
        text="Mean of an interval, each query before its update. With noisy judgments it stays"
        " above 0.",
        runbook="EvaluatorLearningFrozen",
        targets=[(by_model("evaluator_learning_loss"), "{{model}}")],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Updates",
        text="Updates of the learner since the epoch began. Constant while it is frozen.",
        runbook="EvaluatorLearningFrozen",
        targets=[(by_model("evaluator_learning_updates"), "{{model}}")],
    ),
    Panel(
        title="Releases in an hour",
        text="Weights records by status, over all processes.",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (
                (
                    "sum by (model, status) "
                    f"(increase(evaluator_weights_releases_total{{{MODEL}}}[1h]))"
                ),
                "{{model}} {{status}}",
            )
        ],
    ),
    Panel(
        title="Versions and epoch",
        text="Version and epoch of the live weights. The epoch grows with a rollback and with a"
        " change of settings.",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (by_model("evaluator_weights_version", labels="ranker"), "{{model}} {{ranker}}"),
            (by_model("evaluator_weights_epoch"), "{{model}} epoch"),
        ],
        decimals=0,
    ),
    Panel(
        title="Frozen",
        text="1 while learning has stopped for a model. /status of the leader has the reason.",
        runbook="EvaluatorLearningFrozen",
        targets=[(by_model("evaluator_learning_frozen"), "{{model}}")],
        decimals=0,
        red=1,
    ),
    Panel(
        title="Queries that cannot be learned from",
        text="Share of the last 1,000 queries with features. Above one half, learning ends.",
        runbook="EvaluatorLearningUnusable",
        targets=[(by_model("evaluator_learning_unusable_share"), "{{model}}")],
    ),
]
LEADER: Final = [
    Panel(
        title="Leader by process",
        text="1 for the process that is leader.",
        runbook="EvaluatorNoLeader",
        targets=[('evaluator_leader_active{job=~"$job"}', "{{instance}}")],
        decimals=0,
    ),
    Panel(
        title="Records of settled read by the leader",
        text="Per second, by kind. Foreign records come from workers with other settings.",
        runbook="EvaluatorLeaderWaits",
        targets=[
            (
                (
                    "sum by (outcome) (rate(evaluator_leader_records_total"
                    '{job=~"$job"}[$__rate_interval]))'
                ),
                "{{outcome}}",
            )
        ],
        unit="cps",
    ),
    Panel(
        title="Awaited tasks",
        text="1 while a task holds up the others. Any task can be awaited briefly; an alert fires"
        " if one is awaited all the time and the number of buffered queries never falls.",
        runbook="EvaluatorLeaderWaits",
        targets=[('max by (task) (evaluator_leader_awaited{job=~"$job"})', "task {{task}}")],
        decimals=0,
    ),
    Panel(
        title="Buffered and ignored queries",
        text="Queries read and not processed yet, and queries of models beyond the sixteenth.",
        runbook="EvaluatorLeaderWaits",
        targets=[
            ('max(evaluator_leader_buffered_queries{job=~"$job"})', "waiting"),
            ('max(evaluator_leader_ignored_queries{job=~"$job"})', "left alone"),
        ],
    ),
    Panel(
        title="Since the last interval",
        text="Wall clock since the last query of the last interval settled.",
        runbook="EvaluatorLeaderWaits",
        targets=[
            (
                'time() - max(evaluator_leader_interval_timestamp_seconds{job=~"$job"})',
                "last interval",
            )
        ],
        unit="s",
    ),
    Panel(
        title="Leader epochs and gaps in an hour",
        text="How often a process became leader, and how often settled queries were missing.",
        runbook="EvaluatorNoLeader",
        targets=[
            ('sum(increase(evaluator_leader_epochs_total{job=~"$job"}[1h]))', "terms"),
            ('sum(increase(evaluator_leader_gaps_total{job=~"$job"}[1h]))', "gaps"),
        ],
        decimals=0,
    ),
]


def learning() -> dashboard.Dashboard:
    """The learner, the experiment and the live weights."""
    made = board(
        "Evaluator: Learning",
        "The learner, the experiment of challenger and champion, and the live weights.",
        names=("model", "measure"),
        annotations=[PROMOTIONS, RELEASES],
    )
    return filled(made, NOW, {"Experiment": EXPERIMENT, "Weights": LEARNING, "Leader": LEADER})
