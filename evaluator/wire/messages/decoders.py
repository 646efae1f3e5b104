"""Decodes ordinary messages with the compiled decoder, if it was built."""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.texts import TextRows
from evaluator.core.types.records import (
    SERVED,
    FeatureColumns,
    IntArray,
    Levels,
    Stratum,
    plain_feature_names,
)
from evaluator.wire.messages.parts import JudgmentPart, RankingPart
from evaluator.wire.native import library
from evaluator.wire.native.library import SEPARATOR, Arrays, MessageTexts, NumberedNames


def _stratum(text: str) -> Stratum:
    model, variant, *scorers = text.split(SEPARATOR)[:-1]
    return Stratum(model, variant, (SERVED, *scorers))


def _schema(text: str) -> tuple[str, ...]:
    return tuple(text.split(SEPARATOR)[:-1])


def _levels(segments: Sequence[str], text: str) -> Levels:
    pairs = zip(segments, text.split(SEPARATOR)[:-1], strict=True)
    return tuple((name, level) for name, level in pairs if level)


class RankingDecoder:
    """Decodes rankings into reused arrays: allocating them costs a tenth of decoding."""

    def __init__(self, candidates: NumberedNames | None = None) -> None:
        self._candidates = candidates or NumberedNames()
        self._strata, self._schemas = NumberedNames(_stratum), NumberedNames(_schema)
        self._levels = NumberedNames()
        self._segments: Sequence[str] = ()
        self._segments_text = ctypes.create_string_buffer(b"")
        self._arrays = Arrays(
            (self._candidates, self._strata, self._schemas, self._levels),
            counts="n_rows strings_size n_ids n_scores n_ranks n_features n_propensities "
            "n_exposed n_exposures keeps_features n_segments segments",
            rows="timestamps_ms:i8 candidate_counts:i8 feature_counts:i8 exposed_tops:i8 "
            "stratum_numbers:i4 schema_numbers:i4 level_numbers:i4 key_hashes:V16 "
            "has_ranks:u1 has_propensities:u1 has_exposed:u1",
            items="ids:i4 scores:f8 ranks:i8 features:f8 propensities:f8 exposed:u1",
            text="strings",
        )

    def rows(
        self,
        texts: MessageTexts,
        first: int,
        end: int,
        *,
        features: bool = False,
        segments: Sequence[str] = (),
    ) -> RankingPart | None:
        """Rows from *first* to before *end*, up to one for the reference path; None: no row."""
        if library.BUILT is None:
            return None
        if segments != self._segments:
            self._use_segments(segments)
        found = self._arrays
        found.fill(
            *(library.BUILT.decode_rankings, texts, first, end),
            keeps_features=features,
            n_segments=len(segments),
            segments=ctypes.addressof(self._segments_text),
        )
        n_rows = found["n_rows"]
        if not n_rows:
            return None
        counts = found.part("candidate_counts", n_rows)
        propensities = self._of_some_rows(
            "has_propensities", counts, "propensities", found["n_propensities"]
        )
        return RankingPart(
            timestamps_ms=found.part("timestamps_ms", n_rows),
            texts=TextRows.separated(found.text("strings", found["strings_size"])),
            key_hashes=found.part("key_hashes", n_rows),
            strata=self._strata.column(found.part("stratum_numbers", n_rows)),
            candidate_counts=counts,
            candidate_ids=self._candidates.column(found.part("ids", found["n_ids"])),
            scores=found.part("scores", found["n_scores"]),
            explicit_ranks=self._of_some_rows("has_ranks", counts, "ranks", found["n_ranks"]),
            features=self._features(n_rows, propensities) if features else None,
            levels=self._levels.column(found.part("level_numbers", n_rows)) if segments else None,
            exposed=self._exposed(counts) if found["n_exposures"] else {},
            propensities=propensities,
        )

    def _use_segments(self, segments: Sequence[str]) -> None:
        """Reads the levels of these segments from now on."""
        text = "".join(name + SEPARATOR for name in segments).encode()
        self._segments, self._segments_text = segments, ctypes.create_string_buffer(text)
        self._levels.begin_again(partial(_levels, segments))

    def _exposed(self, counts: IntArray) -> dict[int, bytes | int]:
        found = self._arrays
        tops = found.part("exposed_tops", len(counts))
        rows = np.flatnonzero(tops >= 0)
        given = self._of_some_rows("has_exposed", counts, "exposed", found["n_exposed"])
        exposed: dict[int, bytes | int] = {row: bytes(each) for row, each in given.items()}
        return exposed | dict(zip(rows.tolist(), tops[rows].tolist(), strict=True))

    def _features(self, n_rows: int, propensities: Mapping[int, Sequence[float]]) -> FeatureColumns:
        found = self._arrays
        n_features = found.part("feature_counts", n_rows).tolist()
        schemas = self._schemas.column(found.part("schema_numbers", n_rows)).values()
        return FeatureColumns(
            [
                (schema or plain_feature_names(n)) if n else None
                for schema, n in zip(schemas, n_features, strict=True)
            ],
            found.part("features", found["n_features"]),
            {row: each for row, each in propensities.items() if n_features[row]},
        )

    def _of_some_rows(self, which: str, counts: IntArray, name: str, size: int) -> dict[int, Any]:
        """Numbers per candidate, by row, of the rows that have them."""
        rows = np.flatnonzero(self._arrays.part(which, len(counts)))
        if not len(rows):
            return {}
        ends = np.cumsum(counts[rows]).tolist()
        flat = self._arrays.part(name, size).tolist()
        ranges = pairwise([0, *ends])
        return {row: flat[a:b] for row, (a, b) in zip(rows.tolist(), ranges, strict=True)}


class JudgmentDecoder:
    """Decodes judgments into reused arrays."""

    def __init__(self, candidates: NumberedNames | None = None) -> None:
        self._candidates = candidates or NumberedNames()
        self._arrays = Arrays(
            (self._candidates,),
            counts="n_rows strings_size n_grades",
            rows="timestamps_ms:i8 grade_counts:i8 key_hashes:V16 has_judgment_id:u1",
            items="ids:i4 grades:f8",
            text="strings",
        )

    def rows(self, texts: MessageTexts, first: int, end: int) -> JudgmentPart | None:
        """Rows from *first* to before *end*, up to one for the reference path; None: no row."""
        if library.BUILT is None:
            return None
        found = self._arrays
        found.fill(library.BUILT.decode_judgments, texts, first, end)
        n_rows, n_grades = found["n_rows"], found["n_grades"]
        if not n_rows:
            return None
        text = str(found.text("strings", found["strings_size"]), "utf-8")
        strings = text.split(SEPARATOR)[:-1]
        judgment_ids: list[str | None] = list(strings[3::4])
        for row in np.flatnonzero(found.part("has_judgment_id", n_rows) == 0).tolist():
            judgment_ids[row] = None
        return JudgmentPart(
            timestamps_ms=found.part("timestamps_ms", n_rows),
            strings=strings,
            key_hashes=found.part("key_hashes", n_rows),
            judgment_ids=judgment_ids,
            grades=GradeColumns(
                found.part("grade_counts", n_rows),
                self._candidates.column(found.part("ids", n_grades)),
                found.part("grades", n_grades),
            ),
        )


class Decoders(threading.local):
    """The decoders of a thread."""

    def __init__(self) -> None:
        candidates = NumberedNames()
        self.rankings = RankingDecoder(candidates)
        self.judgments = JudgmentDecoder(candidates)
