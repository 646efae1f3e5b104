"""Messages of the ordinary kind -> rows. Where the compiled part was not built, none are taken."""

import threading
from itertools import pairwise
from typing import Any

import numpy as np

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.types.records import SERVED, FeatureColumns, IntArray, plain_feature_names
from evaluator.wire.messages.parts import JudgmentPart, RankingPart
from evaluator.wire.native import library
from evaluator.wire.native.library import SEPARATOR, SET_END, Arrays, Library, MessageTexts


class RankingDecoder:
    """Decodes rankings, into arrays that it keeps: allocating them costs a tenth of decoding."""

    def __init__(self) -> None:
        self._arrays = Arrays(
            (
                "n_rows strings_size n_ids n_scores n_ranks scorers_size n_sets "
                "n_features n_propensities feature_names_size n_name_sets"
            ).split(),
            [
                ("timestamps_ms", np.int64),
                ("candidate_counts", np.int64),
                ("scorer_sets", np.int64),
                ("has_ranks", np.uint8),
                ("strings", np.uint8),
                ("ids", np.int32),
                ("scores", np.float64),
                ("ranks", np.int64),
                ("scorers", np.uint8),
                ("feature_counts", np.int64),
                ("name_sets", np.int64),
                ("has_propensities", np.uint8),
                ("features", np.float64),
                ("propensities", np.float64),
                ("feature_names", np.uint8),
            ],
        )

    def rows(self, texts: MessageTexts, first: int) -> RankingPart | None:
        """The rows from *first* on, up to the first that is to be read by the book."""
        return None if library.BUILT is None else self._rows(library.BUILT, texts, first)

    def rows_with_features(self, texts: MessageTexts, first: int) -> RankingPart | None:
        """The same, and their features are kept."""
        if library.BUILT is None:
            return None
        part = self._rows(library.BUILT, texts, first, with_features=True)
        if part is not None:
            part.features = self._features(len(part), part.candidate_counts)
        return part

    def _rows(
        self, built: Library, texts: MessageTexts, first: int, *, with_features: bool = False
    ) -> RankingPart | None:
        found = self._arrays
        decode = built.decode_rankings_with_features if with_features else built.decode_rankings
        found.fill(decode, texts, first)
        n_rows = found["n_rows"]
        if not n_rows:
            return None
        counts = found.part("candidate_counts", n_rows)
        sets = found.text("scorers", found["scorers_size"]).split(SET_END)
        rankers = [(SERVED, *names.split(SEPARATOR)[:-1]) for names in sets]
        return RankingPart(
            timestamps_ms=found.part("timestamps_ms", n_rows),
            strings=found.column("strings", found["strings_size"]),
            candidate_counts=counts,
            candidate_ids=DictionaryColumn(found.names(), found.part("ids", found["n_ids"])),
            rankers=[rankers[number] for number in found.part("scorer_sets", n_rows).tolist()],
            scores=found.part("scores", found["n_scores"]),
            explicit_ranks=self._explicit_ranks(counts),
        )

    def _explicit_ranks(self, counts: IntArray) -> dict[int, list[int]]:
        return self._of_some_rows("has_ranks", counts, "ranks", self._arrays["n_ranks"])

    def _features(self, n_rows: int, candidate_counts: IntArray) -> FeatureColumns:
        found = self._arrays
        sets = found.text("feature_names", found["feature_names_size"]).split(SET_END)
        known = [tuple(names.split(SEPARATOR)[:-1]) for names in sets]
        n_features = found.part("feature_counts", n_rows).tolist()
        numbers = found.part("name_sets", n_rows).tolist()
        return FeatureColumns(
            [
                (known[number] or plain_feature_names(n)) if n else None
                for number, n in zip(numbers, n_features, strict=True)
            ],
            found.part("features", found["n_features"]),
            self._of_some_rows(
                "has_propensities", candidate_counts, "propensities", found["n_propensities"]
            ),
        )

    def _of_some_rows(self, which: str, counts: IntArray, name: str, size: int) -> dict[int, Any]:
        """Numbers by row of the rows that have them, one for each candidate."""
        rows = np.flatnonzero(self._arrays.part(which, len(counts)))
        if not len(rows):
            return {}
        ends = np.cumsum(counts[rows]).tolist()
        flat = self._arrays.part(name, size).tolist()
        spans = pairwise([0, *ends])
        return {row: flat[a:b] for row, (a, b) in zip(rows.tolist(), spans, strict=True)}


class JudgmentDecoder:
    """Decodes judgments, into arrays that it keeps."""

    def __init__(self) -> None:
        self._arrays = Arrays(
            "n_rows strings_size n_grades".split(),
            [
                ("timestamps_ms", np.int64),
                ("grade_counts", np.int64),
                ("has_judgment_id", np.uint8),
                ("strings", np.uint8),
                ("ids", np.int32),
                ("grades", np.float64),
            ],
        )

    def rows(self, texts: MessageTexts, first: int) -> JudgmentPart | None:
        """The rows from *first* on, up to the first that is to be read by the book."""
        if library.BUILT is None:
            return None
        found = self._arrays
        found.fill(library.BUILT.decode_judgments, texts, first)
        n_rows, n_grades = found["n_rows"], found["n_grades"]
        if not n_rows:
            return None
        strings = found.column("strings", found["strings_size"])
        judgment_ids: list[str | None] = list(strings[3::4])
        for row in np.flatnonzero(found.part("has_judgment_id", n_rows) == 0).tolist():
            judgment_ids[row] = None
        return JudgmentPart(
            timestamps_ms=found.part("timestamps_ms", n_rows),
            strings=strings,
            judgment_ids=judgment_ids,
            grades=GradeColumns(
                found.part("grade_counts", n_rows),
                DictionaryColumn(found.names(), found.part("ids", n_grades)),
                found.part("grades", n_grades),
            ),
        )


class Decoders(threading.local):
    """The decoders of a thread."""

    def __init__(self) -> None:
        self.rankings = RankingDecoder()
        self.judgments = JudgmentDecoder()
