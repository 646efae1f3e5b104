"""`compare`: paired differences of several runs on the same queries, and the table of them."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.comparison.paired import Interval, Paired, holm, middle, paired, resampled_moments
from evaluator.comparison.question import CONFIDENCE, RESAMPLES
from evaluator.core.measures import (
    InvalidInputError,
    UnknownMeasureError,
    UnsupportedTiesError,
    lower_is_better,
)
from evaluator.core.types.records import FloatArray
from evaluator.library.forms import check_keys, is_arrays, qrels_of
from evaluator.library.measured import Measured, QueryId, frame_of
from evaluator.library.measuring import EvaluateOptions, evaluate, names_of
from evaluator.library.plots import Bar, bars_plot


class Effect(Struct, frozen=True, kw_only=True):
    """Mean of the differences of traces over their standard deviation (Cohen's d of pairs).

    `interval` is that of the bootstrap; both are None where all differences are equal.
    """

    value: float | None
    interval: Interval | None


def effect_of(
    differences: FloatArray, traces: NDArray[Any], *, resamples: int, confidence: float, seed: int
) -> Effect:
    """The effect size of differences of queries; the unit is the mean difference of a trace.

    Source: Cohen 1988, Statistical power analysis, chapter 2 (d_z).

    >>> traces = np.array(["a", "b"])
    >>> effect_of(np.array([0.0, 2.0]), traces, resamples=9, confidence=0.5, seed=0).value
    0.7071067811865475
    """
    _, trace_of, counts = np.unique(traces, return_inverse=True, return_counts=True)
    of_traces = np.bincount(trace_of, differences) / counts
    n = len(of_traces)
    spread = float(of_traces.std(ddof=1)) if n > 1 else 0.0
    if spread == 0.0:
        return Effect(value=None, interval=None)
    means, squares = resampled_moments(of_traces, resamples, np.random.default_rng(seed))
    spreads = np.sqrt(np.maximum(squares - means * means, 0.0) * n / (n - 1))
    found = means[spreads > 0] / spreads[spreads > 0]
    interval = middle(found, confidence) if len(found) else Interval(low=np.nan, high=np.nan)
    return Effect(value=float(of_traces.mean()) / spread, interval=interval)


class Pairs(NamedTuple):
    """The values of the baseline and of another run, and the traces: `[n_queries]` each."""

    baseline: FloatArray
    other: FloatArray
    traces: NDArray[Any]


def _pairs_of(
    baseline: Measured, other: Measured, measure: str, traces: Mapping[Any, str]
) -> Pairs | None:
    """Both values and the trace of the queries that have both, in the order of the baseline."""
    place_of: dict[QueryId, int] = {name: place for place, name in enumerate(other.query_ids)}
    pairs = [(at, place_of[name]) for at, name in enumerate(baseline.query_ids) if name in place_of]
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    one, two = baseline.values(measure)[first], other.values(measure)[second]
    both = ~(np.isnan(one) | np.isnan(two))
    if not both.any():
        return None
    names = [baseline.query_ids[place] for place in first[both].tolist()]
    trace_of = np.array([_trace(name, traces) for name in names])
    return Pairs(one[both], two[both], trace_of)


def _trace(query_id: QueryId, traces: Mapping[Any, str]) -> str:
    """The trace of a query; a query without one gets a unique trace."""
    trace = traces.get(query_id)
    return f"query\0{query_id}" if trace is None else f"trace\0{trace}"


class Draw(TypedDict):
    """How resamples are drawn."""

    resamples: int
    confidence: float
    seed: int


class Compared(dict[str, dict[str, Paired | None]]):
    """The comparisons by run and measure, and a table of all runs.

    `baseline` is the name of the run that all are compared with, `measured` has the values of all
    runs, `confidence` is that of all intervals.
    """

    def __init__(
        self,
        measured: Mapping[str, Measured],
        *,
        baseline: str,
        traces: Mapping[Any, str],
        draw: Draw,
    ) -> None:
        super().__init__()
        self._pairs = {
            name: {
                measure: _pairs_of(measured[baseline], other, measure, traces)
                for measure in other.measures
            }
            for name, other in measured.items()
            if name != baseline
        }
        for name, by_measure in self._pairs.items():
            self[name] = {
                measure: None if one is None else paired(*one, **draw)
                for measure, one in by_measure.items()
            }
        self.baseline = baseline
        self.measured = measured
        self.confidence = draw["confidence"]
        self._traces = traces
        self._draw = draw

    @cached_property
    def effects(self) -> dict[str, dict[str, Effect | None]]:
        """The effect sizes by run and measure, computed when they are first used."""
        return {
            name: {
                measure: None
                if one is None
                else effect_of(one.other - one.baseline, one.traces, **self._draw)
                for measure, one in by_measure.items()
            }
            for name, by_measure in self._pairs.items()
        }

    @cached_property
    def by_group(self) -> dict[str, "Compared"]:
        """The comparisons of the queries of each group, the largest group of the baseline first."""
        groups = {name: one.by_group for name, one in self.measured.items()}
        return {
            group: Compared(
                {
                    name: groups[name].get(group) or one.of([])
                    for name, one in self.measured.items()
                },
                baseline=self.baseline,
                traces=self._traces,
                draw=self._draw,
            )
            for group in groups[self.baseline]
        }

    @property
    def p_holm(self) -> dict[str, dict[str, float]]:
        """The p by run and measure, by Holm's correction over the runs of each measure."""
        corrected: dict[str, dict[str, float]] = {name: {} for name in self}
        for measure in self.measured[self.baseline].measures:
            pairs = {name: by_measure.get(measure) for name, by_measure in self.items()}
            ps = {name: one.p for name, one in pairs.items() if one and one.p is not None}
            for name, p in holm(ps).items():
                corrected[name][measure] = p
        return corrected

    def rows(self) -> list[dict[str, Any]]:
        """A row for each run and measure; missing values are None."""
        corrected = self.p_holm
        return [
            self._row(name, measure, corrected)
            for name in self.measured
            for measure in self.measured[self.baseline].measures
        ]

    def _row(
        self, name: str, measure: str, corrected: Mapping[str, Mapping[str, float]]
    ) -> dict[str, Any]:
        one = self.get(name, {}).get(measure)
        effect = self.effects.get(name, {}).get(measure)
        interval = one.interval if one else None
        spread = effect.interval if effect else None
        return {
            "run": name,
            "measure": measure,
            "mean": self.measured[name].mean[measure],
            "queries": len(self.measured[name]),
            "difference": one.difference if one else None,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "p": one.p if one else None,
            "p_holm": corrected.get(name, {}).get(measure),
            "effect": effect.value if effect else None,
            "effect_low": spread.low if spread else None,
            "effect_high": spread.high if spread else None,
            "wins": one.wins if one else None,
            "ties": one.ties if one else None,
            "losses": one.losses if one else None,
        }

    def to_frame(self) -> Any:
        """The rows as a frame of pandas, or of polars if there is no pandas."""
        return frame_of(self.rows())

    def to_markdown(self) -> str:
        """A table of runs and measures: the best mean is bold, * is a significant difference."""
        measures, rows = self.measured[self.baseline].measures, self.rows()
        means = {(row["run"], row["measure"]): row["mean"] for row in rows}
        best = {
            measure: (min if lower_is_better(measure) else max)(
                (m for (_, of), m in means.items() if of == measure and m is not None), default=None
            )
            for measure in measures
        }
        lines = [["run", *measures], ["---", *["---:"] * len(measures)]]
        by_key = {(row["run"], row["measure"]): row for row in rows}
        for name in self.measured:
            cells = [self._cell(by_key[name, measure], best[measure]) for measure in measures]
            lines.append([name.replace("|", "\\|").replace("\n", " "), *cells])
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return (
            f"{table}\n\n"
            f"Differences from {self.baseline}; \\* p < {1 - self.confidence:.2g} by a paired "
            f"randomisation test with Holm's correction over {len(self)} runs.\n"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draws the differences with their intervals, with matplotlib; returns the axes.

        Those with a corrected p below 1 - confidence are filled.
        """
        bars: dict[str, list[Bar]] = {}
        for row in self.rows():
            if row["difference"] is not None:
                is_significant = row["p_holm"] is not None and row["p_holm"] < 1 - self.confidence
                bar = Bar(row["run"], row["difference"], row["low"], row["high"], is_significant)
                bars.setdefault(row["measure"], []).append(bar)
        return bars_plot(bars, f"difference from {self.baseline}", ax=ax)

    def _cell(self, row: Mapping[str, Any], best: float | None) -> str:
        mean, difference, p = row["mean"], row["difference"], row["p_holm"]
        if mean is None:
            return "-"
        text = f"**{mean:.4f}**" if mean == best else f"{mean:.4f}"
        if difference is None:
            return text
        is_significant = p is not None and p < 1 - self.confidence
        return f"{text} ({difference:+.4f}{chr(92) + '*' if is_significant else ''})"


def compare(
    qrels: Any,
    runs: Mapping[str, Any],
    measures: str | Iterable[str],
    *,
    baseline: str | None = None,
    traces: Mapping[Any, str] | None = None,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    **settings: Unpack[EvaluateOptions],
) -> Compared:
    """The paired difference of each run from a baseline, on their common queries.

    Args:
        qrels: as in `evaluate`; the same for all runs.
        runs: by name, each as in `evaluate`; two or more.
        measures: as in `evaluate`.
        baseline: name of the run to compare with; default: the first one.
        traces: the trace of queries; queries of one trace are drawn together by the bootstrap.
            Every other query is a separate trace.
        resamples: of the bootstrap and the test, >= 1.
        confidence: of the interval, above 0 and below 1.
        seed: of the bootstrap, >= 0.
        settings: optional arguments of `evaluate`.
    Returns:
        By name of the other run and by measure; None where no query has both values. It is also a
        table: `to_markdown()`, `to_frame()`, `rows()`, `p_holm` and `effects`; with `groups`
        `by_group` has the comparisons of each.
    Raises:
        InvalidInputError: as `evaluate`, and for runs that cannot be compared.

    >>> qrels = {"q1": {"a": 1, "b": 0}, "q2": {"c": 1, "d": 0}}
    >>> before = {"q1": {"a": 0.3, "b": 0.7}, "q2": {"c": 0.9, "d": 0.5}}
    >>> after = {"q1": {"a": 0.8, "b": 0.7}, "q2": {"c": 0.9, "d": 0.5}}
    >>> result = compare(qrels, {"before": before, "after": after}, "mrr")["after"]["mrr"]
    >>> result.difference, result.wins, result.ties, result.losses
    (0.25, 1, 1, 0)
    """
    given: tuple[Any, Any] = (runs, {} if traces is None else traces)
    if not all(isinstance(one, Mapping) for one in given) or not all(
        isinstance(name, str) for name in runs
    ):
        raise InvalidInputError("runs must be {name: run}, and traces {query_id: trace_id}.")
    names = list(runs)
    first = baseline if baseline is not None else names[0] if names else ""
    if len(names) < 2 or first not in runs:
        raise InvalidInputError(
            f"runs are {', '.join(names) or 'none'}, the baseline is {first}: give two or more "
            "runs by name, and the name of one of them as the baseline."
        )
    by_row = is_arrays(qrels, runs[first])
    shared = qrels if by_row else qrels_of(qrels)
    check_keys("traces", traces, range(len(shared)) if by_row else shared)
    measured = _measured(shared, runs, names_of(measures), settings)
    draw = Draw(resamples=resamples, confidence=confidence, seed=seed)
    return Compared(measured, baseline=first, traces=traces or {}, draw=draw)


def _measured(
    qrels: Any, runs: Mapping[str, Any], measures: list[str], settings: EvaluateOptions
) -> dict[str, Measured]:
    """The values of each run. Raises InvalidInputError with the name of the run."""
    measured = {}
    for name, run in runs.items():
        try:
            measured[name] = evaluate(qrels, run, measures, **settings)
        except (UnknownMeasureError, UnsupportedTiesError):
            raise  # of no run
        except InvalidInputError as error:
            raise InvalidInputError(f"run {name}: {error}") from None
    return measured
