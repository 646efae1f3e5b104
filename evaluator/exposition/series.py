"""Name, type, labels and meaning of every metric of the evaluator, and their OpenMetrics text.

docs/metrics.md has the metrics, https://prometheus.io/docs/specs/om/open_metrics_spec the format.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

_BOTH_LOGS: Final = ("malformed", "heartbeat", "left_out", "duplicate", "conflicting")
FINAL_OUTCOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "rankings": (*_BOTH_LOGS, "started"),
    "judgments": (*_BOTH_LOGS, "late", "orphan", "over_limit", "applied"),
}


class Spec(NamedTuple):
    """Name as scraped (with `_total`), type, meaning and labels of a metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "unknown"]
    meaning: str
    labels: tuple[str, ...]


# Name without prefix and `_total`, type, labels; then the meaning. In the order of a scrape.
_TABLE: Final = """
quality_value counter model variant ranker measure
    Sum of the settled values of a measure; divide by evaluator_quality_queries_total.
quality_queries counter model variant ranker measure
    Settled queries that have a value of a measure.
quality_value_squares counter model variant ranker measure
    Sum of the squares of the settled values of a measure.
running_value_mean gauge model variant ranker measure
    Mean over every query with a value so far; absent while there is none.
quality_values histogram model variant ranker measure
    Settled values of the measures in histogram_measures.
queries_settled counter model variant judged
    Settled queries, by whether a grade came in time.
exposures counter model variant position
    With silence = zero: exposed candidates of settled queries by rank in the served order, 1 to 10.
clicks counter model variant position
    With silence = zero: exposed candidates of settled queries that were graded above 0, by rank.
segment_value counter model variant ranker measure segment level
    Sum of the settled values of a measure, of the queries of a level.
segment_queries counter model variant ranker measure segment level
    Settled queries of a level that have a value of a measure.
segment_queries_settled counter model variant segment level judged
    Settled queries of a level, by whether a grade came in time.
messages counter topic outcome
    Input records by final outcome.
dead_letters counter reason
    Input records sent to the dead letters.
out_of_order counter
    Records older than out_of_orderness_ms allows; never dropped for it.
timestamps_in_seconds counter topic
    Records whose timestamp is most likely in seconds, not milliseconds.
queries_nothing_relevant counter
    Judged settled queries without any relevant candidate.
open_queries gauge
    Queries that take judgments.
early_judgments gauge
    Judgments in the early buffer: their ranking has not been read.
judgment_delay_seconds histogram
    Age of a query when a judgment was applied to it, by event time.
watermark_timestamp_seconds gauge task
    Event time up to which inputs are complete; absent until both logs have a record.
consumer_lag gauge topic partition
    Records of a partition not read yet; absent until its end is known.
input_position gauge topic partition
    Next offset to read of a partition.
input_retention_seconds gauge topic
    Retention of an input topic; absent if the user may not read its configuration.
input_retention_needed_seconds gauge
    Retention of the inputs that a rebuild of a task needs.
input_positions_outside counter topic side
    Positions that their log did not contain when reading was to continue from them.
input_records_lost counter topic
    Records that had expired before they were read.
clock_skew_seconds gauge
    How far the clock of this machine is ahead of the broker's; absent if unknown.
input_clock_ahead_seconds gauge topic partition
    How far the clock of a log is ahead of the broker's; 0 if it is not.
tasks_owned gauge
    Tasks that this process owns.
restoring gauge
    Owned tasks that re-read committed records; their counters do not change.
checkpoint_timestamp_seconds gauge task
    Wall clock of the last checkpoint record of a task; absent before the first.
checkpoint_bytes gauge task
    Size of the last checkpoint record of a task; 0 before the first.
state_bytes gauge task
    Size of the state store of a task on disk.
memory_tier_bytes gauge task
    Memory that the queries of a task take.
restore_left gauge task
    Offsets of both logs that a restoring task has still to read.
quarantined_stores counter task
    Stores and checkpoint records that could not be used.
snapshot_timestamp_seconds gauge task
    Wall clock of the last snapshot of a store, at first of the take-over; absent without snapshots.
snapshot_size_bytes gauge task
    Size of the last snapshot of a store; 0 before the first.
snapshot_bytes counter direction
    Bytes of snapshots that were written and fetched; files that were there are not counted.
snapshot_failures counter operation
    Snapshots that could not be written or fetched.
rebalances counter
    Assignments of tasks by the group.
commits counter outcome
    Commits of offsets to the group, by its response.
last_commit_timestamp_seconds gauge
    Wall clock of the last commit; absent before the first.
memory_limit_bytes gauge
    Memory limit of the control group of the process; absent without a limit.
disk_free_bytes gauge
    Free space on the disk of state_dir.
state_limit_bytes gauge
    Limit of the state store of a task: max_store_bytes; absent if that is 0.
map_records counter topic outcome
    Records that evaluator map has finished, by outcome.
map_messages counter topic
    Messages that evaluator map has written.
map_lag gauge topic partition
    Records of a partition that evaluator map has not finished; absent until its end is known.
map_clock_timestamp_seconds gauge topic partition
    Clock of a partition that evaluator map reads; absent before its first timestamp.
map_paused_partitions gauge
    Partitions whose next record waits for the clocks of others.
map_begun_anew counter topic
    Partitions that were read from their beginning because their topic was recreated.
ready gauge
    1 if the process is ready, as in /readyz.
build_info gauge version python
    Always 1; the labels are the versions that run.
links_info gauge runbooks dashboards
    Always 1; the labels are runbook_url and dashboard_url. Absent without both.
leader_active gauge
    1 if this process is the leader.
leader_epochs counter
    Times that this process became the leader.
leader_gaps counter
    Times that settled queries were missing, so that learning restarted.
leader_records counter outcome
    Records of settled that the leader read.
leader_awaited gauge task
    1 if a task has no newer records in settled and delays the others.
leader_buffered_queries gauge
    Settled queries that the leader has read and not processed yet.
leader_ignored_queries gauge
    Settled queries of models beyond the limit of learned models.
leader_interval_timestamp_seconds gauge
    Settled time of the last query of the last interval; absent before.
weights_releases counter model status
    Weights records that this process has published.
weights_epoch gauge model
    Epoch of the weights of a model.
weights_last_version gauge model
    Version of the last weights record of a model.
weights_version gauge model ranker
    Version of the live weights and of those in an experiment; absent without any.
weights_value gauge model ranker feature
    Weight of a feature, in raw units.
learning_updates gauge model
    Updates of the learner in this epoch.
learning_loss gauge model
    Mean loss of an interval, each before its update; absent before the first.
learning_frozen gauge model
    1 if learning of a model is frozen.
learning_unusable_queries counter model reason
    Queries that could not be learned from: features, propensities, overflow, invalid.
learning_unusable_share gauge model
    Share of the last 1,000 queries with features that could not be learned from.
experiment_evidence gauge model side
    Evidence of the experiment for the challenger and against it; 1 without an experiment.
experiment_evidence_needed gauge model
    Evidence that decides an experiment: 1 / gate_alpha.
experiment_traces gauge model
    Traces that the experiment has bet on.
alarm_active gauge model variant ranker measure segment level kind
    1 while the alarm of a watched series is on.
alarm_acknowledged gauge model variant ranker measure segment level kind
    1 while an alarm is on that an operator has acknowledged.
alarm_evidence_ratio gauge model variant ranker measure segment level kind
    Share of what an alarm needs, at the last tick; from 1 on an alarm begins.
alarm_since_timestamp_seconds gauge model variant ranker measure segment level kind
    Event time at which the alarm that is on began.
alarm_observed_mean gauge model variant ranker measure segment level kind
    Mean of the window that began the alarm that is on.
alarm_expected_mean gauge model variant ranker measure segment level kind
    What the reference expected of the window that began the alarm that is on.
alarm_day_mean gauge model variant ranker measure segment level kind
    Mean of the last day of a watched series; absent if it cannot be compared.
alarm_day_expected_mean gauge model variant ranker measure segment level kind
    What the reference expects of the last day.
alarm_day_spread gauge model variant ranker measure segment level kind
    Standard deviation of their difference: of days in the reference, and by chance.
alarm_reference_weeks gauge model variant ranker measure segment level kind
    Weeks of the reference of a series; 0 before there are two.
alarm_carried_share gauge model variant ranker measure segment level kind carrier
    Share of the drop of an alarm that is on, of the levels that carry most of it, at most three.
alarm_usable_windows gauge model variant ranker measure segment level kind
    Windows of a series with a reference and enough queries, of four; 0: nothing is compared.
alarm_reference_timestamp_seconds gauge model variant ranker measure segment level kind
    Event time from which a series without a reference is expected to have one; absent with one.
alarm_series_left_out gauge
    Series beyond alarm_max_series, which are not watched.
alarm_tick_timestamp_seconds gauge
    Event time up to which series have been watched; absent before the first query.
"""


def _specs() -> Iterator[tuple[str, Spec]]:
    lines = iter(_TABLE.strip().splitlines())
    for head, meaning in zip(lines, lines, strict=True):
        kind: Any
        name, kind, *labels = head.split()
        suffix = "_total" if kind == "counter" else ""
        yield name, Spec(f"evaluator_{name}{suffix}", kind, meaning.strip(), tuple(labels))


SPECS: Final[Mapping[str, Spec]] = dict(_specs())
"""Every metric by its name without prefix and `_total`."""


def clean(label: str) -> str:
    """A label value that every scraper can parse: no NUL, no lone surrogate."""
    if label.isascii() and "\0" not in label:
        return label
    return label.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


END: Final = b"# EOF"

LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def header(spec: Spec) -> list[bytes]:
    """The HELP and TYPE lines of a family; its name has no `_total`."""
    name = spec.name.removesuffix("_total")
    return [
        f"# HELP {name} {_escaped(spec.meaning)}".encode(),
        f"# TYPE {name} {spec.kind}".encode(),
    ]


def head(name: str, labels: Mapping[str, str]) -> bytes:
    r"""Name and labels of a sample.

    >>> head("up", {"job": 'a"b', "path": "c\\d"})
    b'up{job="a\\"b",path="c\\\\d"}'
    """
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}".encode() if pairs else name.encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
