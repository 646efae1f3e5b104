"""Everything that is sensitive to order: learning, promotion, and what both are measured by.

Settled queries go through it in one order. They come in turns of event time; a turn ends where a
query of a later one is taken, and only then are bets made, weights changed and the state shown. So
a state is small, and one who goes on from it says what would have been said.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from evaluator.core.gate import verdict as verdict_of
from evaluator.core.merge import Merge, SettledQuery, Taken
from evaluator.core.pupil import Pupil
from evaluator.core.releases import CANDIDATE, CHAMPION, PupilView, Release, Rules, Word
from evaluator.core.types import Mark

FORMAT: Final = 1
MOST_MODELS: Final = 16
"""Models that are learned for; those that come later are counted and left alone."""

MAX_TABLES_BYTES: Final = 512 << 10
"""Of all tables of reliabilities in a state, in JSON, so that a topic takes it."""

_CHUNK: Final = 1_024
_CHUNK_BYTES: Final = 16 << 20
"""Queries that are measured and learned from at once, and what their records took."""


@dataclass(frozen=True, slots=True)
class Turned:
    """The end of a turn: what has to be said, in order, and the state to go on from."""

    now_ms: int
    """Settled time of the last query of the turn."""
    releases: list[Release]
    next_ns: Mapping[int, int]
    """The number of the next query of every task that any was taken of."""
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StewardView:
    """What people see of a steward, as of the end of its last turn; immutable."""

    in_office: bool = False
    n_tasks: int = 0
    awaited: tuple[int, ...] = ()
    """Tasks that hold up what was read, for they say nothing."""
    n_waiting: int = 0
    """Settled queries that were read and not taken yet."""
    n_left_alone: int = 0
    now_ms: int | None = None
    """Settled time of the last query of the last turn."""
    pupils: tuple[PupilView, ...] = ()
    counts: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """What happened in this process: ("records", outcome), ("releases", model, status) ..."""


class Steward:
    """Learns for each model, and tries what was learned.

    Args:
        rules: how.
        n_tasks: how many partitions `settled` has.
        state: as of some `Turned`, to go on from there; None to begin with the first query.
        new_epoch: the state was made under other rules: only what is live is kept.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        n_tasks: int,
        state: Mapping[str, Any] | None = None,
        new_epoch: bool = False,
    ) -> None:
        self._rules = rules
        self._taken: dict[int, Taken] = {}
        self.pupils: dict[str, Pupil] = {}
        self.n_left_alone = 0
        if state is not None:
            if state["format"] != FORMAT:
                raise ValueError(f"a steward of format {state['format']!r} cannot be read here")
            self._taken = {int(task): Taken(*of) for task, of in state["taken"].items()}
            for each in state["models"]:
                pupil = Pupil.from_state(each)
                self.pupils[pupil.model] = pupil.in_new_epoch() if new_epoch else pupil
            self.n_left_alone = state["left_alone"]
        self.merge = Merge(n_tasks, self._taken)
        self._turn: int | None = None
        self._now_ms = 0
        self._pending: list[SettledQuery] = []
        self._pending_bytes = 0
        self._before = {model: view_of(pupil, rules).sums for model, pupil in self.pupils.items()}
        self._views = self._seen()

    def receive(self, records: Iterable[SettledQuery | tuple[int, Mark]]) -> list[Turned]:
        """Takes what the next records of some tasks make certain: the turns that have ended.

        Marks come with their tasks. Raises SettledGap, before anything has changed but what was
        read.
        """
        for record in records:
            if isinstance(record, SettledQuery):
                self.merge.add(record)
            else:
                self.merge.mark(*record)
        return self._go_on()

    def end(self) -> list[Turned]:
        """No more records come: takes the rest, and ends the open turn."""
        self.merge.end()
        turned = self._go_on()
        if self._turn is not None:
            turned.append(self._end_turn())
        return turned

    def hear(self, model: str, word: Word) -> None:
        """At the end of this turn an operator's word is followed, once, if the model is known."""
        if model in self.pupils:
            self.pupils[model].word = word

    def views(self) -> tuple[PupilView, ...]:
        """The models as of the end of the last turn: what a successor knows of them."""
        return self._views

    def _seen(self) -> tuple[PupilView, ...]:
        views = (view_of(self.pupils[model], self._rules) for model in sorted(self.pupils))
        return tuple(view._replace(sums_before=self._before.get(view.model, {})) for view in views)

    def state(self) -> dict[str, Any]:
        """Everything, between two turns, as JSON keeps it exactly."""
        return {
            "format": FORMAT,
            "taken": {str(task): list(of) for task, of in sorted(self._taken.items())},
            "left_alone": self.n_left_alone,
            "models": [self.pupils[model].state() for model in sorted(self.pupils)],
        }

    def _go_on(self) -> list[Turned]:
        turned = []
        for query in self.merge.taken():
            turn = query.event_time_ms // self._rules.turn_ms
            if self._turn is not None and turn > self._turn:
                turned.append(self._end_turn())
            self._turn = turn if self._turn is None else max(turn, self._turn)
            self._now_ms = query.settled_time_ms
            self._taken[query.task] = Taken(query.n + 1, query.settled_time_ms)
            self._pending.append(query)
            self._pending_bytes += query.n_bytes
            if len(self._pending) == _CHUNK or self._pending_bytes >= _CHUNK_BYTES:
                self._study()
        self._study()
        return turned

    def _end_turn(self) -> Turned:
        self._study()
        n_tables = sum(pupil.n_tables for pupil in self.pupils.values())
        share = MAX_TABLES_BYTES // max(1, n_tables)
        releases = [
            release
            for model in sorted(self.pupils)
            for release in self.pupils[model].turn(self._now_ms, self._rules, max_table_bytes=share)
        ]
        self._turn, self._views = None, self._seen()
        next_ns = {task: taken.next_n for task, taken in self._taken.items()}
        return Turned(self._now_ms, releases, next_ns, self.state())

    def _study(self) -> None:
        pending, self._pending = self._pending, []
        self._pending_bytes = 0
        by_model: dict[str, list[SettledQuery]] = {}
        for query in pending:
            by_model.setdefault(query.model, []).append(query)
        for model, queries in by_model.items():
            if model not in self.pupils:
                if len(self.pupils) >= MOST_MODELS:
                    self.n_left_alone += len(queries)
                    continue
                self.pupils[model] = Pupil(model)
            self.pupils[model].study(queries, self._rules)


def view_of(pupil: Pupil, rules: Rules) -> PupilView:
    """What people see of a model."""
    trial, learner = pupil.gate.trial, pupil.learner
    verdict = None if trial is None else verdict_of(trial, rules.gate)
    return PupilView(
        model=pupil.model,
        epoch=pupil.epoch,
        version=pupil.version,
        champion=pupil.champions[-1] if pupil.champions else None,
        candidate=pupil.candidate,
        updates=0 if learner is None else learner.updates,
        frozen="" if learner is None else learner.frozen,
        evidence_for=1.0 if verdict is None else verdict.evidence_for,
        evidence_against=1.0 if verdict is None else verdict.evidence_against,
        n_traces=0 if trial is None else trial.n_traces,
        evidence_needed=1.0 / rules.gate.alpha,
        sums={
            ranker: dict.fromkeys(rules.contest.measures.canonical, (0, 0))
            | pupil.sums.get(ranker, {})
            for ranker in (CHAMPION, CANDIDATE)
        },
        loss=pupil.loss,
    )
