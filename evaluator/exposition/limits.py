"""The numbers that alerts, dashboards and the live page compare with: the only list of them.

`make generate` writes the rules of deploy/prometheus from it, which record each as a series.
"""

from typing import Final, NamedTuple

from evaluator.core.types.records import MAX_SKEW_MS


class Limit(NamedTuple):
    """A number; the series is called `evaluator:NAME`, with a label if it is of one measure."""

    name: str
    number: float
    meaning: str
    measure: str = ""


LIMITS: Final = (
    Limit(
        "bound_z",
        4,
        "Standard errors between a figure and its bound, for evaluations every minute; 1.96 is for "
        "a single one.",
    ),
    Limit(
        "design_effect",
        2,
        "Judged queries per independent one: nodes of one trace succeed and fail together.",
    ),
    Limit("min_queries", 200, "Queries that an hour must have before it is compared."),
    Limit(
        "bad_share_accepted",
        0.1,
        "The accepted share of bad queries (a value of at most 0.1). Needs histogram_measures.",
        measure="ndcg@10",
    ),
    Limit("bad_share_burn", 4, "The multiple of the accepted share that fires."),
    Limit(
        "judgment_delay_limit_seconds",
        3600,
        "Fires if a quarter of the judgments is later than this: maturity_ms in seconds.",
    ),
    Limit(
        "min_expected_messages",
        20,
        "Expected messages in a quarter of an hour from which their absence fires.",
    ),
    Limit(
        "min_steady_messages",
        12,
        "Rankings in each five minutes of a quarter of an hour from which eight minutes without "
        "any fire.",
    ),
    Limit(
        "judged_share_limit",
        0.1,
        "Smallest share of the settled queries that are judged, silence that counts as a grade "
        "included. Set it below your usual share.",
    ),
    Limit("orphan_share_limit", 0.05, "Share of orphans among the judgments."),
    Limit("dead_letter_share_limit", 0.01, "Share of one reason's dead letters among all records."),
    Limit("lag_limit", 1000, "Unread records of a task, or of evaluator map."),
    Limit("watermark_age_limit_seconds", 1800, "Age of the watermark of a task."),
    Limit(
        "input_clock_ahead_limit_seconds",
        300,
        "How far the clock of a log may be ahead of the broker's: max_future_skew_ms in seconds.",
    ),
    Limit(
        "clock_skew_limit_seconds",
        MAX_SKEW_MS // 1000,
        "Difference of a machine's clock from the broker's from which it writes no heartbeats.",
    ),
    Limit("out_of_order_share_limit", 0.01, "Share of records out of order."),
    Limit("unusable_share_limit", 0.05, "Share of the queries that cannot be learned from."),
    Limit("memory_share_limit", 0.9, "Largest share of the memory limit."),
    Limit("store_share_limit", 0.9, "Largest share of max_store_bytes for the store of a task."),
    Limit("open_files_share_limit", 0.8, "Largest share of the limit of open files."),
    Limit("disk_free_limit_bytes", 2e9, "The free disk space that RocksDB needs for compaction."),
    Limit(
        "checkpoint_age_limit_seconds", 600, "Age of the last checkpoint of a task that is reading."
    ),
    Limit(
        "snapshot_age_limit_seconds",
        900,
        "Age of the last snapshot of a store: three times snapshot_interval_ms.",
    ),
)


def limit(name: str) -> float:
    """The number called *name*; of several, for different measures, the smallest.

    >>> limit("orphan_share_limit")
    0.05
    """
    return min(each.number for each in LIMITS if each.name == name)
