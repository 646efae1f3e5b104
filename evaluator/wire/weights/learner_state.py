"""Types of the leader state in a record.

`OnlineLearner.state` makes it. Reading checks that no member is missing, that parallel lists have
equal length, and that numbers are within their bounds.
"""

from typing import Any, Literal

import msgspec

from evaluator.core.learning.transforms import loaded
from evaluator.core.online.online_learner import FORMAT
from evaluator.core.online.progress import ProgressiveValidation
from evaluator.core.online.training import Unusable
from evaluator.core.promotion.gate import Experiment
from evaluator.wire.reading import Count, HistoryTable, Int64, Sum, checked_sums

_Numbers = tuple[float, ...]
_Names = tuple[str, ...]
TimeMs = int
"""A settled time: event time + maturity_ms, possibly beyond an int64."""
_Moments = tuple[_Numbers, _Numbers, float, float]


class TransformRow(msgspec.Struct, forbid_unknown_fields=True):
    """`Transform` in records."""

    low: float | None
    high: float | None
    log1p: bool


class _Version(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    number: Count
    from_ms: TimeMs
    weights: _Numbers
    feature_names: _Names
    history: HistoryTable | None
    transforms: dict[str, TransformRow] = {}


class _Learner(msgspec.Struct, forbid_unknown_fields=True):
    weights: _Numbers
    scale: _Numbers | None
    moments: _Moments
    updates: Count
    n_groups: Count
    n_free: Count
    squares: _Numbers
    frozen: str


class _Experiment(msgspec.Struct, forbid_unknown_fields=True):
    started_ms: TimeMs
    last_ms: TimeMs
    n_traces: Count
    n_queries: Count
    gain: list[tuple[float, Int64]]
    loss: list[tuple[float, Int64]]
    spread: tuple[Count, float, float]
    days: list[tuple[float, Int64]]
    block: tuple[TimeMs, Count, Sum] | None
    day: tuple[TimeMs, Count, Sum] | None
    sums: dict[str, tuple[Sum, Sum]]
    traces: tuple[Count, str]
    queries: tuple[Count, str]


class _Gate(msgspec.Struct):
    format: Literal[2]
    rests_until_ms: TimeMs
    experiment: _Experiment | None


class _SuccessRates(msgspec.Struct):
    now: HistoryTable | None
    tables: list[tuple[TimeMs, HistoryTable]]


class _Unusable(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    recent: str
    counts: dict[str, Count]
    n_noted: Count = 0


class _Model(msgspec.Struct):
    model: str
    feature_names: _Names
    learner: _Learner | None
    epoch: Count
    version: Count
    champions: list[_Version]
    challenger: _Version | None
    gate: _Gate
    ranges: dict[Count, tuple[Count, Count]]
    sums: dict[Literal["champion", "challenger"], dict[str, tuple[Sum, Sum]]]
    success_rates: _SuccessRates | None
    frozen_published: bool
    last_command: Count
    loss: float | None
    unusable: _Unusable
    progress: tuple[float, float, float]
    last_experiment: tuple[Count, str, str] | None = None


class _State(msgspec.Struct):
    format: int
    taken: dict[Count, tuple[Count, TimeMs]]
    ignored: Count
    models: list[_Model]


def check_state(state: Any) -> None:
    """Raises ValueError or msgspec's ValidationError for an invalid state."""
    found = msgspec.convert(state, _State, str_keys=True)
    if found.format != FORMAT:
        raise ValueError(f"its format is {found.format}, and this version reads {FORMAT}")
    for model in found.models:
        _check_model(model)


def _check_model(model: _Model) -> None:
    learner, n = model.learner, len(model.feature_names)
    Unusable.load(msgspec.to_builtins(model.unusable))
    ProgressiveValidation.load(model.progress)
    if learner is not None:
        first, second, *_ = learner.moments
        _check_lengths(learner.weights, n)
        for numbers in filter(None, (learner.scale, learner.squares, first, second)):
            _check_lengths(numbers, n)
        if learner.scale is not None and (len(learner.scale) != n or min(learner.scale) <= 0):
            raise ValueError(f"the scale of {model.model!r} is invalid")
    for version in filter(None, (*model.champions, model.challenger)):
        _check_lengths(version.weights, len(version.feature_names))
        loaded(msgspec.to_builtins(version.transforms))
    experiment = model.gate.experiment
    for sums in (*model.sums.values(), {} if experiment is None else experiment.sums):
        checked_sums([number for pair in sums.values() for number in pair])
    if experiment is not None:
        opened = filter(None, (experiment.block, experiment.day))
        checked_sums([block[2] for block in opened])
        Experiment.load(msgspec.to_builtins(experiment))
    rates = model.success_rates
    if rates is not None and not (rates.now or rates.tables):
        raise ValueError(f"the success_rates of {model.model!r} have no table")


def _check_lengths(numbers: _Numbers, n: int) -> None:
    if len(numbers) != n:
        raise ValueError(f"{len(numbers)} numbers for {n} features")
