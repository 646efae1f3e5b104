"""Messages and batches for the tests of this folder, and their values by the models."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import Interner
from evaluator.core.columns.key_hashes import key_of
from evaluator.core.join.changes import StartedRows
from evaluator.core.join.strata import Strata
from evaluator.core.measures.align import rank_lists
from evaluator.core.types.records import SERVED, JudgmentColumns, Log, RankingColumns
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.models import Judgment, Ranking
from evaluator.wire.messages.strict import read_message
from evaluator.wire.native.library import MessageTexts
from evaluator.wire.records import Records

NOW_MS = 1_763_690_000_000
SKEW_MS = 300_000
SEGMENTS = ("locale", "gerät", "channel")
"""Segments with decoded levels."""


def ranking(**members: Any) -> dict[str, Any]:
    """A plain ranking of two candidates; arguments replace its members, and `...` removes one."""
    plain: dict[str, Any] = {
        "schema_version": 1,
        "trace_id": "t-81",
        "node_id": "plan/3",
        "timestamp_ms": NOW_MS,
        "model": "tool-ranker",
        "variant": "prod",
        "query": "book a flight",
        "candidate_ids": ["search_flights", "weather"],
        "scores": [1.7, 0.2],
    }
    return _with(plain, members)


def judgment(**members: Any) -> dict[str, Any]:
    """A plain judgment; arguments replace its members, and `...` removes one."""
    plain: dict[str, Any] = {
        "schema_version": 1,
        "trace_id": "t-81",
        "node_id": "plan/3",
        "timestamp_ms": NOW_MS,
        "source": "human",
        "grades": {"search_flights": 2, "weather": 0},
        "judgment_id": "j-9",
    }
    return _with(plain, members)


def started_rows(
    rankings: RankingColumns,
    rows: Sequence[int] | None = None,
    event_times_ms: int | list[int] = 5,
    *,
    ties: bool = False,
) -> StartedRows:
    """Some or all rankings of a batch as started queries."""
    records = np.arange(len(rankings)) if rows is None else np.array(rows, np.int64)
    codes, strata = Interner().of_column(rankings.candidate_ids), Strata()
    numbers = strata.of(rankings)
    return StartedRows(
        rankings.offsets[records],
        np.broadcast_to(np.array(event_times_ms, np.int64), len(records)),
        rankings.hashes[records],
        rankings,
        records,
        numbers[records],
        rank_lists(rankings, codes, strata.n_rankers[numbers], with_ties=ties),
    )


def _with(plain: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    both = plain | members
    return {name: value for name, value in both.items() if value is not ...}


def as_bytes(message: dict[str, Any] | bytes) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode()


def records(
    log: Log,
    values: Sequence[dict[str, Any] | bytes | None],
    *,
    timestamps_ms: Sequence[int] | int | None = NOW_MS,
    first_offset: int = 0,
) -> Records:
    n = len(values)
    if isinstance(timestamps_ms, int):
        timestamps_ms = [timestamps_ms] * n
    return Records.of(
        log=log,
        partition=0,
        offsets=list(range(first_offset, first_offset + n)),
        keys=[b"key-%d" % index for index in range(n)],
        values=[None if value is None else as_bytes(value) for value in values],
        timestamps_ms=None if timestamps_ms is None else list(timestamps_ms),
        next_offset=first_offset + n,
    )


def texts_of(*values: bytes | None) -> MessageTexts:
    """The values as read by the compiled decoder."""
    return MessageTexts(ByteStrings.of(values))


def rankings_of(*values: dict[str, Any] | bytes | None, **how: Any) -> RankingColumns:
    batch = records("rankings", values, **how)
    return decode_rankings(batch, max_future_skew_ms=SKEW_MS, segments=SEGMENTS)


def judgments_of(*values: dict[str, Any] | bytes | None, **how: Any) -> JudgmentColumns:
    return decode_judgments(records("judgments", values, **how), max_future_skew_ms=SKEW_MS)


def refusal(columns: RankingColumns | JudgmentColumns) -> tuple[str, str]:
    """Reason and detail of the only record, which must be malformed."""
    assert (len(columns), len(columns.heartbeat_offsets)) == (0, 0)
    (letter,) = columns.malformed
    return letter.reason, letter.detail


Row = tuple[Any, ...]


def ranking_by_the_models(value: bytes) -> Row | str:
    """What the columns must hold for this value, from the models alone; else the reason."""
    message = read_message(value, Ranking)
    if isinstance(message, Malformed):
        return message.reason
    if message.timestamp_ms is not None and message.timestamp_ms > NOW_MS + SKEW_MS:
        return "future"
    ids = message.all_ids()
    named = {name: each for name, each in (message.scorers or {}).items() if each is not None}
    rankers = (SERVED, *sorted(named))
    served = message.all_scores()
    scores = [None] * len(ids) if served is None else [score + 0.0 for score in served]
    for name in sorted(named):
        scores += [score + 0.0 for score in named[name]]
    return (
        message.trace_id,
        message.node_id,
        key_of(message.trace_id, message.node_id),
        NOW_MS if message.timestamp_ms is None else message.timestamp_ms,
        message.model or "",
        message.variant or "",
        message.query or "",
        rankers,
        ids,
        [repr(score) for score in scores],  # distinguishes -0.0 from 0.0
        message.ranks,
        message.subtopics or None,
        message.all_published_ms(),
        {
            name: level
            for name, level in (message.segments or {}).items()
            if name in SEGMENTS and level
        },
        message.exposed_top if message.exposed is None else message.exposed,
        message.propensities,
    )


def judgment_by_the_models(value: bytes) -> Row | str:
    """What the columns must hold for this value, from the models alone; else the reason."""
    message = read_message(value, Judgment)
    if isinstance(message, Malformed):
        return message.reason
    if message.timestamp_ms is not None and message.timestamp_ms > NOW_MS + SKEW_MS:
        return "future"
    return (
        message.trace_id,
        message.node_id,
        key_of(message.trace_id, message.node_id),
        NOW_MS if message.timestamp_ms is None else message.timestamp_ms,
        message.source or "",
        message.judgment_id,
        [
            (candidate_id, repr(None if grade is None or grade < 0 else grade + 0.0))
            for candidate_id, grade in message.grades.items()
        ],
        message.subtopics or None,
    )


BY_THE_MODELS: dict[Log, Callable[[bytes], Row | str]] = {
    "rankings": ranking_by_the_models,
    "judgments": judgment_by_the_models,
}


def ranking_rows_of(columns: RankingColumns) -> dict[int, Row]:
    """The rows of columns by offset, in the form of `ranking_by_the_models`."""
    rows: dict[int, Row] = {}
    id_start = score_start = 0
    for b, offset in enumerate(columns.offsets.tolist()):
        n = int(columns.candidate_counts[b])
        stratum = columns.strata.values(b, b + 1)[0]
        n_scores = n * len(stratum.rankers)
        scores = columns.scores[score_start : score_start + n_scores].tolist()
        rows[offset] = (
            *columns.texts[b][:2],
            columns.key_hashes[b].tobytes(),
            int(columns.timestamps_ms[b]),
            stratum.model,
            stratum.variant,
            columns.texts[b][2],
            stratum.rankers,
            columns.candidate_ids.values(id_start, id_start + n),
            [repr(score if score == score else None) for score in scores],  # noqa: PLR0124
            columns.explicit_ranks.get(b),
            columns.subtopics.get(b),
            columns.published_ms.get(b),
            {} if columns.levels is None else dict(columns.levels.values(b, b + 1)[0]),
            exposed
            if isinstance(exposed := columns.exposed.get(b), int | None)
            else [bool(each) for each in exposed],
            columns.propensities.get(b),
        )
        id_start += n
        score_start += n_scores
    assert (id_start, score_start) == (len(columns.candidate_ids), len(columns.scores))
    return rows


def judgment_rows_of(columns: JudgmentColumns) -> dict[int, Row]:
    """The rows of columns by offset, in the form of `judgment_by_the_models`."""
    return {
        offset: (
            columns.trace_ids[b],
            columns.node_ids[b],
            columns.key_hashes[b].tobytes(),
            int(columns.timestamps_ms[b]),
            columns.sources[b],
            columns.judgment_ids[b],
            [(candidate_id, repr(grade)) for candidate_id, grade in columns.grades[b].items()],
            columns.subtopics.get(b),
        )
        for b, offset in enumerate(columns.offsets.tolist())
    }
