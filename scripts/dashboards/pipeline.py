"""The dashboard *Pipeline*: is all input read, joined and settled in time?"""

from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard

from evaluator.exposition.limits import limit
from scripts.dashboards.boards import DELAY, N_FIRING, PAIR, PROMOTIONS, Panel, board, filled


def _gauge(title: str, text: str, runbook: str, expr: str, **how: Any) -> Panel:
    targets = [(expr, title.lower())]
    return Panel(title=title, text=text, runbook=runbook, targets=targets, width=4, **how)


PIPELINE_NOW: Final = [
    _gauge(
        *("Workers ready", "1 if all workers are ready, as in /readyz.", "EvaluatorNotReady"),
        'min(evaluator_ready{job=~"$job"})',
        red=1,
        red_below=True,
    ),
    _gauge(
        *("Tasks owned", "Should be the number of partitions.", "EvaluatorTasksUnowned"),
        'sum(evaluator_tasks_owned{job=~"$job"})',
    ),
    _gauge(
        *("Tasks restoring", "Tasks that are catching up.", "EvaluatorNotReady"),
        'sum(evaluator_restoring{job=~"$job"})',
        red=1,
    ),
    _gauge(
        *(
            "Unread records of a task",
            "The largest number, of both logs together.",
            "EvaluatorStalled",
        ),
        'max(evaluator:lag:sum{job=~"$job"})',
        red=limit("lag_limit"),
    ),
    _gauge(
        *("Oldest watermark", "Lag of event time behind the clock.", "EvaluatorWatermarkStale"),
        'max(evaluator:watermark_age_seconds:min{job=~"$job"})',
        unit="s",
        red=limit("watermark_age_limit_seconds"),
    ),
    _gauge(
        *("Alerts firing", "All firing alerts of the evaluator.", "EvaluatorAbsent"),
        N_FIRING,
        red=1,
    ),
]


def _outcomes(topic: str, runbook: str) -> Panel:
    return Panel(
        title=f"Records of {topic} by outcome",
        text="Final outcomes per second. Early judgments and open queries are counted later.",
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
        title="Messages that count, and the expected number",
        text="In a quarter of an hour. Expected is the number of last week at the same time, or"
        " else the mean of the last day.",
        runbook="EvaluatorNoRankings",
        also=("EvaluatorNoJudgments", "EvaluatorNothingYet"),
        targets=[
            ('evaluator:messages:increase15m{job=~"$job"}', "{{topic}}"),
            ('evaluator:messages_expected:increase15m{job=~"$job"}', "{{topic}} usual"),
        ],
    ),
    Panel(
        title="Dead letters by reason",
        text="Share of all records, without orphans and late judgments.",
        runbook="EvaluatorDeadLetters",
        also=("EvaluatorOutputRefused",),
        targets=[
            ('evaluator:dead_letter_share:ratio15m{job=~"$job"}', "{{reason}}"),
            ("evaluator:dead_letter_share_limit", "limit"),
        ],
        unit="percentunit",
        decimals=2,
    ),
    Panel(
        title="Queries settled, judged in time or not",
        text="Per second, by model and variant. A query settles maturity_ms after its ranking.",
        runbook="EvaluatorCoverageAlarm",
        targets=[
            (
                (
                    "sum by (model, variant, judged) "
                    f"(rate(evaluator_queries_settled_total{{{PAIR}}}[$__rate_interval]))"
                ),
                "{{model}}/{{variant}} judged: {{judged}}",
            )
        ],
        unit="cps",
    ),
    DELAY,
]
PROGRESS: Final = [
    Panel(
        title="Unread records by task",
        text="Both logs of a task together.",
        runbook="EvaluatorStalled",
        targets=[
            ('evaluator:lag:sum{job=~"$job"}', "task {{task}}"),
            ("evaluator:lag_limit", "limit"),
        ],
    ),
    Panel(
        title="Age of the watermark by task",
        text="Lag of the watermark behind the clock, by which settling is delayed.",
        runbook="EvaluatorWatermarkStale",
        targets=[
            ('evaluator:watermark_age_seconds:min{job=~"$job"}', "task {{task}}"),
            ("evaluator:watermark_age_limit_seconds", "limit"),
        ],
        unit="s",
    ),
    Panel(
        title="Open queries and early judgments",
        text="Queries that still take judgments, and judgments whose ranking has not been read."
        " Both take memory.",
        runbook="EvaluatorOrphans",
        targets=[
            ('sum(evaluator_open_queries{job=~"$job"})', "open queries"),
            ('sum(evaluator_early_judgments{job=~"$job"})', "early judgments"),
        ],
    ),
    Panel(
        title="Records out of order",
        text="More than out_of_orderness_ms behind the clock of their log, per second.",
        runbook="EvaluatorOutOfOrder",
        targets=[
            (
                'sum(rate(evaluator_out_of_order_total{job=~"$job"}[$__rate_interval]))',
                "out of order",
            )
        ],
        unit="cps",
    ),
    Panel(
        title="Clocks ahead of the broker's",
        text="Of logs, by their largest timestamp, and of the machines of workers; without"
        " heartbeats if a machine differs by more than a minute.",
        runbook="EvaluatorInputClockAhead",
        also=("EvaluatorClockSkewed",),
        targets=[
            (
                'max by (topic, partition) (evaluator_input_clock_ahead_seconds{job=~"$job"})',
                "{{topic}}-{{partition}}",
            ),
            ('max by (instance) (abs(evaluator_clock_skew_seconds{job=~"$job"}))', "{{instance}}"),
            ("evaluator:input_clock_ahead_limit_seconds", "limit of logs"),
            ("evaluator:clock_skew_limit_seconds", "limit of machines"),
        ],
        unit="s",
    ),
    Panel(
        title="Since the last commit",
        text="Wall clock since the last commit of each worker.",
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
        text="By partition, per second; negative after a task was rebuilt.",
        runbook="EvaluatorStalled",
        targets=[
            ('deriv(evaluator_input_position{job=~"$job"}[5m])', "{{topic}} {{partition}}"),
        ],
        unit="cps",
    ),
    Panel(
        title="Age of the last checkpoint by task",
        text="After the loss of its disk, a task is read again from its last checkpoint. None is"
        " written while nothing is read.",
        runbook="EvaluatorCheckpointStale",
        targets=[
            ('evaluator:checkpoint_age_seconds:min{job=~"$job"}', "task {{task}}"),
            ("evaluator:checkpoint_age_limit_seconds", "limit"),
        ],
        unit="s",
    ),
    Panel(
        title="Age of the last snapshot by task",
        text="A worker without the store of a task continues from its last snapshot. Empty without"
        " snapshot_url.",
        runbook="EvaluatorSnapshotStale",
        targets=[
            ('evaluator:snapshot_age_seconds:min{job=~"$job"}', "task {{task}}"),
            ("evaluator:snapshot_age_limit_seconds", "limit"),
        ],
        unit="s",
    ),
    Panel(
        title="State by task",
        text="The store on disk, the queries in memory, and the last checkpoint.",
        runbook="EvaluatorStateRebuilt",
        also=("EvaluatorDiskLow", "EvaluatorStoreNearLimit"),
        targets=[
            ('max by (task) (evaluator_state_bytes{job=~"$job"})', "store, task {{task}}"),
            ('max by (task) (evaluator_memory_tier_bytes{job=~"$job"})', "memory, task {{task}}"),
            (
                'max by (task) (evaluator_checkpoint_bytes{job=~"$job"})',
                "checkpoint, task {{task}}",
            ),
        ],
        unit="bytes",
    ),
    Panel(
        title="Left to restore by task",
        text="Offsets of both logs that a restoring task must read before it writes again.",
        runbook="EvaluatorNotReady",
        also=("EvaluatorInputRetentionShort", "EvaluatorInputLost"),
        targets=[('max by (task) (evaluator_restore_left{job=~"$job"})', "task {{task}}")],
    ),
    Panel(
        title="Rebalances, commits, quarantined stores",
        text="In an hour, over all workers.",
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
                'sum(evaluator:quarantined_stores:increase1h{job=~"$job"}) or vector(0)',
                "quarantined stores",
            ),
        ],
    ),
    Panel(
        title="Memory",
        text="Resident memory of each worker.",
        runbook="EvaluatorTargetDown",
        also=("EvaluatorMemoryHigh",),
        targets=[('process_resident_memory_bytes{job=~"$job"}', "{{instance}}")],
        unit="bytes",
    ),
    Panel(
        title="Processor time",
        text="Cores in use by each worker; a worker uses little more than one.",
        runbook="EvaluatorStalled",
        also=("EvaluatorOpenFiles",),
        targets=[
            (
                'rate(process_cpu_seconds_total{job=~"$job"}[$__rate_interval])',
                "{{instance}}",
            )
        ],
    ),
]
MAP: Final = [
    Panel(
        title="Records that evaluator map has finished",
        text="By outcome, per second. Refused records become dead letters.",
        runbook="EvaluatorMapStalled",
        also=("EvaluatorDeadLetters",),
        targets=[
            (
                (
                    "sum by (topic, outcome) "
                    '(rate(evaluator_map_records_total{job=~"$job"}[$__rate_interval]))'
                ),
                "{{topic}} {{outcome}}",
            )
        ],
        unit="cps",
    ),
    Panel(
        title="Records that wait for evaluator map",
        text="Of all partitions. A record that leads the furthest clock by half of"
        " out_of_orderness_ms waits.",
        runbook="EvaluatorMapStalled",
        also=("EvaluatorMapBehind",),
        targets=[
            ('evaluator:map_lag:sum{job=~"$job"}', "{{job}}"),
            ("evaluator:lag_limit", "limit"),
        ],
    ),
    Panel(
        title="Age of the clocks of evaluator map",
        text="Lag of the last written records behind the clock, by partition.",
        runbook="EvaluatorMapBehind",
        targets=[
            (
                (
                    "time() - max by (topic, partition) "
                    '(evaluator_map_clock_timestamp_seconds{job=~"$job"})'
                ),
                "{{topic}}-{{partition}}",
            )
        ],
        unit="s",
    ),
    Panel(
        title="Partitions of evaluator map that wait",
        text="Their next record waits for the clocks of other partitions.",
        runbook="EvaluatorMapBehind",
        targets=[('sum(evaluator_map_paused_partitions{job=~"$job"})', "partitions")],
    ),
]


def pipeline() -> dashboard.Dashboard:
    """The dashboard of the input, its join and its settling."""
    made = board(
        "Evaluator: Pipeline",
        "Whether all input is read, joined and settled in time.",
        names=("model", "variant"),
        annotations=[PROMOTIONS],
    )
    rows = {"Records and outcomes": LEDGER, "Progress": PROGRESS, "evaluator map": MAP}
    return filled(made, PIPELINE_NOW, rows)
