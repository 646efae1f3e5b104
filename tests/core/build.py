"""Small handmade worlds: records in a few words, and an engine that reads them.

`at` is the timestamp of a record and not part of its bytes, so the same message can be repeated
later. Scores are such that candidates are ranked as written: "a b c".
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import hashes_of
from evaluator.core.columns.texts import TextRows
from evaluator.core.measures import MISSING, UNITS_PER_ONE, MeasureSet, Terms, split_names
from evaluator.core.types.records import (
    SERVED,
    DeadLetter,
    EvaluationColumns,
    FinalWindow,
    JudgmentColumns,
    Log,
    Outputs,
    RankingColumns,
    SettledColumns,
    Stratum,
    WatermarkRecord,
)
from tests.engines import engine_of


class Record(NamedTuple):
    """A record of either log: a message, a heartbeat, or a malformed record with its reason."""

    at: int
    message: Mapping[str, Any] | None
    value: bytes = b""
    reason: str | None = None


def _record(message: Mapping[str, Any], *, at: int, reason: str | None = None) -> Record:
    return Record(at, message, json.dumps(message).encode(), reason)


def heartbeat(*, at: int) -> Record:
    return Record(at, None)


def malformed(*, at: int, reason: str = "schema") -> Record:
    return _record({"of": "no use"}, at=at, reason=reason)


def ranking(
    order: str | Sequence[str],
    *,
    at: int = 0,
    trace: str = "t",
    node: str = "n",
    scores: Sequence[float | None] | None = None,
    ranks: Sequence[int] | None = None,
    scorers: Mapping[str, Sequence[float]] | None = None,
    **more: Any,
) -> Record:
    """A ranking of candidates in served order, unless *scores* or *ranks* are given.

    *more* may have texts, `subtopics` by candidate id, lists of `published_ms` and `propensities`,
    and `exposed`, a list or the number of the first ones.
    """
    ids = order.split() if isinstance(order, str) else list(order)
    message = {
        "trace_id": trace,
        "node_id": node,
        "candidate_ids": ids,
        "scores": list(range(len(ids), 0, -1)) if scores is None else list(scores),
        "ranks": ranks,
        "scorers": dict(sorted((scorers or {}).items())),
        **more,
    }
    return _record(message, at=at)


def judgment(
    grades: Mapping[str, float | None],
    *,
    at: int = 0,
    trace: str = "t",
    node: str = "n",
    name: str | None = None,
    **more: Any,
) -> Record:
    """A judgment with grades by candidate id and id *name*; *more* may have `subtopics`."""
    message = {"trace_id": trace, "node_id": node, "judgment_id": name, "grades": grades, **more}
    return _record(message, at=at)


KEY = ("trace_id", "node_id")


def _common(log: Log, records: Sequence[Record], first_offset: int) -> dict[str, Any]:
    numbered = list(enumerate(records, start=first_offset))
    rows = [(i, r) for i, r in numbered if r.message is not None and r.reason is None]
    beats = [(i, r) for i, r in numbered if r.message is None]
    digests = [blake2b(r.value, digest_size=16).digest() for _, r in rows]
    return {
        "offsets": np.array([i for i, _ in rows], np.int64),
        "timestamps_ms": np.array([r.at for _, r in rows], np.int64),
        "key_hashes": hashes_of(*([r.message[name] for _, r in rows] for name in KEY)),
        "hashes": np.frombuffer(b"".join(digests), "V16"),
        "keys": [b"key"] * len(rows),
        "values": [r.value for _, r in rows],
        "heartbeat_offsets": np.array([i for i, _ in beats], np.int64),
        "heartbeat_timestamps_ms": np.array([r.at for _, r in beats], np.int64),
        "malformed": [
            DeadLetter(log, i, r.reason, "", None, r.value) for i, r in numbered if r.reason
        ],
        "next_offset": first_offset + len(records),
    }


def _messages(records: Sequence[Record]) -> list[Mapping[str, Any]]:
    return [r.message for r in records if r.message is not None and r.reason is None]


def ranking_columns(records: Sequence[Record], *, first_offset: int = 0) -> RankingColumns:
    """One batch of `rankings`, as the decoder would return it."""
    rows = _messages(records)
    lists = [scores for r in rows for scores in (r["scores"], *r["scorers"].values())]
    return RankingColumns(
        **_common("rankings", records, first_offset),
        strata=DictionaryColumn.of(
            [
                Stratum(r.get("model", "m"), r.get("variant", "v"), (SERVED, *r["scorers"]))
                for r in rows
            ]
        ),
        texts=TextRows.of([(r["trace_id"], r["node_id"], r.get("query", "")) for r in rows]),
        candidate_counts=np.array([len(r["candidate_ids"]) for r in rows], np.int64),
        candidate_ids=DictionaryColumn.of([name for r in rows for name in r["candidate_ids"]]),
        scores=np.array(
            [np.nan if score is None else score for one in lists for score in one], np.float64
        ),
        explicit_ranks={b: list(r["ranks"]) for b, r in enumerate(rows) if r["ranks"] is not None},
        subtopics=_given(rows, "subtopics"),
        published_ms=_given(rows, "published_ms"),
        exposed={row: _exposure(each) for row, each in _given(rows, "exposed").items()},
        propensities=_given(rows, "propensities"),
    )


def _exposure(given: int | Sequence[bool]) -> int | bytes:
    return given if isinstance(given, int) else bytes(given)


def judgment_columns(records: Sequence[Record], *, first_offset: int = 0) -> JudgmentColumns:
    """One batch of `judgments`, as the decoder would return it."""
    rows = _messages(records)
    return JudgmentColumns(
        **_common("judgments", records, first_offset),
        trace_ids=[r["trace_id"] for r in rows],
        node_ids=[r["node_id"] for r in rows],
        sources=[r.get("source", "") for r in rows],
        judgment_ids=[r["judgment_id"] for r in rows],
        grades=GradeColumns.of([dict(r["grades"]) for r in rows]),
        subtopics=_given(rows, "subtopics"),
    )


def _given(rows: Sequence[Mapping[str, Any]], member: str) -> dict[int, Any]:
    """The values of a member by row, without rows that lack it."""
    return {b: row[member] for b, row in enumerate(rows) if row.get(member) is not None}


class Evaluation(NamedTuple):
    """One query of `EvaluationColumns`."""

    trace_id: str
    node_id: str
    event_time_ms: int
    stratum: Stratum
    revision: int
    grades: Mapping[str, float]
    first_ranks: list[int]
    top: list[list[tuple[str, float | None]]]
    units: list[int] | None


class Settled(NamedTuple):
    """One query of `SettledColumns`."""

    n: int
    trace_id: str
    node_id: str
    event_time_ms: int
    stratum: Stratum
    offset: int
    grades: Mapping[str, float]
    units: list[int] | None
    silent: bool = False


T = TypeVar("T")


def runs(flat: Sequence[T], n: int) -> list[list[T]]:
    """Cuts *flat* into *n* pieces of equal length."""
    length = len(flat) // n
    assert len(flat) == n * length
    return [list(flat[i * length : (i + 1) * length]) for i in range(n)]


def evaluations_in(parts: Iterable[EvaluationColumns]) -> list[Evaluation]:
    """The queries of all parts, by event time and key."""
    rows = [evaluation for part in parts for evaluation in _evaluations_in(part)]
    return sorted(rows, key=lambda row: (row.event_time_ms, row.trace_id, row.node_id))


def _evaluations_in(part: EvaluationColumns) -> Iterator[Evaluation]:
    n, n_rankers = len(part), len(part.rankers)
    scores = [None if np.isnan(score) else score for score in part.top_scores.tolist()]
    tops = runs(list(zip(part.top_ids.values(), scores, strict=True)), n * n_rankers)
    assert all(len(top) == part.n_top for top in tops)
    for row in zip(
        part.trace_ids,
        part.node_ids,
        part.event_times_ms.tolist(),
        part.strata.values(),
        part.revisions.tolist(),
        part.grades,
        runs(part.first_ranks.tolist(), n),
        runs(tops, n),
        [None] * n if part.units is None else runs(part.units.tolist(), n),
        strict=True,
    ):
        yield Evaluation(*row)


def _settled_in(part: SettledColumns) -> Iterator[Settled]:
    n = len(part)
    for row in zip(
        part.ns.tolist(),
        part.trace_ids,
        part.node_ids,
        part.event_times_ms.tolist(),
        part.strata.values(),
        part.offsets.tolist(),
        part.grades,
        [None] * n if part.units is None else runs(part.units.tolist(), n),
        [False] * n if part.silent is None else part.silent.tolist(),
        strict=True,
    ):
        yield Settled(*row)


class Task:
    """An engine with both its logs and all its results. Durations are short round numbers.

    *scales* are those of the measures, other arguments are settings of the engine. A query matures
    after 100 ms and is open for 1,000 ms; logs are in order (bound 0).
    """

    def __init__(
        self,
        measures: str = "mrr",
        *,
        scales: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> None:
        self.measures = MeasureSet.parse(split_names(measures), scales=Terms(**(scales or {})))
        durations = {
            "retention_ms": 1_000,
            "maturity_ms": 100,
            "early_ms": 10,
            "remember_ms": 50,
            "out_of_orderness_ms": 0,
            "window_ms": 200,
        }
        self.engine = engine_of(self.measures, **{**durations, **settings})
        self.evaluations: list[Evaluation] = []
        self.finished: list[Evaluation] = []
        self.settled: list[Settled] = []
        self.watermark_records: list[WatermarkRecord] = []
        self.windows: list[FinalWindow] = []
        self.dead_letters: list[DeadLetter] = []

    def rank(self, *records: Record) -> None:
        """Reads records of `rankings` as one batch."""
        self.read(rankings=records)

    def judge(self, *records: Record) -> None:
        """Reads records of `judgments` as one batch."""
        self.read(judgments=records)

    def beat(self, at: int) -> None:
        """Advances both clocks."""
        self.read(rankings=[heartbeat(at=at)], judgments=[heartbeat(at=at)])

    def read(self, rankings: Sequence[Record] = (), judgments: Sequence[Record] = ()) -> None:
        """Reads records of both logs as one batch."""
        at = self.engine.positions
        self._collect(
            self.engine.receive(
                ranking_columns(rankings, first_offset=at["rankings"]) if rankings else None,
                judgment_columns(judgments, first_offset=at["judgments"]) if judgments else None,
            )
        )

    def finish(self) -> None:
        for outputs in self.engine.finish():
            self._collect(outputs)

    def _collect(self, outputs: Outputs) -> None:
        self.evaluations += evaluations_in(outputs.evaluations)
        self.finished += evaluations_in(outputs.finished)
        settled = [settled for part in outputs.settled for settled in _settled_in(part)]
        self.settled += sorted(settled, key=lambda settled: settled.n)
        assert [settled.n for settled in self.settled] == list(range(len(self.settled)))
        if outputs.watermark_record is not None:
            self.watermark_records.append(outputs.watermark_record)
        self.windows += outputs.windows
        self.dead_letters += outputs.dead_letters

    # Results

    def last(self, trace: str = "t") -> Evaluation:
        """The last evaluation of a query."""
        return [e for e in self.evaluations if e.trace_id == trace][-1]

    def value(self, trace: str = "t", *, column: int = 0) -> float | None:
        """A value of the last evaluation, or None; columns are rankers x measures."""
        units = self.last(trace).units
        lacks = units is None or units[column] == MISSING
        return None if lacks else units[column] / UNITS_PER_ONE

    def count(self, *path: str) -> int:
        return self.engine.tally().get(path, 0)

    def counts(self, log: Log) -> dict[str, int]:
        """The members of the ledger of a log that are not zero, without `read`."""
        ledger = {name: n for (kind, name, *_), n in self.pairs() if kind == log and n}
        assert ledger.pop("read", 0) == sum(ledger.values())
        return ledger

    def pairs(self) -> list[tuple[tuple[str, ...], int]]:
        return [(path, n) for path, n in self.engine.tally().items() if len(path) == 2]

    def total(
        self, kind: str, measure: str | None = None, *, ranker: str = SERVED
    ) -> tuple[int, float]:
        """The number of queries of model m and variant v, and the sum of their values."""
        path = (kind, "m", "v", ranker, measure or self.measures.canonical[0])
        tally = self.engine.tally()
        return tally[*path, "queries"], tally[*path, "sum_units"] / UNITS_PER_ONE

    @property
    def reasons(self) -> list[tuple[str, int, str]]:
        """Log, offset and reason of each dead letter, in order of arrival."""
        return [(letter.log, letter.offset, letter.reason) for letter in self.dead_letters]


def units(*values: float) -> list[int]:
    """Values in units of 2^-40, each rounded half to even."""
    return [round(value * UNITS_PER_ONE) for value in values]
