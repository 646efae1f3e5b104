"""The state of the steward as a record has it, in types: what is read back is of these or nothing.

`Steward.state` makes it; here it is only held to its shape, so that what goes on from it finds
every member, every list as long as the others, and every number in its bounds.
"""

from typing import Any, Literal

import msgspec

from evaluator.core.steward import FORMAT
from evaluator.wire.reading import Count, HistoryTable, Int64, Sum, checked_sums

_Numbers = tuple[float, ...]
_Names = tuple[str, ...]
TimeMs = int
"""A settled time: an event time and a maturity, which no int64 has to hold."""
_Moments = tuple[_Numbers, _Numbers, float, float]
_Version = tuple[Count, TimeMs, _Numbers, _Names, HistoryTable | None]


class _Learner(msgspec.Struct, forbid_unknown_fields=True):
    weights: _Numbers
    scale: _Numbers | None
    moments: _Moments
    updates: Count
    n_groups: Count
    n_free: Count
    squares: _Numbers
    frozen: str


class _Trial(msgspec.Struct, forbid_unknown_fields=True):
    started_ms: TimeMs
    last_ms: TimeMs
    n_traces: Count
    n_queries: Count
    gain: list[tuple[float, Int64]]
    loss: list[tuple[float, Int64]]
    sums: dict[str, tuple[Sum, Sum]]


class _Gate(msgspec.Struct):
    format: Literal[1]
    rests_until_ms: TimeMs
    trial: _Trial | None


class _Reliabilities(msgspec.Struct):
    now: HistoryTable | None
    tables: list[tuple[TimeMs, HistoryTable]]


class _Pupil(msgspec.Struct):
    model: str
    feature_names: _Names
    learner: _Learner | None
    learned_at_snapshot: Count
    epoch: Count
    version: Count
    champions: list[_Version]
    candidate: _Version | None
    gate: _Gate
    ranges: dict[Count, tuple[Count, Count]]
    sums: dict[Literal["champion", "candidate"], dict[str, tuple[Sum, Sum]]]
    reliabilities: _Reliabilities | None
    told_frozen: bool
    heard: Count
    loss: float | None


class _State(msgspec.Struct):
    format: int
    taken: dict[Count, tuple[Count, TimeMs]]
    left_alone: Count
    models: list[_Pupil]


def check_state(state: Any) -> None:
    """Raises ValueError or msgspec's ValidationError for what no steward has written."""
    found = msgspec.convert(state, _State, str_keys=True)
    if found.format != FORMAT:
        raise ValueError(f"a steward of format {found.format} cannot be read here")
    for pupil in found.models:
        _check_pupil(pupil)


def _check_pupil(pupil: _Pupil) -> None:
    learner, n = pupil.learner, len(pupil.feature_names)
    if learner is not None:
        first, second, *_ = learner.moments
        _check_lengths(learner.weights, n)
        for numbers in (learner.scale, learner.squares, first, second):
            if numbers:
                _check_lengths(numbers, n)
        if learner.scale is not None and (len(learner.scale) != n or min(learner.scale) <= 0):
            raise ValueError(f"the scale of {pupil.model!r} is no scale")
    for version in (*pupil.champions, *([pupil.candidate] if pupil.candidate else [])):
        _check_lengths(version[2], len(version[3]))
    for sums in (*pupil.sums.values(), *([pupil.gate.trial.sums] if pupil.gate.trial else [])):
        checked_sums([number for pair in sums.values() for number in pair])
    if pupil.reliabilities is not None and not (
        pupil.reliabilities.now or pupil.reliabilities.tables
    ):
        raise ValueError(f"the reliabilities of {pupil.model!r} have no table")


def _check_lengths(numbers: _Numbers, n: int) -> None:
    if len(numbers) != n:
        raise ValueError(f"{len(numbers)} numbers for {n} features")
