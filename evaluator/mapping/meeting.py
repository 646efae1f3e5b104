"""Whether rankings and judgments of a trace are in partitions of the same number."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from evaluator.ports import Finding

Partitioners = Mapping[str, Callable[[bytes, int], int]]
"""The partition of a key and a partition count, by the name of the partitioner."""

COPY: Final = "`evaluator map --mapping FILE --source kafka://HOST:PORT --to rankings,judgments`"
"""The command that copies records into topics that fit."""
REMEDY: Final = (
    "Key both topics by the source of trace_id, with one partitioner and one partition count, or "
    f"copy them with {COPY}."
)


class Placement(Struct):
    """The partitions of the messages of one topic.

    `partitions` are those of each trace. Of the `n_keys` messages with a key, each of `fitting` is
    the number that one partitioner explains; `n_keyed` of them have their trace_id as key.
    """

    topic: str
    n_partitions: int = 1
    partitions: dict[str, set[int]] = field(default_factory=dict)
    n_messages: int = 0
    n_keys: int = 0
    n_keyed: int = 0
    fitting: Counter[str] = field(default_factory=Counter)

    def add(
        self, trace_id: str, partition: int, key: bytes | None, partitioners: Partitioners
    ) -> None:
        self.n_messages += 1
        self.partitions.setdefault(trace_id, set()).add(partition)
        if key is not None:
            self.n_keys += 1
            self.n_keyed += key == trace_id.encode()
            self.fitting.update(
                name for name, of in partitioners.items() if of(key, self.n_partitions) == partition
            )

    @property
    def partitioners(self) -> set[str]:
        """The partitioners that explain the partitions of all keys."""
        return {name for name, n in self.fitting.items() if n == self.n_keys}

    def __str__(self) -> str:
        if not self.n_messages:
            return f"no record of {self.topic} is a message"
        if not self.n_keys:
            return f"{self.topic} has no keys"
        by = " or ".join(sorted(self.partitioners)) or "an unknown partitioner"
        return (
            f"{self.n_keyed} of {self.n_messages} messages of {self.topic} are keyed by trace_id, "
            f"and its keys are placed by {by}"
        )


def meeting(rankings: Placement, judgments: Placement) -> Finding:
    """Whether the two sides of a trace meet in one partition."""
    if rankings.topic == judgments.topic:
        what = f"{rankings.topic} has rankings and judgments, and a worker reads two topics."
        return Finding("warning", what, f"Copy them with {COPY}: then all traces meet.")
    both, counts = (rankings, judgments), {rankings.n_partitions, judgments.n_partitions}
    known = f"{rankings}; {judgments}"
    if len(counts) > 1:
        what = f"{rankings.topic} has {rankings.n_partitions} partitions and {judgments.topic} "
        return Finding("error", f"{what}has {judgments.n_partitions}.", REMEDY)
    if counts == {1}:
        return Finding("ok", "Both topics have one partition, so all traces meet.")
    traces = rankings.partitions.keys() & judgments.partitions.keys()
    apart = sum(rankings.partitions[each] != judgments.partitions[each] for each in traces)
    if apart:
        return Finding(
            "error",
            f"{apart} of {len(traces)} traces are in partitions of different numbers, so their "
            f"judgments never meet their rankings: {known}.",
            REMEDY,
        )
    if traces:
        what = f"All {len(traces)} traces that this sample has of both topics meet: {known}."
        return Finding("ok", what)
    keyed = all(each.n_keyed == each.n_messages > 0 for each in both)
    if keyed and (same := rankings.partitioners & judgments.partitioners):
        what = f"Both topics are keyed by trace_id, with the partitioner {' or '.join(same)}."
        return Finding("ok", what)
    if not all(each.n_messages for each in both):
        what = f"It is unknown whether traces meet: {known}."
        return Finding("warning", what, "Correct the mapping first.")
    what = f"No trace of this sample has both rankings and judgments: {known}."
    return Finding("warning", what, f"Take a larger sample with `evaluator mapping try`. {REMEDY}")
