"""One model under the steward: what is learned for it, and which weights are tried against which.

Everything here is a function of its settled queries, in order, and of where turns end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from evaluator.core.features import FEATURE_NAMES, History, shortened
from evaluator.core.gate import Gate, decided, ended, started
from evaluator.core.groups import Group
from evaluator.core.learner import LearnerState
from evaluator.core.lessons import is_trusted, lesson_of, nothing
from evaluator.core.measures import MISSING
from evaluator.core.merge import SettledQuery
from evaluator.core.optimisers import Numbers
from evaluator.core.releases import (
    CANDIDATE,
    CHAMPION,
    Release,
    Rules,
    Status,
    Version,
    Word,
)
from evaluator.core.reliabilities import MOST_TABLES, Reliabilities, featured, seen_with
from evaluator.core.trials import (
    Bet,
    add_units,
    bets_of,
    evidence_of,
    observations_of,
    units_in_force,
)
from evaluator.core.trust import window_weights

LEAST_UPDATES: Final = 50
"""Since the last candidate, before there is another: a trial takes long, and should be worth it."""
MOST_IN_A_TURN: Final = 200_000
"""Queries of a turn that are bet on; what comes after them is not, whatever it says."""


@dataclass(slots=True)
class Pupil:
    """The state of one model, and what the open turn has brought so far."""

    model: str
    feature_names: tuple[str, ...] = ()
    learner: LearnerState | None = None
    learned_at_snapshot: int = 0
    epoch: int = 0
    version: int = 0
    champions: list[Version] = field(default_factory=list)  # the newest last
    candidate: Version | None = None
    gate: Gate = field(default_factory=Gate)
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # of n, by task
    sums: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    reliabilities: Reliabilities = field(default_factory=Reliabilities)
    told_frozen: bool = False
    heard: int = 0  # number of the last word of an operator that was followed
    loss: float | None = None  # mean over the groups of the last turn that had any
    # Of the open turn alone:
    groups: list[Group] = field(default_factory=list)
    bets: dict[str, list[Bet]] = field(default_factory=dict)
    parties: dict[str, int] = field(default_factory=dict)
    n_bets: int = 0
    losses: tuple[int, float] = (0, 0.0)  # of groups that counted: how many, and their sum
    word: Word | None = None

    # Queries

    def study(self, queries: Sequence[SettledQuery], rules: Rules) -> None:
        """Measures what was in force, and only then learns."""
        queries = [featured(query, rules.embedder) for query in queries]
        self._contend(queries, rules)
        for query in queries:
            first, _ = self.ranges.get(query.task, (query.n, 0))
            self.ranges[query.task] = (first, query.n + 1)
            for source, n in query.sources.items():
                party = source if rules.trust is None else rules.trust.party(source)
                self.parties[party] = self.parties.get(party, 0) + n
            group = self._group(query, rules)  # the first one begins the list anew
            self.groups.append(group)
        self._step(rules, whole=True)
        described = [query for query in queries if query.described is not None]
        taught = [query for query in described if is_trusted(query, rules)]
        self.reliabilities.learn(taught, max_grade=rules.max_grade)
        self.reliabilities.pass_by(max(query.event_time_ms for query in queries))

    def _contend(self, queries: Sequence[SettledQuery], rules: Rules) -> None:
        judged = [query for query in queries if query.grades]
        champion, candidate = units_in_force(judged, self.champions, self.candidate, rules)
        if self.champions:
            add_units(champion, rules, self.sums.setdefault(CHAMPION, {}))
        else:
            canonical = rules.contest.measures.canonical
            for row, query in enumerate(judged):
                champion[row] = [query.served_units.get(name, MISSING) for name in canonical]
        while len(self.champions) > 1 and judged:
            if judged[-1].event_time_ms < self.champions[1].from_ms:
                break
            self.champions.pop(0)
        if self.candidate is not None:
            add_units(candidate, rules, self.sums.setdefault(CANDIDATE, {}))
            told = np.flatnonzero((candidate != MISSING).any(axis=1))
            told = told[: MOST_IN_A_TURN - self.n_bets]
            asked = [judged[place] for place in told.tolist()]
            bets = bets_of(asked, champion[told], candidate[told], rules)
            self.n_bets += len(bets)
            for query, bet in zip(asked, bets, strict=True):
                self.bets.setdefault(query.trace_id, []).append(bet)

    def _group(self, query: SettledQuery, rules: Rules) -> Group:
        """What is learned from a query: nothing, if it has no features or is not to be trusted."""
        if not query.feature_names:
            return nothing(len(self.feature_names))
        if self.learner is None:
            self._begin(query.feature_names, rules)
        seen = seen_with(query, self.reliabilities.at(query.event_time_ms))
        lesson = lesson_of(seen, self.feature_names, rules)
        if isinstance(lesson, str):
            self._freeze(lesson, rules)
            return nothing(len(self.feature_names))
        return lesson

    def _begin(self, names: tuple[str, ...], rules: Rules) -> None:
        """The learner begins with the champion's weights, if they are for these features."""
        self.feature_names = names
        self.groups = [nothing(len(names)) for _ in self.groups]
        weights: Numbers = (0.0,) * len(names)
        if self.champions and self.champions[-1].feature_names == names:
            weights = self.champions[-1].weights
        elif len(rules.initial_weights) == len(names):
            weights = rules.initial_weights
        self.learner = rules.learner.start(weights)
        if rules.initial_weights and len(rules.initial_weights) != len(names):
            n = len(rules.initial_weights)
            self._freeze(f"initial_weights are {n}, features {len(names)}", rules)

    def _freeze(self, reason: str, rules: Rules) -> None:
        """Learns from the batches before this moment, and from nothing after it."""
        self._step(rules, whole=True)
        if self.learner is not None and not self.learner.frozen:
            self.learner = replace(self.learner, frozen=reason)

    def _step(self, rules: Rules, *, whole: bool) -> None:
        """Learns from the groups so far, batch by batch; from *whole* batches alone, or all."""
        n = len(self.groups)
        if whole:
            n -= n % rules.batch_queries
        if not n:
            return
        groups, self.groups = self.groups[:n], self.groups[n:]
        if self.learner is None or self.learner.frozen:
            return
        for batches in rules.learner.batches(groups, rules.batch_queries):
            self.learner, losses = rules.learner.learn(self.learner, batches)
            for loss in losses:  # the built-in sum rounds otherwise from one Python to the next
                self.losses = (self.losses[0] + 1, self.losses[1] + loss)

    # The end of a turn

    def turn(self, now_ms: int, rules: Rules, *, max_table_bytes: int) -> list[Release]:
        """Bets on what the turn has brought, and says what follows for the weights."""
        self._step(rules, whole=False)
        n_losses, losses = self.losses
        self.loss = losses / n_losses if n_losses else self.loss
        self._turn_tables(now_ms, max_table_bytes)
        releases = [
            *self._first(rules),
            *self._told(now_ms, rules),
            *self._decided(now_ms, rules),
            *self._tried(now_ms, rules),
            *self._frozen(rules),
        ]
        self.bets, self.parties, self.n_bets, self.losses = {}, {}, 0, (0, 0.0)
        return releases

    @property
    def n_tables(self) -> int:
        """Tables of reliabilities that the end of this turn may leave, at most."""
        if self.reliabilities.now is None and all(each.history is None for each in self.champions):
            return 0
        return MOST_TABLES + len(self.champions) + 3  # now, a champion more, a candidate

    def _turn_tables(self, now_ms: int, max_bytes: int) -> None:
        if self.word is not None and self.word.history is not None:
            self.word = self.word._replace(history=shortened(self.word.history, max_bytes))
        self.reliabilities.turn(now_ms, max_bytes=max_bytes)
        self.champions = [version.with_table_of(max_bytes) for version in self.champions]
        if self.candidate is not None:
            self.candidate = self.candidate.with_table_of(max_bytes)

    def _history(self) -> History | None:
        """The table that belongs to what was learned so far; None where none is asked for."""
        return self.reliabilities.now if self.feature_names == FEATURE_NAMES else None

    def _first(self, rules: Rules) -> list[Release]:
        """Initial weights are the first champion."""
        if self.version or self.learner is None or not rules.initial_weights:
            return []
        if len(rules.initial_weights) != len(self.feature_names):
            return []
        release = self._release("initial", rules.initial_weights, 0)
        self.champions = [Version(release.version, 0, rules.initial_weights, self.feature_names)]
        return [release]

    def _told(self, now_ms: int, rules: Rules) -> list[Release]:
        """What an operator has asked for, once."""
        word = self.word
        if word is None or (word.action == "freeze" and self.learner is None):
            return []
        self.word = None
        if word.number <= self.heard:
            return []
        self.heard = word.number
        if word.action == "roll_back":
            return [self._rolled_back(now_ms, word, rules)]
        if self.learner is not None:
            self.learner, self.told_frozen = replace(self.learner, frozen=word.reason), False
        self.candidate, self.gate = None, Gate(None, now_ms)
        return []

    def _rolled_back(self, now_ms: int, word: Word, rules: Rules) -> Release:
        """A new epoch, with older weights as the champion and as the learner's beginning."""
        weights, names, history = word.weights, word.feature_names, word.history
        self.epoch += 1
        self.feature_names, self.candidate = names, None
        self.learner, self.learned_at_snapshot = rules.learner.start(weights), 0
        self.told_frozen = False
        self.gate = Gate(None, now_ms + rules.gate.cool_down_ms)
        release = self._release("rolled_back", weights, now_ms, reason=word.reason, history=history)
        self.champions.append(Version(release.version, now_ms, weights, names, history))
        return release

    def _decided(self, now_ms: int, rules: Rules) -> list[Release]:
        """What the bets of the turn decide, trace by trace."""
        trial, candidate = self.gate.trial, self.candidate
        if trial is None or candidate is None:
            return []
        worth = None if rules.trust is None else window_weights(self.parties, rules.trust)
        traces = observations_of(now_ms, self.bets, worth, rules)
        if not traces:
            return []
        trial, verdict = decided(trial, traces, rules.gate)
        if verdict.status == "undecided":
            self.gate = replace(self.gate, trial=trial)
            return []
        evidence = evidence_of(trial, verdict, rules)
        self.gate = ended(replace(self.gate, trial=trial), rules.gate, now_ms=now_ms)
        self.candidate = None
        status: Status = "rejected"
        if verdict.status == "promoted":
            status = "promoted" if rules.mode == "auto" else "proposed"
        release = self._release(
            status,
            candidate.weights,
            now_ms,
            of=candidate.number,
            evidence=evidence,
            history=candidate.history,
        )
        if status == "promoted":
            self.champions.append(candidate._replace(number=release.version, from_ms=now_ms))
        return [release._replace(feature_names=candidate.feature_names)]

    def _tried(self, now_ms: int, rules: Rules) -> list[Release]:
        """A frozen snapshot of what was learned becomes the candidate, if one may be tried now."""
        learner = self.learner
        if learner is None or learner.frozen or learner.scale is None:
            return []
        if learner.updates < self.learned_at_snapshot + LEAST_UPDATES:
            return []
        if not self.gate.may_start(now_ms):
            return []
        weights = rules.learner.snapshot(learner)
        self.learner = rules.learner.published(learner)
        self.learned_at_snapshot = learner.updates
        history = self._history()
        release = self._release("candidate", weights, now_ms, history=history)
        self.candidate = Version(release.version, now_ms, weights, self.feature_names, history)
        self.gate = started(self.gate, now_ms=now_ms)
        return [release]

    def _frozen(self, rules: Rules) -> list[Release]:
        learner = self.learner
        if learner is None or not learner.frozen or self.told_frozen:
            return []
        self.told_frozen = True
        weights, history = rules.learner.snapshot(learner), self._history()
        return [self._release("frozen", weights, 0, reason=learner.frozen, history=history)]

    def _release(
        self,
        status: Status,
        weights: Numbers,
        from_ms: int,
        *,
        of: int = 0,
        evidence: Mapping[str, Any] | None = None,
        reason: str = "",
        history: History | None = None,
    ) -> Release:
        self.version += 1
        scale = None if self.learner is None else self.learner.scale
        return Release(
            status=status,
            model=self.model,
            epoch=self.epoch,
            version=self.version,
            of_version=of or self.version,
            weights=weights,
            feature_names=self.feature_names,
            scale=scale,
            updates=0 if self.learner is None else self.learner.updates,
            from_ms=from_ms,
            ranges=dict(self.ranges),
            evidence=evidence,
            reason=reason,
            history=history,
        )

    # As JSON keeps it

    def state(self) -> dict[str, Any]:
        """Everything at the end of a turn."""
        return {
            "model": self.model,
            "feature_names": list(self.feature_names),
            "learner": None if self.learner is None else asdict(self.learner),
            "learned_at_snapshot": self.learned_at_snapshot,
            "epoch": self.epoch,
            "version": self.version,
            "champions": [version.state() for version in self.champions],
            "candidate": None if self.candidate is None else self.candidate.state(),
            "gate": self.gate.state(),
            "ranges": {str(task): list(of) for task, of in sorted(self.ranges.items())},
            "sums": {
                ranker: {measure: list(of) for measure, of in sorted(sums.items())}
                for ranker, sums in sorted(self.sums.items())
            },
            "reliabilities": self.reliabilities.state(),
            "told_frozen": self.told_frozen,
            "heard": self.heard,
            "loss": self.loss,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Pupil":
        """The very same pupil, at the beginning of a turn."""
        learner, candidate = state["learner"], state["candidate"]
        return cls(
            model=state["model"],
            feature_names=tuple(state["feature_names"]),
            learner=None if learner is None else LearnerState.of(learner),
            learned_at_snapshot=state["learned_at_snapshot"],
            epoch=state["epoch"],
            version=state["version"],
            champions=[Version.of(version) for version in state["champions"]],
            candidate=None if candidate is None else Version.of(candidate),
            gate=Gate.from_state(state["gate"]),
            ranges={int(task): (first, end) for task, (first, end) in state["ranges"].items()},
            sums={
                ranker: {measure: (n, units) for measure, (n, units) in sums.items()}
                for ranker, sums in state["sums"].items()
            },
            reliabilities=Reliabilities.from_state(state["reliabilities"]),
            told_frozen=state["told_frozen"],
            heard=state["heard"],
            loss=state["loss"],
        )

    def in_new_epoch(self) -> "Pupil":
        """Under other rules: what is live stays so, and all else begins anew."""
        return Pupil(
            model=self.model,
            epoch=self.epoch + 1,
            version=self.version,
            champions=self.champions[-1:],
            ranges=self.ranges,
            sums=self.sums,
            heard=self.heard,
        )
