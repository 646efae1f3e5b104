"""What every metric is called, is, means and is labelled with."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

Samples = Iterable[tuple[tuple[str, ...], float]]


class Spec(NamedTuple):
    """Name (as it is scraped, with `_total`), type, meaning and labels of one metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...]


def _counter(name: str, meaning: str, *labels: str) -> Spec:
    return Spec(f"evaluator_{name}_total", "counter", meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Spec:
    return Spec(f"evaluator_{name}", "gauge", meaning, labels)


MEASURED = ("model", "variant", "ranker", "measure")
SCORE_MEANING = "Sum of the settled values of a measure; divide by evaluator_quality_queries_total."
SCORE = _counter("quality_score", SCORE_MEANING, *MEASURED)
QUERIES_MEANING = "Settled queries that have a value of a measure."
QUERIES = _counter("quality_queries", QUERIES_MEANING, *MEASURED)
SQUARES_MEANING = "Sum of the squares of the settled values of a measure."
SQUARES = _counter("quality_score_squares", SQUARES_MEANING, *MEASURED)
RUNNING_MEANING = "Mean over every query with a value so far; absent while there is none."
RUNNING = _gauge("running_score_mean", RUNNING_MEANING, *MEASURED)
SETTLED_MEANING = "Queries scored for good, by whether a grade came in time."
SETTLED = _counter("queries_settled", SETTLED_MEANING, "model", "variant", "judged")
MESSAGES_MEANING = "Input records by what became of them for good."
MESSAGES = _counter("messages", MESSAGES_MEANING, "topic", "outcome")
DEAD_LETTERS = _counter("dead_letters", "Input records sent to the dead letters.", "reason")
OUT_OF_ORDER_MEANING = "Records older than out_of_orderness_ms allows; never dropped for it."
OUT_OF_ORDER = _counter("out_of_order", OUT_OF_ORDER_MEANING)
NOTHING_RELEVANT_MEANING = "Judged settled queries without any relevant candidate."
NOTHING_RELEVANT = _counter("queries_nothing_relevant", NOTHING_RELEVANT_MEANING)
HELD = _gauge("held_queries", "Queries held for judgments.")
WAITING = _gauge("waiting_judgments", "Judgments that wait for their ranking.")
DELAY_MEANING = "Age of a query when a judgment was applied to it, by event time."
DELAY = Spec("evaluator_judgment_delay_seconds", "histogram", DELAY_MEANING, ())
VALUES_MEANING = "Settled values of the measures in histogram_measures."
VALUES = Spec("evaluator_quality_values", "histogram", VALUES_MEANING, MEASURED)
WATERMARK_MEANING = "How far event time has certainly come; absent until both logs have spoken."
WATERMARK = _gauge("watermark_timestamp_seconds", WATERMARK_MEANING, "task")
LAG_MEANING = "Records of a partition not read yet; absent until its end is known."
LAG = _gauge("consumer_lag", LAG_MEANING, "topic", "partition")
POSITION = _gauge("input_position", "Next offset to read of a partition.", "topic", "partition")
TASKS = _gauge("tasks_owned", "Tasks that this process owns.")
RESTORING_MEANING = "Owned tasks that re-read what was committed; their counters stand still."
RESTORING = _gauge("restoring", RESTORING_MEANING)
LAST_COMMIT_MEANING = "Wall clock of the last commit; absent before the first."
LAST_COMMIT = _gauge("last_commit_timestamp_seconds", LAST_COMMIT_MEANING)
CHECKPOINT_MEANING = "Wall clock of the last checkpoint record of a task; absent before the first."
CHECKPOINT = _gauge("checkpoint_timestamp_seconds", CHECKPOINT_MEANING, "task")
CHECKPOINT_BYTES_MEANING = "Size of the last checkpoint record of a task; 0 before the first."
CHECKPOINT_BYTES = _gauge("checkpoint_bytes", CHECKPOINT_BYTES_MEANING, "task")
STATE_BYTES = _gauge("state_bytes", "Size of the store of a task on the disk.", "task")
HELD_BYTES = _gauge("held_bytes", "Memory that the queries of a task take.", "task")
RESTORE_LEFT_MEANING = "Offsets of both logs until a task that restores speaks again."
RESTORE_LEFT = _gauge("restore_left", RESTORE_LEFT_MEANING, "task")
SET_ASIDE_MEANING = "Stores that could not be trusted and were made again."
SET_ASIDE = _counter("states_set_aside", SET_ASIDE_MEANING, "task")
REBALANCES = _counter("rebalances", "Times that the group said who owns which tasks.")
COMMITS = _counter("commits", "Commits of offsets to the group, by what it answered.", "outcome")
READY = _gauge("ready", "1 if the worker is ready, as /readyz says.")
BUILD = _gauge("build_info", "Always 1; the labels say what runs.", "version", "python")
SPECS: tuple[Spec, ...] = (
    *(SCORE, QUERIES, SQUARES, RUNNING, VALUES, SETTLED, MESSAGES, DEAD_LETTERS, OUT_OF_ORDER),
    *(NOTHING_RELEVANT, HELD, WAITING, DELAY, WATERMARK, LAG, POSITION, TASKS, RESTORING),
    *(CHECKPOINT, CHECKPOINT_BYTES, STATE_BYTES, HELD_BYTES, RESTORE_LEFT, SET_ASIDE),
    *(REBALANCES, COMMITS, LAST_COMMIT, READY, BUILD),
)


def family_of(spec: Spec, samples: Samples) -> Metric:
    """The family of a counter or a gauge."""
    make = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    found = make(spec.name, spec.meaning, labels=spec.labels)
    for labels, value in samples:
        found.add_metric(labels, value)
    return found
