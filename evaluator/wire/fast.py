"""Bytes -> rows, quickly: accepts what it fully understands, and nothing that the models refuse.

Sound, not complete: whatever is odd is left to `wire/strict.py`, which decides. What each step
relies on is written beside it, and a test compares both paths over mutated messages.

A *row* is a decoded message, its candidate ids, scores and features still JSON text. An
ordinary message is decoded as a row directly: all members known, ids short. One with other
members takes a second decoder, which skips what it does not know, and needs a closer look at
the bytes.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
import numpy as np
import simdjson
from msgspec import Meta, Raw, Struct

from evaluator.wire.models import (
    MAX_CANDIDATES,
    MAX_FEATURES,
    MAX_GRADE,
    MAX_ID_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_NESTING,
    MAX_RANK,
    MAX_TIMESTAMP_MS,
)

NO_TIMESTAMP: Final = -1
ABSENT: Final = Raw(b"")
"""Stands for a member that the message does not have."""

ShortId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES // 4)]  # <= 4 bytes each
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
JudgmentId = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
TimestampMs = Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]
Grade = Annotated[float, Meta(le=MAX_GRADE)]
Rank = Annotated[int, Meta(ge=1, le=MAX_RANK)]
Propensity = Annotated[float, Meta(gt=0, le=1)]
PerCandidate = Meta(max_length=MAX_CANDIDATES)
SomeGrades = Meta(min_length=1, max_length=MAX_CANDIDATES)


class RankingRow(Struct, forbid_unknown_fields=True, gc=False, eq=False):
    """A ranking of ordinary members; ids, `scores`, `scorers` and `features` are JSON text."""

    schema_version: Literal[1]
    trace_id: ShortId
    node_id: ShortId
    candidate_ids: Raw
    scores: Raw = ABSENT
    timestamp_ms: TimestampMs = NO_TIMESTAMP
    model: str = ""
    variant: str = ""
    query: str = ""
    scorers: dict[str, Raw] | None = None
    feature_names: Annotated[list[str], Meta(max_length=MAX_FEATURES)] | None = None
    features: Raw = ABSENT
    segments: dict[str, str | None] | None = None
    ranks: Annotated[list[Rank], PerCandidate] | None = None


class JudgmentRow(Struct, forbid_unknown_fields=True, gc=False, eq=False):
    """A judgment of ordinary members."""

    schema_version: Literal[1]
    trace_id: ShortId
    node_id: ShortId
    grades: Annotated[dict[ShortId, Grade | None], SomeGrades]
    timestamp_ms: TimestampMs = NO_TIMESTAMP
    source: str = ""
    judgment_id: Annotated[str, Meta(max_length=MAX_ID_BYTES // 4)] | None = None


class _FullRanking(Struct, gc=False, eq=False):
    """A ranking of any members, null ones included."""

    schema_version: Literal[1]
    trace_id: Id
    node_id: Id
    candidate_ids: Annotated[list[Id], PerCandidate]
    scores: Raw = ABSENT
    timestamp_ms: TimestampMs | None = None
    model: str | None = None
    variant: str | None = None
    query: str | None = None
    scorers: dict[str, Raw] | None = None
    feature_names: Annotated[list[str], Meta(max_length=MAX_FEATURES)] | None = None
    features: Raw = ABSENT
    segments: dict[str, str | None] | None = None
    ranks: Annotated[list[Rank], PerCandidate] | None = None
    candidates: Raw = ABSENT
    propensities: Annotated[list[Propensity], PerCandidate] | None = None
    subtopics: dict[Id, list[str] | None] | None = None
    published_ms: Annotated[list[TimestampMs | None], PerCandidate] | None = None


class _FullJudgment(Struct, gc=False, eq=False):
    """A judgment of any members, null ones included."""

    schema_version: Literal[1]
    trace_id: Id
    node_id: Id
    grades: Annotated[dict[Id, Grade | None], SomeGrades]
    timestamp_ms: TimestampMs | None = None
    source: str | None = None
    judgment_id: JudgmentId | None = None
    subtopics: dict[Id, list[str] | None] | None = None


RowT = TypeVar("RowT")
FullT = TypeVar("FullT", _FullRanking, _FullJudgment)
_Decode = Callable[[bytes], RowT]

_plain_ranking: _Decode[RankingRow] = msgspec.json.Decoder(RankingRow).decode
_full_ranking: _Decode[_FullRanking] = msgspec.json.Decoder(_FullRanking).decode
_plain_judgment: _Decode[JudgmentRow] = msgspec.json.Decoder(JudgmentRow).decode
_full_judgment: _Decode[_FullJudgment] = msgspec.json.Decoder(_FullJudgment).decode

# TypeError: the value is None, a heartbeat. ValueError: bytes that are not UTF-8.
# RuntimeError: nested too deeply, or an integer too large for simdjson.
_REFUSALS: Final = (msgspec.MsgspecError, TypeError, ValueError, RuntimeError)
_MAX_SURE_NESTING: Final = MAX_NESTING - 4  # of skipped members, inside known ones


def plain_rankings(values: Sequence[bytes | None]) -> list[RankingRow | None]:
    """A row for each ranking of ordinary members.

    Its numbers are still to be checked, and `hides_nothing` to be asked.
    """
    return _attempts(_plain_ranking, values)


def plain_judgments(values: Sequence[bytes | None]) -> list[JudgmentRow | None]:
    """A row for each judgment of ordinary members; grades may still be negative or -0.0."""
    return _attempts(_plain_judgment, values)


def _attempts(decode: _Decode[RowT], values: Sequence[bytes | None]) -> list[RowT | None]:
    """Decodes in one sweep of C as far as it goes, and on behind each refusal."""
    rows: list[RowT | None] = []
    attempts = map(decode, values)  # type: ignore[arg-type]  # None is refused like the odd
    while len(rows) < len(values):
        try:
            rows.extend(attempts)
        except _REFUSALS:
            rows.append(None)
    sizes = [len(value) if value else 0 for value in values]
    if max(sizes, default=0) > MAX_MESSAGE_BYTES:
        return [None if n > MAX_MESSAGE_BYTES else row for row, n in zip(rows, sizes, strict=True)]
    return rows


def ranking_of_any_members(value: bytes) -> RankingRow | None:
    """The row of a ranking with members that `RankingRow` does not have, if it is sound."""
    full = _attempts(_full_ranking, [value])[0]
    if full is None:
        return None
    n_candidates = len(full.candidate_ids)
    parallel = (full.propensities, full.published_ms)
    if full.candidates is not ABSENT or any(
        values is not None and len(values) != n_candidates for values in parallel
    ):
        return None
    ids = (full.trace_id, full.node_id, *full.candidate_ids, *(full.subtopics or ()))
    if not _is_sound(value, ids, nested=bytes(full.features)):
        return None
    return RankingRow(
        schema_version=full.schema_version,
        trace_id=full.trace_id,
        node_id=full.node_id,
        candidate_ids=Raw(msgspec.json.encode(full.candidate_ids)),
        scores=_present(full.scores),
        timestamp_ms=NO_TIMESTAMP if full.timestamp_ms is None else full.timestamp_ms,
        model=full.model or "",
        variant=full.variant or "",
        query=full.query or "",
        scorers=full.scorers,
        feature_names=full.feature_names,
        features=_present(full.features),
        ranks=full.ranks,
    )


def judgment_of_any_members(value: bytes) -> JudgmentRow | None:
    """The row of a judgment with members that `JudgmentRow` does not have, if it is sound."""
    full = _attempts(_full_judgment, [value])[0]
    if full is None:
        return None
    ids = (full.trace_id, full.node_id, full.judgment_id or "", *full.grades)
    if not _is_sound(value, (*ids, *(full.subtopics or ())), nested=b""):
        return None
    return JudgmentRow(
        schema_version=full.schema_version,
        trace_id=full.trace_id,
        node_id=full.node_id,
        grades=full.grades,
        timestamp_ms=NO_TIMESTAMP if full.timestamp_ms is None else full.timestamp_ms,
        source=full.source or "",
        judgment_id=full.judgment_id,
    )


def _present(text: Raw) -> Raw:
    """A null member is a missing one."""
    return ABSENT if bytes(text) == b"null" else text


def _is_sound(value: bytes, ids: tuple[str, ...], *, nested: bytes) -> bool:
    """Whether the bytes hold nothing that hides in the members that were skipped.

    msgspec skips by JSON's grammar, but looks at neither UTF-8 nor nesting there; escapes are
    left to simdjson. *nested* is the one member whose brackets are checked elsewhere.
    """
    if _n_openers(value) - _n_openers(nested) > _MAX_SURE_NESTING:
        return False
    try:
        if b"\\" in value:
            simdjson.Parser().parse(value)
        value.decode()
    except _REFUSALS:
        return False
    return all(len(text) <= MAX_ID_BYTES // 4 or len(text.encode()) <= MAX_ID_BYTES for text in ids)


def hides_nothing(
    rows: Sequence[RankingRow], values: Sequence[bytes], *, n_number_lists: int
) -> bool:
    """Whether plain rows with sound numbers hold nothing that the models would refuse.

    Of a repeated member the last counts, and the earlier ones were skipped as text: they may
    nest too deeply or not be UTF-8. So the brackets of all values are counted: those beyond
    the ones of the rows are too few for any nesting that matters. *n_number_lists* is the
    number of brackets in scores, scorers and features.
    """
    joined = b"\n".join(values)
    if not joined.isascii():
        try:
            joined.decode()
        except UnicodeDecodeError:
            return False
    optional: list[Sequence[object]] = [
        [row.scorers for row in rows],
        [row.feature_names for row in rows],
        [row.segments for row in rows],
    ]
    n_known = n_number_lists + 2 * len(rows)  # the object and candidate_ids
    n_known += sum(len(column) - column.count(None) for column in optional)
    return _n_openers(joined) - n_known <= _MAX_SURE_NESTING


def _n_openers(text: bytes) -> int:
    codes = np.frombuffer(text, dtype=np.uint8)
    return int(np.count_nonzero((codes | 0x20) == ord("{")))  # "[" is "{" without that bit


def may_have_negatives(values: Sequence[bytes]) -> bool:
    """Whether a number that is a member of an object may have a minus: after ":" or a space."""
    codes = np.frombuffer(b"\n".join(values), dtype=np.uint8)
    before = codes[:-1]
    return bool(((codes[1:] == ord("-")) & ((before == ord(":")) | (before <= ord(" ")))).any())
