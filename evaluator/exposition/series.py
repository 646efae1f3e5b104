"""What every metric of the evaluator is called and means: docs/metrics.md, kept true by a test."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

FINAL_OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "rankings": ("malformed", "heartbeat", "duplicate", "conflicting", "started"),
    "judgments": (
        *("malformed", "heartbeat", "duplicate", "conflicting"),
        *("late", "orphan", "over_limit", "applied"),
    ),
}


class Spec(NamedTuple):
    """Name (as it is scraped, with `_total`), type, meaning and labels of one metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "unknown"]
    meaning: str
    labels: tuple[str, ...]


def _counter(name: str, meaning: str, *labels: str) -> Spec:
    return Spec(f"evaluator_{name}_total", "counter", meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Spec:
    return Spec(f"evaluator_{name}", "gauge", meaning, labels)


MEASURED = ("model", "variant", "ranker", "measure")
SCORE_MEANING = "Sum of the settled values of a measure; divide by evaluator_quality_queries_total."
SCORE = _counter("quality_value", SCORE_MEANING, *MEASURED)
QUERIES_MEANING = "Settled queries that have a value of a measure."
QUERIES = _counter("quality_queries", QUERIES_MEANING, *MEASURED)
SQUARES_MEANING = "Sum of the squares of the settled values of a measure."
SQUARES = _counter("quality_value_squares", SQUARES_MEANING, *MEASURED)
RUNNING_MEANING = "Mean over every query with a value so far; absent while there is none."
RUNNING = _gauge("running_value_mean", RUNNING_MEANING, *MEASURED)
SETTLED_MEANING = "Settled queries, by whether a grade came in time."
SETTLED = _counter("queries_settled", SETTLED_MEANING, "model", "variant", "judged")
MESSAGES_MEANING = "Input records by final outcome."
MESSAGES = _counter("messages", MESSAGES_MEANING, "topic", "outcome")
DEAD_LETTERS = _counter("dead_letters", "Input records sent to the dead letters.", "reason")
OUT_OF_ORDER_MEANING = "Records older than out_of_orderness_ms allows; never dropped for it."
OUT_OF_ORDER = _counter("out_of_order", OUT_OF_ORDER_MEANING)
IN_SECONDS_MEANING = "Records whose timestamp is most likely in seconds, not milliseconds."
IN_SECONDS = _counter("timestamps_in_seconds", IN_SECONDS_MEANING, "topic")
NOTHING_RELEVANT_MEANING = "Judged settled queries without any relevant candidate."
NOTHING_RELEVANT = _counter("queries_nothing_relevant", NOTHING_RELEVANT_MEANING)
OPEN_QUERIES = _gauge("open_queries", "Queries that take judgments.")
EARLY_JUDGMENTS = _gauge(
    "early_judgments", "Judgments in the early buffer: their ranking has not been read."
)
DELAY_MEANING = "Age of a query when a judgment was applied to it, by event time."
DELAY = Spec("evaluator_judgment_delay_seconds", "histogram", DELAY_MEANING, ())
VALUES_MEANING = "Settled values of the measures in histogram_measures."
VALUES = Spec("evaluator_quality_values", "histogram", VALUES_MEANING, MEASURED)
WATERMARK_MEANING = "How far event time has certainly come; absent until both logs have a record."
WATERMARK = _gauge("watermark_timestamp_seconds", WATERMARK_MEANING, "task")
LAG_MEANING = "Records of a partition not read yet; absent until its end is known."
LAG = _gauge("consumer_lag", LAG_MEANING, "topic", "partition")
POSITION = _gauge("input_position", "Next offset to read of a partition.", "topic", "partition")
RETENTION_MEANING = "How long an input keeps its records; absent if the user may not read that."
RETENTION = _gauge("input_retention_seconds", RETENTION_MEANING, "topic")
NEEDED_MEANING = "How far back the inputs must reach for a task to be rebuilt."
NEEDED = _gauge("input_retention_needed_seconds", NEEDED_MEANING)
OUTSIDE_MEANING = "Positions that their log did not hold when they were to be read on from."
OUTSIDE = _counter("input_positions_outside", OUTSIDE_MEANING, "topic", "side")
LOST = _counter("input_records_lost", "Records that had expired before they were read.", "topic")
SKEW_MEANING = "How far the clock of this machine is ahead of the broker's; absent if unknown."
CLOCK_SKEW = _gauge("clock_skew_seconds", SKEW_MEANING)
AHEAD_MEANING = "How far the clock of a log is ahead of the broker's; 0 if it is not."
INPUT_AHEAD = _gauge("input_clock_ahead_seconds", AHEAD_MEANING, "topic", "partition")
TASKS = _gauge("tasks_owned", "Tasks that this process owns.")
RESTORING_MEANING = "Owned tasks that re-read what was committed; their counters stand still."
RESTORING = _gauge("restoring", RESTORING_MEANING)
CHECKPOINT_MEANING = "Wall clock of the last checkpoint record of a task; absent before the first."
CHECKPOINT = _gauge("checkpoint_timestamp_seconds", CHECKPOINT_MEANING, "task")
CHECKPOINT_BYTES_MEANING = "Size of the last checkpoint record of a task; 0 before the first."
CHECKPOINT_BYTES = _gauge("checkpoint_bytes", CHECKPOINT_BYTES_MEANING, "task")
STATE_BYTES = _gauge("state_bytes", "Size of the store of a task on the disk.", "task")
MEMORY_TIER_BYTES = _gauge("memory_tier_bytes", "Memory that the queries of a task take.", "task")
RESTORE_LEFT_MEANING = "Offsets of both logs until a restoring task writes again."
RESTORE_LEFT = _gauge("restore_left", RESTORE_LEFT_MEANING, "task")
QUARANTINED_STORES_HELP = (
    "Stores and checkpoint records that could not be used; tasks were rebuilt."
)
QUARANTINED_STORES = _counter("quarantined_stores", QUARANTINED_STORES_HELP, "task")
REBALANCES = _counter("rebalances", "Assignments of tasks by the group.")
COMMITS = _counter("commits", "Commits of offsets to the group, by what it answered.", "outcome")
LAST_COMMIT_MEANING = "Wall clock of the last commit; absent before the first."
LAST_COMMIT = _gauge("last_commit_timestamp_seconds", LAST_COMMIT_MEANING)
LIMIT_MEANING = "Memory that the control group of the process may take; absent without a limit."
MEMORY_LIMIT = _gauge("memory_limit_bytes", LIMIT_MEANING)
DISK_FREE = _gauge("disk_free_bytes", "Free room on the disk of state_dir.")
STATE_LIMIT_MEANING = "What the store of a task may take: max_store_bytes; absent if that is 0."
STATE_LIMIT = _gauge("state_limit_bytes", STATE_LIMIT_MEANING)
READY = _gauge("ready", "1 if the worker is ready, as /readyz says.")
BUILD = _gauge("build_info", "Always 1; the labels say what runs.", "version", "python")

# Of the leader; only while learning is on.
LEADER_ACTIVE = _gauge("leader_active", "1 if this process is the leader.")
LEADER_EPOCHS = _counter("leader_epochs", "Times that this process took leadership.")
GAPS_MEANING = "Times that settled queries were missing, so that learning restarted."
GAPS = _counter("leader_gaps", GAPS_MEANING)
RECORDS = _counter("leader_records", "Records of settled that the leader read.", "outcome")
AWAITED_MEANING = "1 if a task has no newer records in settled and holds up the others."
AWAITED = _gauge("leader_awaited", AWAITED_MEANING, "task")
BUFFERED_MEANING = "Settled queries that the leader has read and not processed yet."
BUFFERED = _gauge("leader_buffered_queries", BUFFERED_MEANING)
LEFT_ALONE_MEANING = "Settled queries of models beyond those that are learned for."
IGNORED = _gauge("leader_ignored_queries", LEFT_ALONE_MEANING)
TURN_MEANING = "When the last query of the last interval settled; absent before."
INTERVAL = _gauge("leader_interval_timestamp_seconds", TURN_MEANING)
RELEASES_MEANING = "Records of weights that this process has published."
RELEASES = _counter("weights_releases", RELEASES_MEANING, "model", "status")
EPOCH = _gauge("weights_epoch", "Epoch of the weights of a model.", "model")
LAST_VERSION = _gauge("weights_last_version", "Version of the last record of a model.", "model")
VERSION_MEANING = "Version of the weights in force; absent without any."
VERSION = _gauge("weights_version", VERSION_MEANING, "model", "ranker")
WEIGHT = _gauge("weights_value", "Weight of a feature, in raw units.", "model", "ranker", "feature")
UPDATES = _gauge("learning_updates", "Updates of the learner in this epoch.", "model")
LOSS_MEANING = "Mean loss of an interval, each before its update; absent before the first."
LOSS = _gauge("learning_loss", LOSS_MEANING, "model")
FROZEN = _gauge("learning_frozen", "1 if nothing is learned any more.", "model")
EVIDENCE_MEANING = (
    "Evidence of the experiment for the candidate, and against it; 1 without an experiment."
)
EVIDENCE = _gauge("experiment_evidence", EVIDENCE_MEANING, "model", "side")
NEEDED_EVIDENCE_MEANING = "Evidence that decides an experiment: 1 / gate_alpha."
EVIDENCE_NEEDED = _gauge("experiment_evidence_needed", NEEDED_EVIDENCE_MEANING, "model")
TRACES = _gauge("experiment_traces", "Traces that the experiment has bet on.", "model")

SPECS: tuple[Spec, ...] = (
    *(SCORE, QUERIES, SQUARES, RUNNING, VALUES, SETTLED, MESSAGES, DEAD_LETTERS, OUT_OF_ORDER),
    *(
        IN_SECONDS,
        NOTHING_RELEVANT,
        OPEN_QUERIES,
        EARLY_JUDGMENTS,
        DELAY,
        WATERMARK,
        LAG,
        POSITION,
        RETENTION,
        NEEDED,
    ),
    *(
        OUTSIDE,
        LOST,
        CLOCK_SKEW,
        INPUT_AHEAD,
        TASKS,
        RESTORING,
        CHECKPOINT,
        CHECKPOINT_BYTES,
        STATE_BYTES,
        MEMORY_TIER_BYTES,
    ),
    *(RESTORE_LEFT, QUARANTINED_STORES, REBALANCES, COMMITS, LAST_COMMIT, MEMORY_LIMIT, DISK_FREE),
    *(STATE_LIMIT, READY, BUILD),
    *(
        LEADER_ACTIVE,
        LEADER_EPOCHS,
        GAPS,
        RECORDS,
        AWAITED,
        BUFFERED,
        IGNORED,
        INTERVAL,
        RELEASES,
        EPOCH,
    ),
    *(LAST_VERSION, VERSION, WEIGHT, UPDATES, LOSS, FROZEN, EVIDENCE, EVIDENCE_NEEDED, TRACES),
)


def clean(label: str) -> str:
    """A label value that every scraper can parse: no NUL, no lone surrogate."""
    if label.isascii() and "\0" not in label:
        return label
    return label.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
