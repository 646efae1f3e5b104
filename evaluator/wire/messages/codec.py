"""Decoding of a batch of records to columns.

A batch is decoded in slices, which fit in the cache. The compiled decoder reads up to the first
message that it does not support; the reference path reads that message, then the compiled decoder
continues.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import NO_KEYS
from evaluator.core.columns.texts import TextRows
from evaluator.core.types.records import FeatureColumns, JudgmentColumns, RankingColumns
from evaluator.wire.messages.decoders import Decoders
from evaluator.wire.messages.intake import Intake
from evaluator.wire.messages.malformed import Malformed, oversize
from evaluator.wire.messages.parts import JudgmentPart, RankingPart
from evaluator.wire.native.library import MessageTexts
from evaluator.wire.records import Records

_SLICE_ROWS: Final = 2_048
_SLICE_BYTES: Final = (1 << 19) - 8 * _SLICE_ROWS
"""Limits of a slice, unless a single message is larger. Its texts are decoded in 2^19 bytes."""

_decoders: Final = Decoders()

PartT = TypeVar("PartT", bound=RankingPart | JudgmentPart)
T = TypeVar("T")


def decode_rankings(
    records: Records,
    *,
    max_future_skew_ms: int,
    features: bool = False,
    segments: Sequence[str] = (),
) -> RankingColumns:
    """Decodes rankings, heartbeats and malformed records.

    With *features*, rankings have their features too; with *segments*, their levels.
    """
    intake = Intake.of(records, max_future_skew_ms)
    read_many = partial(_decoders.rankings.rows, features=features, segments=segments)
    read_one = partial(_read_ranking, features=features, segments=segments)
    parts = list(_parts(intake, read_many, read_one))
    return RankingColumns(
        **intake.columns(),
        key_hashes=_key_hashes(parts),
        texts=TextRows.joined([part.texts for part in parts]),
        strata=DictionaryColumn.joined([part.strata for part in parts]),
        candidate_counts=np.concatenate([_NONE, *(part.candidate_counts for part in parts)]),
        candidate_ids=DictionaryColumn.joined([part.candidate_ids for part in parts]),
        scores=np.concatenate([np.zeros(0), *(part.scores for part in parts)]),
        explicit_ranks=_by_row(parts, [part.explicit_ranks for part in parts]),
        subtopics=_by_row(parts, [part.subtopics for part in parts]),
        published_ms=_by_row(parts, [part.published_ms for part in parts]),
        features=_joined_features(parts) if features else None,
        levels=DictionaryColumn.joined([p.levels for p in parts if p.levels is not None])
        if segments
        else None,
        exposed=_by_row(parts, [part.exposed for part in parts]),
        propensities=_by_row(parts, [part.propensities for part in parts]),
    )


def _joined_features(parts: Sequence[RankingPart]) -> FeatureColumns:
    given = [part.features for part in parts if part.features is not None]
    return FeatureColumns(
        list(chain.from_iterable(one.names for one in given)),
        np.concatenate([np.zeros(0), *(one.values for one in given)]),
        _by_row(parts, [one.propensities for one in given]),
        _by_row(parts, [one.described for one in given]),
    )


def decode_judgments(records: Records, *, max_future_skew_ms: int) -> JudgmentColumns:
    """Decodes judgments, heartbeats and malformed records."""
    intake = Intake.of(records, max_future_skew_ms)
    parts = list(_parts(intake, _decoders.judgments.rows, _read_judgment))
    strings = list(chain.from_iterable(part.strings for part in parts))
    return JudgmentColumns(
        **intake.columns(),
        key_hashes=_key_hashes(parts),
        trace_ids=strings[0::4],
        node_ids=strings[1::4],
        sources=strings[2::4],
        judgment_ids=list(chain.from_iterable(part.judgment_ids for part in parts)),
        grades=GradeColumns.joined([part.grades for part in parts]),
        subtopics=_by_row(parts, [part.subtopics for part in parts]),
    )


_NONE: Final = np.zeros(0, np.int64)


def _key_hashes(parts: Sequence[RankingPart | JudgmentPart]) -> NDArray[np.void]:
    return np.concatenate([NO_KEYS, *(part.key_hashes for part in parts)])


def _by_row(
    parts: Sequence[RankingPart | JudgmentPart], members: list[dict[int, T]]
) -> dict[int, T]:
    """Optional members of rows of parts, by row of the batch."""
    firsts = accumulate(map(len, parts), initial=0)
    found = zip(firsts, members, strict=False)
    return {first + row: value for first, some in found for row, value in some.items()}


def _read_ranking(
    value: bytes, *, features: bool, segments: Sequence[str]
) -> RankingPart | Malformed:
    from evaluator.wire.messages import reference_rows  # noqa: PLC0415 - few messages need it

    return reference_rows.read_ranking(value, features=features, segments=segments)


def _read_judgment(value: bytes) -> JudgmentPart | Malformed:
    from evaluator.wire.messages import reference_rows  # noqa: PLC0415 - few messages need it

    return reference_rows.read_judgment(value)


def _parts(
    intake: Intake,
    read_many: Callable[[MessageTexts, int, int], PartT | None],
    read_one: Callable[[bytes], PartT | Malformed],
) -> Iterator[PartT]:
    """The rows of all well-formed records, in offset order."""
    values = intake.records.values
    texts = MessageTexts(values)
    for first, end in _slices(intake.records, texts):
        n_bytes = intake.records.oversize.get(int(intake.records.offsets[first]))
        if n_bytes is not None:
            intake.refuse(first, oversize(n_bytes))
            continue
        at = first
        while at < end:
            part = read_many(texts, at, end)
            if part is not None:
                yield from _admitted(intake, at, part, texts, read_many)
                at += len(part)
            if at < end:
                yield from _read_one(intake, at, values[at], read_one)
                at += 1


def _slices(records: Records, texts: MessageTexts) -> Iterator[tuple[int, int]]:
    """First row and end of each slice; a row of `Records.oversize` is a separate slice."""
    first, n_before = 0, texts.n_before
    oversize_rows = np.searchsorted(records.offsets, sorted(records.oversize)).tolist()
    for place in [*oversize_rows, len(records)]:
        while first < place:
            fitting = int(np.searchsorted(n_before, n_before[first] + _SLICE_BYTES)) - 1
            end = min(max(fitting, first + 1), first + _SLICE_ROWS, place)
            yield first, end
            first = end
        if place < len(records):
            yield place, place + 1
            first = place + 1


def _read_one(
    intake: Intake,
    position: int,
    value: bytes | None,
    read_one: Callable[[bytes], PartT | Malformed],
) -> Iterator[PartT]:
    """The row of one record; None for a heartbeat or a malformed record."""
    if value is None:
        intake.take_heartbeat(position)
        return
    part = read_one(value)
    if isinstance(part, Malformed):
        intake.refuse(position, part)
    elif intake.admit(position, part.timestamps_ms) is None:
        yield part
    else:
        intake.refuse_time(position, int(part.timestamps_ms[0]))


def _admitted(
    intake: Intake,
    position: int,
    part: PartT,
    texts: MessageTexts,
    read_many: Callable[[MessageTexts, int, int], PartT | None],
) -> Iterator[PartT]:
    """The part; without rows with refused timestamps, so it may be divided."""
    refused = intake.admit(position, part.timestamps_ms)
    if refused is None:
        yield part
        return
    first = 0
    for row in [*np.flatnonzero(refused).tolist(), len(part)]:
        if row > first:
            run = read_many(texts, position + first, position + row)
            if run is None or intake.admit(position + first, run.timestamps_ms) is not None:
                raise AssertionError("rows that were decoded once cannot be decoded again")
            yield run
        if row < len(part):
            intake.refuse_time(position + row, int(part.timestamps_ms[row]))
        first = row + 1
