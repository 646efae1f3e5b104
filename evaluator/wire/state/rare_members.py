"""Members that few rankings of the table `queries` have; see `ranking_rows.py`."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from evaluator.core.types.candidates import Described
from evaluator.core.types.records import (
    FeatureColumns,
    IntArray,
    RankingColumns,
    ServedList,
    SubtopicsById,
)
from evaluator.wire.reading import Count
from evaluator.wire.state.task_rows import StateDamaged


class Features(msgspec.Struct, array_like=True):
    """Features, or described candidates; `values` are numbers of 8 bytes."""

    names: tuple[str, ...] | None
    values: bytes
    propensities: Sequence[float] | None
    described: Described | None


class RareMembers(msgspec.Struct, array_like=True):
    """Such members of one ranking."""

    subtopics: SubtopicsById | None = None
    published_ms: Sequence[Count | None] | None = None
    features: Features | None = None
    exposed: bytes | None = None  # little-endian, bit r of the candidate at rank r + 1
    propensities: Sequence[float] | None = None  # by rank


def rare_of(
    rankings: RankingColumns, served: Mapping[int, ServedList], records: IntArray
) -> dict[int, RareMembers]:
    """Members that few rankings have, by position in *records*."""
    features = _features_of(rankings)
    subtopics, published_ms = rankings.subtopics, rankings.published_ms
    having = (subtopics.keys(), published_ms.keys(), features.keys(), served.keys())
    if not any(having):
        return {}
    with_any = set().union(*having)
    return {
        at: RareMembers(
            *(subtopics.get(record), published_ms.get(record), features.get(record)),
            *_served_row(served.get(record, ServedList())),
        )
        for at, record in enumerate(records.tolist())
        if record in with_any
    }


def _served_row(served: ServedList) -> tuple[bytes | None, Sequence[float] | None]:
    exposed = served.exposed
    if exposed is None:
        return None, served.propensities
    return exposed.to_bytes((exposed.bit_length() + 7) // 8, "little"), served.propensities


def _features_of(rankings: RankingColumns) -> dict[int, Features]:
    """The features of each ranking; empty if they were not decoded."""
    features = rankings.features
    if features is None:
        return {}
    given = features.of_rows(rankings.candidate_counts)
    values = [b"" if each is None else each.astype("<f8").tobytes() for each in given]
    return {
        record: Features(
            names, flat, features.propensities.get(record), features.described.get(record)
        )
        for record, (names, flat) in enumerate(zip(features.names, values, strict=True))
    }


def served_lists(counts: IntArray, rare: Mapping[int, RareMembers]) -> dict[int, ServedList]:
    """Exposure and propensities of rankings, by row. Raises StateDamaged."""
    found = {}
    for row, each in rare.items():
        if each.exposed is not None or each.propensities is not None:
            bits = None if each.exposed is None else int.from_bytes(each.exposed, "little")
            longest = max((bits or 0).bit_length(), len(each.propensities or ()))
            if longest > counts[row]:
                raise StateDamaged("a ranking states more candidates than it has")
            found[row] = ServedList(bits, each.propensities)
    return found


def feature_columns(counts: list[int], rare: dict[int, RareMembers]) -> FeatureColumns:
    """The features of rankings. Raises StateDamaged."""
    without = Features(None, b"", None, None)
    found = [rare.get(row, RareMembers()).features or without for row in range(len(counts))]
    for n, each in zip(counts, found, strict=True):
        if len(each.values) != 8 * n * len(each.names or ()):
            raise StateDamaged("a ranking has features of other lengths")
    return FeatureColumns(
        [each.names for each in found],
        np.frombuffer(b"".join([each.values for each in found]), "<f8").astype(np.float64),
        {row: e.propensities for row, e in enumerate(found) if e.propensities is not None},
        {row: each.described for row, each in enumerate(found) if each.described is not None},
    )
