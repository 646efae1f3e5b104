"""The results of a mapping on a sample of records, for an operator."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

from evaluator.core.types.records import LOGS, Log
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.meeting import Partitioners, Placement, meeting
from evaluator.mapping.messages import WRITTEN_NAMES, messages_of
from evaluator.mapping.record import LeftOut, Record, kind_of
from evaluator.mapping.schemas import Answer
from evaluator.ports import Finding
from evaluator.tables import printable, utc_time
from evaluator.wire.messages.intake import refusal_of_time
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.models import Judgment, Message, Ranking
from evaluator.wire.messages.strict import read_message

MOST_REASONS: Final = 10
"""Most reasons of a summary."""

Query = tuple[str, str]

_UNITS: Final = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
"""The units of numbers; each is 1,000 of the next."""

ENOUGH: Final = 10
"""Traces or candidates of which one would meet by chance, even in a part of a topic."""


class Reason(NamedTuple):
    """Records of one kind: the first of them and its reason, and whether all have this reason."""

    n: int
    place: str
    first: str
    is_same: bool

    def __str__(self) -> str:
        first = self.first if self.is_same else kind_of(self.first)
        example = "" if self.is_same else f": {self.first}"
        return f"{self.n:>6} x {first} (first: {self.place}{example})"


class LogSample(Struct):
    """The counts of one log; `queries` are the keys of messages, `pairs` add the candidates."""

    placement: Placement
    n_records: int = 0
    n_messages: int = 0
    n_left_out: int = 0
    n_refused: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)  # by kind
    times_ms: list[int] = field(default_factory=list)
    queries: Counter[Query] = field(default_factory=Counter)
    pairs: set[tuple[Query, str]] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)  # of no message yet, and their names
    unit: str = "ms"

    @property
    def in_other_unit(self) -> tuple[int, str] | None:
        """Timestamps that another unit brings between 2001 and 2286, and that unit."""
        if self.unit not in _UNITS:
            return None
        at = list(_UNITS).index(self.unit)
        for other, unit in enumerate(_UNITS):
            first_ms = 10 ** (12 + 3 * (other - at))
            n = sum(first_ms <= ms < 10 * first_ms for ms in self.times_ms)
            if n and other != at:
                return n, unit
        return None

    def note(self, why: str, place: str) -> None:
        """Counts a reason with those of its kind."""
        n, first, first_why, is_same = self.reasons.get(kind_of(why), (0, place, why, True))
        self.reasons[kind_of(why)] = Reason(n + 1, first, first_why, is_same and why == first_why)


class SampleReport:
    """Maps records one by one and counts the results.

    A topic without a mapping has messages. *partitioners* are those that may have placed the keys,
    none for files; *answers* has the schemas by id.
    """

    def __init__(
        self,
        mappings: Mapping[Log, LogMapping],
        topics: Mapping[Log, str],
        partitioners: Partitioners,
        answers: Mapping[str, Answer],
        *,
        max_future_skew_ms: int,
    ) -> None:
        self._max_future_skew_ms = max_future_skew_ms
        self._maps = {log: messages_of(mapping, answers) for log, mapping in mappings.items()}
        self._partitioners = partitioners
        self.comparisons: Sequence[Finding] = ()
        self.logs = {log: LogSample(Placement(topics[log])) for log in LOGS}
        for log, mapping in mappings.items():
            self.logs[log].missing = _optional(mapping)
            timestamp = {**mapping.rows, **mapping.members}.get("timestamp_ms")
            self.logs[log].unit = timestamp.unit if timestamp else "ms"

    def lines(
        self, log: Log, partition: int, offset: int, record: Record, refused: Malformed | None
    ) -> Iterator[str]:
        """One line for each message of a record, or for the record, which may be *refused*."""
        sample = self.logs[log]
        place = f"{sample.placement.topic}-{partition}:{offset}"
        sample.n_records += 1
        outcome = refused or (self._maps[log](record) if log in self._maps else [record.value])
        if isinstance(outcome, list):
            model: type[Message] = Ranking if log == "rankings" else Judgment
            read = (self._read(value, model, record.timestamp_ms) for value in outcome)
            outcome = next((each for each in read if isinstance(each, Malformed)), outcome)
        if isinstance(outcome, LeftOut):
            sample.n_left_out += 1
            sample.note(f"left out  {outcome.why}", place)
            yield printable(f"{place}  left out  {outcome.why}")
        elif isinstance(outcome, Malformed):
            sample.n_refused += 1
            why = f"refused   {outcome.reason}: {outcome.detail}"
            sample.note(why, place)
            yield printable(f"{place}  {why}")
        else:
            for value in outcome:
                message = msgspec.json.decode(value)
                self._count(sample, message)
                trace_id, key = message["trace_id"], record.key
                sample.placement.add(trace_id, partition, key, self._partitioners)
                yield printable(f"{place}  message   {value.decode()}")

    def _read(
        self, value: bytes, model: type[Message], record_ms: int | None
    ) -> Message | Malformed:
        """The message, or its refusal by a worker."""
        message = read_message(value, model)
        if isinstance(message, Malformed):
            return message
        own_ms, record_ms = (-1 if ms is None else ms for ms in (message.timestamp_ms, record_ms))
        return refusal_of_time(own_ms, record_ms, self._max_future_skew_ms) or message

    @staticmethod
    def _count(sample: LogSample, message: dict[str, Any]) -> None:
        sample.n_messages += 1
        query = message["trace_id"], message["node_id"]
        sample.queries[query] += 1
        sample.pairs |= {
            (query, each) for each in message.get("candidate_ids", message.get("grades", ()))
        }
        if sample.missing:
            given = {*message, *(f"segments.{name}" for name in message.get("segments", ()))}
            sample.missing = {
                name: written for name, written in sample.missing.items() if written not in given
            }
        if "timestamp_ms" in message:
            sample.times_ms.append(message["timestamp_ms"])

    def summary(self) -> Iterator[str]:
        """The counts, the reasons, and whether judgments meet their rankings and schemas fit."""
        for log, sample in self.logs.items():
            topic, n_messages = sample.placement.topic, sample.n_messages
            yield (
                f"[{log}] {topic}: {sample.n_records} records: {n_messages} messages, "
                f"{sample.n_left_out} left out, {sample.n_refused} refused"
            )
            by_count = sorted(sample.reasons.values(), key=lambda each: -each.n)
            for reason in by_count[:MOST_REASONS]:
                yield printable(f"  {reason}")
            if len(by_count) > MOST_REASONS:
                yield f"  and {len(by_count) - MOST_REASONS} other reasons"
            yield from self._hints(sample)
        if self.logs["judgments"].n_messages:
            yield from self._meeting(self.logs["rankings"], self.logs["judgments"])
        verdict = self.verdict()
        if self._partitioners or verdict.severity == "error":
            yield " ".join(filter(None, verdict[1:]))
        for each in (*self.faults(), *self.comparisons):
            yield printable(" ".join(filter(None, each[1:])))

    @staticmethod
    def _hints(sample: LogSample) -> Iterator[str]:
        if not sample.n_records:
            yield "  no record: check the topic and --source"
        elif not sample.n_messages:
            yield "  no message: nothing of this topic would be evaluated"
        elif not sample.times_ms:
            yield "  no timestamp_ms: files need one; a topic's records have their own"
        else:
            first, last = (utc_time(of(sample.times_ms) / 1000) for of in (min, max))
            yield f"  timestamps from {first} to {last}; if that is wrong, check `unit`"
            if sample.in_other_unit is not None:
                n, unit = sample.in_other_unit
                yield f'  {n} of them are {_UNITS[unit]}, most likely: set unit = "{unit}"'
        if sample.n_messages and sample.missing:
            yield f"  in no message: {', '.join(sample.missing)}; check their paths"

    def _meeting(self, rankings: LogSample, judgments: LogSample) -> Iterator[str]:
        """Whether both logs have the same keys and candidates."""
        n_met, n_pairs, n_listed = self._met()
        yield (
            f"{n_met} of {judgments.n_messages} judgments are of a ranking in this sample"
            + ("" if n_met else ": compare trace_id and node_id of both, or take a larger --sample")
        )
        if n_pairs:
            yield (
                f"{n_listed} of their {n_pairs} judged candidates are in the ranking"
                + ("" if n_listed else ": compare candidate_id of both")
            )
        again = sum(n > 1 for n in rankings.queries.values())
        if again:
            yield f"{again} queries have several rankings: only the first of each counts"

    def _met(self) -> tuple[int, int, int]:
        """The judgments of rankings in the sample, their candidates, and those in the ranking."""
        rankings, judgments = (self.logs[log] for log in LOGS)
        met = judgments.queries.keys() & rankings.queries.keys()
        pairs = {pair for pair in judgments.pairs if pair[0] in met}
        n_met = sum(judgments.queries[query] for query in met)
        return n_met, len(pairs), len(pairs & rankings.pairs)

    def faults(self) -> Iterator[Finding]:
        """Defects that make a mapping useless although its messages are valid."""
        rankings, judgments = (self.logs[log] for log in LOGS)
        for log, sample in self.logs.items():
            if sample.in_other_unit is not None:
                n, unit = sample.in_other_unit
                what = (
                    f"{n} timestamps of {sample.placement.topic} are {_UNITS[unit]}, most likely."
                )
                yield Finding("error", what, f'Set unit = "{unit}" for timestamp_ms of [{log}].')
        n_met, n_pairs, n_listed = self._met()
        sides = rankings.placement.partitions.keys() & judgments.placement.partitions.keys()
        if len(sides) >= ENOUGH and not n_met:
            what = f"{len(sides)} traces have rankings and judgments, and none the same node_id."
            yield Finding("error", what, "Map node_id of both topics to the same text.")
        if n_pairs >= ENOUGH and not n_listed:
            what = f"None of {n_pairs} judged candidates is in its ranking."
            yield Finding("error", what, "Map candidate_id of both topics to the same text.")

    def verdict(self) -> Finding:
        """Whether rankings and judgments meet."""
        return meeting(*(self.logs[log].placement for log in LOGS))

    @property
    def failed(self) -> bool:
        """Whether a record is refused, a topic gives no message, or both sides do not fit."""
        findings = (*self.faults(), self.verdict(), *self.comparisons)
        has_unfit = any(each.severity == "error" for each in findings)
        samples = [self.logs[log] for log in self._maps]
        return has_unfit or any(each.n_refused or not each.n_messages for each in samples)


def _optional(mapping: LogMapping) -> dict[str, str]:
    """The members that messages may lack, as in the file and as in a message."""
    found: dict[str, str] = {}
    for member in (*mapping.of_record(), *mapping.of_rows()):
        _, *parts = member.name.split(".")
        group, *rest = parts[1:] if parts[0] == "rows" else parts
        if member.paths and not member.is_required:
            segment = ".".join((group, *rest)) if group == "segments" else group
            found[member.name] = dict(WRITTEN_NAMES).get(segment, segment)
    return found
