"""The expected outputs of a worker by the oracle, and checks of the actual ones."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from evaluator.core.types.records import LOGS, Log
from evaluator.wire.records import KEPT_BYTES, Output, OutputRecord
from tests.oracle.measures import ONE, canonical, top_three
from tests.oracle.messages import Raw
from tests.oracle.oracle import Query, Settings, Task
from tests.oracle.rules import Evaluation
from tests.oracle.totals import comparable, judge_raws, totals_of_tasks

Inputs = Mapping[int, tuple[Sequence[Raw], Sequence[Raw]]]
"""All records of `rankings` and of `judgments` by task."""
Outputs = Mapping[tuple[Output, int], Sequence[OutputRecord]]
Row = dict[str, Any]
MALFORMED = {"oversize", "decode", "schema", "version", "limit", "non_finite", "future"}


@lru_cache(maxsize=16)
def judged(rankings: tuple[Raw, ...], judgments: tuple[Raw, ...], settings: Settings) -> Task:
    """The oracle's task, cached: tests with a crash at every boundary need it many times."""
    return judge_raws((rankings, judgments), settings)


@dataclass
class Truth:
    """The oracle's results for whole inputs."""

    inputs: Inputs
    settings: Settings
    topic_prefix: str = ""

    @cached_property
    def tasks(self) -> dict[int, Task]:
        return {
            number: judged(tuple(rankings), tuple(judgments), self.settings)
            for number, (rankings, judgments) in self.inputs.items()
        }

    @property
    def totals(self) -> Row:
        """Totals in the form of `comparable`."""
        return comparable(totals_of_tasks(self.tasks.values(), self.settings))

    def totals_of(self, tasks: Iterable[int]) -> Row:
        """Totals of some of the tasks."""
        return comparable(totals_of_tasks([self.tasks[each] for each in tasks], self.settings))

    # Evaluations

    def row(self, query: Query, evaluation: Evaluation) -> Row:
        """A record of `evaluations`."""
        ranking = query.ranking
        valued = evaluation.units is not None
        return {
            "trace_id": ranking.trace_id,
            "node_id": ranking.node_id,
            "event_time_ms": query.event_time_ms,
            "model": ranking.model,
            "variant": ranking.variant,
            "query": ranking.query,
            "revision": evaluation.revision,
            "grades": dict(evaluation.grades),
            "rank": {
                ranker: (rank or None) if valued else None
                for ranker, rank in evaluation.first_ranks.items()
            },
            "top3": {r: [list(pair) for pair in top_three(ranking, r)] for r in ranking.rankers},
            "values": self.values(query, evaluation),
        }

    def values(self, query: Query, evaluation: Evaluation) -> Row:
        if evaluation.units is None:
            return {}
        return {
            ranker: {
                spelling: evaluation.units[ranker, canonical(spelling)] / ONE
                for spelling in self.settings.measures
            }
            for ranker in query.ranking.rankers
        }

    def check_evaluations(self, records: Outputs, *, whole: bool = True) -> int:
        """Checks that every emitted revision is correct and has one spelling, and that the last was
        emitted.

        Without *whole*, here and below: outputs must be correct, but may be incomplete.
        """
        n_evaluations = 0
        for number, task in self.tasks.items():
            by_identity = {
                (q.event_time_ms, q.ranking.trace_id, q.ranking.node_id): q for q in task.queries
            }
            last: dict[tuple[int, str, str], int] = {}
            bytes_of: dict[tuple[object, int], bytes] = {}
            for record in records.get(("evaluations", number), ()):
                row = json.loads(record.value)
                identity = row["event_time_ms"], row["trace_id"], row["node_id"]
                query = by_identity[identity]
                assert row == self.row(query, query.evaluation_at(row["revision"]))
                assert json.loads(record.key or b"") == [row["trace_id"], row["node_id"]]
                once = bytes_of.setdefault((identity, row["revision"]), record.value)
                assert once == record.value, "two different values for one key and revision"
                last[identity] = max(last.get(identity, 0), row["revision"])
                n_evaluations += 1
            assert not whole or last == {
                i: q.revision for i, q in by_identity.items() if q.revision
            }
        return n_evaluations

    # Settled

    def check_settled(self, records: Outputs, *, whole: bool = True) -> int:
        """Checks the sequence of each task for a reader that takes n = last + 1."""
        for number, task in self.tasks.items():
            lane = records.get(("settled", number), ())
            expected = [self.settled_row(number, n, query) for n, query in enumerate(task.settled)]
            taken = taken_in_order(lane)
            assert taken == (expected if whole else expected[: len(taken)])
        return sum(len(task.settled) for task in self.tasks.values())

    def settled_row(self, number: int, n: int, query: Query) -> Row:
        ranking, evaluation = query.ranking, query.settled_evaluation
        return {
            "n": n,
            "task": number,
            "trace_id": ranking.trace_id,
            "node_id": ranking.node_id,
            "event_time_ms": query.event_time_ms,
            "settled_time_ms": query.settled_time_ms,
            "offset": ranking.offset,
            "model": ranking.model,
            "variant": ranking.variant,
            "grades": dict(evaluation.grades),
            "values": self.values(query, evaluation),
        }

    # Windows

    def check_windows(self, records: Outputs, *, whole: bool = True) -> int:
        """Checks final windows: all of them, each with one spelling."""
        count = 0
        for number, task in self.tasks.items():
            values_by_key: dict[bytes | None, bytes] = {}
            for record in records.get(("windows", number), ()):
                assert values_by_key.setdefault(record.key, record.value) == record.value
            rows = {key: json.loads(value) for key, value in values_by_key.items()}
            expected = self.window_rows(task)
            if whole:
                assert sorted(rows.values(), key=str) == sorted(expected, key=str)
            else:
                assert all(row in expected for row in rows.values())
            for key, row in rows.items():
                names = [row[name] for name in ("model", "variant", "ranker", "measure")]
                assert json.loads(key or b"") == [number, *names, row["start_ms"]]
            count += len(expected)
        return count

    def window_rows(self, task: Task) -> list[Row]:
        return [
            {
                "start_ms": window.start_ms,
                "end_ms": window.start_ms + self.settings.window_ms,
                "model": model,
                "variant": variant,
                "ranker": ranker,
                "measure": spelling,
                "queries": queries,
                "sum_units": sum_units,
                "final": True,
            }
            for window in task.windows
            if window.final
            for (model, variant, ranker, measure), (queries, sum_units) in window.sums.items()
            for spelling in self.settings.measures
            if canonical(spelling) == measure
        ]

    # Dead letters

    def check_dead_letters(self, records: Outputs, *, once: bool, whole: bool = True) -> int:
        """Checks the original key and value, and the headers with their origin."""
        expected = set()
        for number, task in self.tasks.items():
            expected |= {(log, number, offset, kind(r)) for log, offset, r in task.dead_letters}
        found = []
        for (output, number), lane in records.items():
            if output == "dead-letters":
                found += [self.check_dead_letter(number, record) for record in lane]
        assert set(found) == expected if whole else set(found) <= expected
        if once:
            assert len(found) == len(expected)
        return len(expected)

    def check_dead_letter(self, number: int, record: OutputRecord) -> tuple[Log, int, int, str]:
        headers = {name: value.decode() for name, value in record.headers}
        is_cut = headers["reason"] == "oversize"
        names = ["topic", "partition", "offset", "reason", "detail"]
        assert [name for name, _ in record.headers] == names + ["truncated"] * is_cut
        log: Log = "rankings" if headers["topic"].endswith("rankings") else "judgments"
        assert headers["topic"] == self.topic_prefix + log
        assert int(headers["partition"]) == number
        offset = int(headers["offset"])
        raw = self._by_offset[log, number][offset]
        value = raw.value or b""
        assert (record.key, record.value) == (raw.key, value[:KEPT_BYTES] if is_cut else value)
        assert not is_cut or int(headers["truncated"]) == len(value)
        assert headers["detail"] or headers["reason"] not in MALFORMED
        return log, number, offset, kind(headers["reason"])

    @cached_property
    def _by_offset(self) -> dict[tuple[Log, int], dict[int, Raw]]:
        """The records by log and task."""
        return {
            (log, number): {raw.offset: raw for raw in raws}
            for number, logs in self.inputs.items()
            for log, raws in zip(LOGS, logs, strict=True)
        }

    def check_outputs(self, records: Outputs, *, once: bool = True) -> None:
        """Checks all four outputs, none of which may be empty."""
        assert self.check_evaluations(records)
        assert self.check_settled(records)
        assert self.check_windows(records)
        assert self.check_dead_letters(records, once=once)
        if once:
            count = sum(len(task.settled) for task in self.tasks.values())
            lanes = [r for (output, _), r in records.items() if output == "settled"]
            assert sum(record.key is not None for lane in lanes for record in lane) == count


def kind(reason: str) -> str:
    """Merges the reasons of malformed records, because their priority is not specified."""
    return "malformed" if reason in MALFORMED else reason


def taken_in_order(lane: Sequence[OutputRecord]) -> list[Row]:
    """The records that a reader of `settled` takes: n = last + 1; smaller ones are ignored."""
    taken: list[Row] = []
    values: list[OutputRecord] = []
    for record in lane:
        row = json.loads(record.value)
        assert row["n"] <= len(taken), "a gap"
        if "watermark_ms" in row:
            assert record.key is None
        elif row["n"] == len(taken):
            taken.append(row)
            values.append(record)
        else:
            assert record == values[row["n"]], "two different values for one n"
    return taken


def merged(documents: Iterable[Mapping[str, Any]]) -> Row:
    """The merged `/totals` of several processes, in the form of `comparable`."""
    one: Row | None = None
    for each in map(comparable, documents):
        one = each if one is None else _sum(one, each)
    assert one is not None
    return one


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:  # no segments
        return one or other
    if isinstance(one, dict):
        return {k: _sum(one[k], other[k]) if k in one and k in other else
                one.get(k, other.get(k)) for k in one.keys() | other.keys()}  # fmt: skip
    if isinstance(one, tuple):
        return tuple(a + b for a, b in zip(one, other, strict=True))
    return one + other
