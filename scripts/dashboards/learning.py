"""The dashboard *Learning*: what is learned, how it is tried, and what is live."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from evaluator.leader.loop import MOST_WAITING
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
    """Of what settled within the window, over all processes."""
    of = f'{MODEL},measure=~"$measure",ranker="{ranker}"'
    score, queries = (
        f"sum by (job, model, measure) (increase(evaluator_quality_{what}_total{{{of}}}[{window}]))"
        for what in ("value", "queries")
    )
    return f"{score} / ({queries} > 0)"


def by_model(name: str, more: str = "", labels: str = "") -> str:
    """A gauge of whoever is leader."""
    by = f"model, {labels}" if labels else "model"
    return f"max by ({by}) ({name}{{{MODEL}{more}}})"


def weights(ranker: str) -> list[Target]:
    """By feature."""
    expr = by_model("evaluator_weights_value", f',ranker="{ranker}"', "feature")
    return [(expr, "{{model}} {{feature}}")]


WHOSE: Final = "{{model}} {{measure}}"
EVIDENCE: Final = "evaluator_experiment_evidence"

NOW: Final = [
    Panel(
        title="Leader as the leader",
        says="Processes that are the leader: one, while learning is on.",
        runbook="EvaluatorNoLeader",
        targets=[('sum(evaluator_leader_active{job=~"$job"})', "as the leader")],
        red=1,
        red_below=True,
        width=4,
    ),
    Panel(
        title="Frozen models",
        says="Models for which nothing is learned any more.",
        runbook="EvaluatorLearningFrozen",
        targets=[(f"sum({by_model('evaluator_learning_frozen')})", "frozen")],
        red=1,
        width=4,
    ),
    Panel(
        title="Evidence for the challenger",
        says="Of the running experiment; 1 means none. The challenger is promoted when the evidence"
        " reaches what is needed and the other rules of the gate hold.",
        runbook="EvaluatorWeightsChanged",
        targets=[(by_model(EVIDENCE, ',side="for"'), "{{model}}")],
        decimals=1,
        width=4,
    ),
    Panel(
        title="Promotions in a week",
        says="Candidates that became the champion, over all models.",
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
        title="Queries that wait",
        says="Settled queries that the leader has read and not taken yet. Where it intervals red,"
        " only tasks that are awaited are read.",
        runbook="EvaluatorLeaderWaits",
        targets=[('max(evaluator_leader_buffered_queries{job=~"$job"})', "waiting")],
        red=MOST_WAITING,
        width=4,
    ),
    Panel(
        title="Alerts firing",
        says="Of the evaluator, of all kinds.",
        runbook="EvaluatorWeightsChanged",
        targets=[(N_FIRING, "firing")],
        red=1,
        width=4,
    ),
]
TRIAL: Final = [
    Panel(
        title="Champion and challenger, means of an hour",
        says="On the queries of the intervals that ended within the hour. The champion has values"
        " once weights are live, the challenger during its experiment.",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (mean(ranker, "1h"), f"{WHOSE} {ranker}") for ranker in ("champion", "challenger")
        ],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Candidate less champion",
        says="The difference of their means over an hour and over a day. Only while both are tried;"
        " the gate looks at the same queries trace by trace.",
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
        says="Wealth of the bets for and against the challenger, logarithmic; 1 without an"
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
        says="That were bet on. The gate wants gate_min_traces at least.",
        runbook="EvaluatorWeightsChanged",
        targets=[(by_model("evaluator_experiment_traces"), "{{model}}")],
    ),
]
LEARNING: Final = [
    Panel(
        title="Weights of the champion",
        says="By feature, in raw units: what is live. Empty before the first promotion.",
        runbook="EvaluatorWeightsChanged",
        targets=weights("champion"),
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Weights of the challenger",
        says="By feature, in raw units: what is tried now.",
        runbook="EvaluatorWeightsChanged",
        targets=weights("challenger"),
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Loss",
        says="Mean of an interval, each query before its update. Noisy judgments keep it above 0.",
        runbook="EvaluatorLearningFrozen",
        targets=[(by_model("evaluator_learning_loss"), "{{model}}")],
        unit="none",
        decimals=3,
    ),
    Panel(
        title="Updates",
        says="Of the learner since the epoch began. They stand still when it is frozen.",
        runbook="EvaluatorLearningFrozen",
        targets=[(by_model("evaluator_learning_updates"), "{{model}}")],
    ),
    Panel(
        title="Releases in an hour",
        says="Records of weights by status, over all processes.",
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
        says="Of the weights in force. The epoch grows with a roll-back and with other settings.",
        runbook="EvaluatorWeightsChanged",
        targets=[
            (by_model("evaluator_weights_version", labels="ranker"), "{{model}} {{ranker}}"),
            (by_model("evaluator_weights_epoch"), "{{model}} epoch"),
        ],
        decimals=0,
    ),
    Panel(
        title="Frozen",
        says="1 while nothing is learned for a model. /status of the leader says why.",
        runbook="EvaluatorLearningFrozen",
        targets=[(by_model("evaluator_learning_frozen"), "{{model}}")],
        decimals=0,
        red=1,
    ),
]
LEADER: Final = [
    Panel(
        title="Who is leader",
        says="1 at the process that is the leader.",
        runbook="EvaluatorNoLeader",
        targets=[('evaluator_leader_active{job=~"$job"}', "{{instance}}")],
        decimals=0,
    ),
    Panel(
        title="Records of settled that were read",
        says="A second, by what they are. Foreign ones are of workers with other settings.",
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
        title="Tasks that are awaited",
        says="1 where a task holds up what was read. Now and then it is any of them; an alarm where"
        " it is one of them all the time and fewer never wait.",
        runbook="EvaluatorLeaderWaits",
        targets=[('max by (task) (evaluator_leader_awaited{job=~"$job"})', "task {{task}}")],
        decimals=0,
    ),
    Panel(
        title="Queries that wait, and that are left alone",
        says="Read and not taken yet; and of models beyond those that are learned for.",
        runbook="EvaluatorLeaderWaits",
        targets=[
            ('max(evaluator_leader_buffered_queries{job=~"$job"})', "waiting"),
            ('max(evaluator_leader_ignored_queries{job=~"$job"})', "left alone"),
        ],
    ),
    Panel(
        title="Since the last interval",
        says="Wall clock since the last query of the last interval settled.",
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
        title="Terms and gaps in an hour",
        says="How often somebody took leadership, and how often settled queries were missing.",
        runbook="EvaluatorNoLeader",
        targets=[
            ('sum(increase(evaluator_leader_epochs_total{job=~"$job"}[1h]))', "terms"),
            ('sum(increase(evaluator_leader_gaps_total{job=~"$job"}[1h]))', "gaps"),
        ],
        decimals=0,
    ),
]


def learning() -> dashboard.Dashboard:
    """What is learned, how it is tried, and what is live."""
    made = board(
        "Evaluator: Learning",
        "What is learned from the judged queries, how it is tried, and which weights are live.",
        names=("model", "measure"),
        annotations=[PROMOTIONS, RELEASES],
    )
    return filled(made, NOW, {"Experiment": TRIAL, "Weights": LEARNING, "Leader": LEADER})
