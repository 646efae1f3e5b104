"""`compare`: paired differences of several runs on the same queries."""

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from evaluator.comparison.question import CONFIDENCE, RESAMPLES
from evaluator.core.measures import InvalidInputError, UnknownMeasureError, UnsupportedTiesError
from evaluator.library.forms import check_keys, is_arrays, qrels_of
from evaluator.library.measured import Measured
from evaluator.library.measuring import EvaluateOptions, evaluate
from evaluator.library.results import Compared, Draw


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
    measured = _measured(shared, runs, measures, settings)
    draw = Draw(resamples=resamples, confidence=confidence, seed=seed)
    return Compared(measured, baseline=first, traces=traces or {}, draw=draw)


def _measured(
    qrels: Any, runs: Mapping[str, Any], measures: str | Iterable[str], settings: EvaluateOptions
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
