"""Records of the leader: weights after their parents, and the state to continue from."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from evaluator.core.features import History
from evaluator.core.online.events import LIVE, Command, Release
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.online_learner import FORMAT, MOST_MODELS, IntervalResult
from evaluator.wire.canonical import encode_document
from evaluator.wire.reading import Count, HistoryTable, Reader, checked_sums, refused_as
from evaluator.wire.records import LeaderOutput, OutputRecord
from evaluator.wire.weights.learner_state import TimeMs, check_state
from evaluator.wire.weights.weights_record import (
    MAX_WEIGHTS_BYTES,
    WEIGHTS_FORMAT,
    WeightsRefused,
    read_weights,
    with_checksum,
)

STATE_KEY: Final = b'["leader"]'
"""Key of the state in the topic `weights`.

The other keys are the name of a model, for its live weights, and `["command", model]`, for the last
operator command.
"""
MAX_KEY_BYTES: Final = 64 << 10
MOST_GENERATIONS: Final = 16
"""Of a task, that a state remembers."""
_WORD: Final = "command"
_FORMAT: Final = 1
_NO_WORD: Final = "no command of an operator"
_NO_STATE: Final = "no state of a leader"


class StateRefused(ValueError):
    """A record of the leader's state cannot be used; the message has the reason."""


class WordRefused(ValueError):
    """A record of an operator command cannot be used; the message has the reason."""


def weights_key(model: str) -> bytes:
    """Key of the weights of a model."""
    return json.dumps(model, ensure_ascii=False).encode()


def model_of(key: bytes) -> str | None:
    """The model whose weights a key of the topic stands for; None for another key."""
    name = _document_of(key)
    return name if isinstance(name, str) else None


def word_key(model: str) -> bytes:
    """Key of the operator commands of a model."""
    return json.dumps([_WORD, model], ensure_ascii=False).encode()


def command_model_of(key: bytes) -> str | None:
    """The model that a key of an operator's command names; None for another key."""
    name = _document_of(key)
    return name[1] if isinstance(name, tuple) and name[0] == _WORD else None


class _KeyRefused(ValueError):
    """A key is of no record that is read."""


_read_key: Final[Reader[str | tuple[str, str]]] = Reader(
    str | tuple[str, str], _KeyRefused, "no key", max_bytes=MAX_KEY_BYTES
)


def _document_of(key: bytes) -> str | tuple[str, str] | None:
    try:
        return _read_key(key)
    except _KeyRefused:
        return None


class _WordRecord(msgspec.Struct):
    format: Literal[1]
    number: Count
    action: Literal["freeze", "roll_back"]
    reason: str
    weights: tuple[float, ...]
    feature_names: tuple[str, ...]
    success_rates: HistoryTable | None = None


_read_word: Final[Reader[_WordRecord]] = Reader(
    _WordRecord, WordRefused, _NO_WORD, max_bytes=MAX_WEIGHTS_BYTES
)


def word_record(command: Command) -> bytes:
    """A command as a record."""
    history = command.history
    table = None if history is None else msgspec.convert(history.state(), HistoryTable)
    return msgspec.json.encode(_WordRecord(_FORMAT, *command[:-1], table))


def read_command(value: bytes) -> Command:
    """The operator command of a record.

    Raises:
        WordRefused: if the record is no such thing.
    """
    found = _read_word(value)
    if len(found.weights) != len(found.feature_names):
        raise WordRefused(f"{_NO_WORD}: each weight needs the name of its feature")
    if found.action == "roll_back" and not found.weights:
        raise WordRefused(f"{_NO_WORD}: there are no weights to go back to")
    table = found.success_rates
    with refused_as(WordRefused, _NO_WORD):
        history = None if table is None else History.load(msgspec.to_builtins(table))
    numbers = found.weights, found.feature_names
    return Command(found.number, found.action, found.reason, *numbers, history)


@dataclass(slots=True)
class RecordWriter:
    """Creates the records of a leader, and remembers the last one of each model.

    Args:
        fingerprint: names the rules; a state says under which it was made.
        input_fingerprint: of the workers whose settled queries are read; empty in a replay.
        settings: what the rules are, as every record tells.
        parents: checksum of the last record of each model.
        generations: of each task those of `settled` that were read, the present one last.
    """

    fingerprint: str
    settings: Mapping[str, Any]
    input_fingerprint: str = ""
    parents: dict[str, str] = field(default_factory=dict)
    generations: dict[int, list[str]] = field(default_factory=dict)

    def records(self, turned: IntervalResult) -> list[tuple[LeaderOutput, OutputRecord]]:
        """The records of the end of an interval, in order: the state comes last."""
        said: list[tuple[LeaderOutput, OutputRecord]] = []
        for release in turned.releases:
            document = self._document(release, turned.now_ms)
            record = OutputRecord(weights_key(release.model), encode_document(document))
            self.parents[release.model] = document["checksum"]
            said.append(("weights-log", record))
            if release.status in LIVE:
                said.append(("weights", record))
        state = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "input_fingerprint": self.input_fingerprint,
            "event_time_ms": turned.now_ms,
            "positions": {str(task): at for task, at in sorted(turned.positions.items())},
            "parents": dict(sorted(self.parents.items())),
            "state": turned.state,
        }
        if self.generations:
            by_task = sorted(self.generations.items())
            state["generations"] = {str(task): names for task, names in by_task}
        whole = encode_document({**state, "checksum": _digest(state)})
        return [*said, ("weights", OutputRecord(STATE_KEY, whole))]

    def _document(self, release: Release, now_ms: int) -> dict[str, Any]:
        names = list(release.feature_names)
        more: dict[str, Any] = {"reason": release.reason} if release.reason else {}
        if release.history is not None:
            more["success_rates"] = release.history.state()
        return with_checksum(
            {
                "format": WEIGHTS_FORMAT,
                "model": release.model,
                "epoch": release.epoch,
                "version": release.version,
                "parent": self.parents.get(release.model),
                "status": release.status,
                "of_version": release.of_version,
                **more,
                "weights": list(release.weights),
                "feature_names": names,
                "feature_hash": hashlib.sha256(json.dumps(names).encode()).hexdigest(),
                "scale": None if release.scale is None else list(release.scale),
                "updates": release.updates,
                "settings": dict(self.settings),
                "ranges": {
                    f"settled-{task}": {"start": first, "end": end}
                    for task, (first, end) in sorted(release.ranges.items())
                },
                "evidence": None if release.evidence is None else dict(release.evidence),
                "event_time_ms": now_ms,
                "in_force_ms": release.from_ms,
            }
        )


def _digest(state: Mapping[str, Any]) -> str:
    """Of every digit: sums may be larger than what a double holds."""
    return hashlib.sha256(encode_document(state)).hexdigest()


class _Evidence(msgspec.Struct):
    traces: Count
    mean_difference: float | None = None


class _Said(msgspec.Struct):
    """What commands ask of a record of the log of weights, beyond `Weights`."""

    model: str
    epoch: Count
    version: Count
    of_version: Count
    status: str
    event_time_ms: TimeMs
    checksum: str
    evidence: _Evidence | None = None
    reason: str | None = None


_read_said: Final[Reader[dict[str, Any]]] = Reader(
    dict[str, Any], WeightsRefused, max_bytes=MAX_WEIGHTS_BYTES
)


def read_said(value: bytes) -> dict[str, Any]:
    """A record of the log of weights. Raises WeightsRefused."""
    read_weights(value)
    record = _read_said(value)
    with refused_as(WeightsRefused, "no record of the log of weights"):
        checked_sums([msgspec.convert(record, _Said).event_time_ms])
    return record


def emptied_state(said: Sequence[Mapping[str, Any]], last_command: Mapping[str, int]) -> bytes:
    """A leader state that keeps only the next versions and epochs.

    So no version of a model is ever published twice, and no parent is missing.

    Args:
        said: the log of weights, in order; not empty. Of its models the last ones count, as many
            as are learned for.
        last_command: number of the last command of each model, which is not followed again.
    """
    of_model: dict[str, list[Mapping[str, Any]]] = {}
    for record in said:
        of_model[record["model"]] = [*of_model.pop(record["model"], []), record]  # newest last
    newest = dict(list(of_model.items())[-MOST_MODELS:])
    model_learners = [
        ModelLearner(
            model,
            epoch=max(record["epoch"] for record in newest[model]),
            version=max(record["version"] for record in newest[model]),
            last_command=last_command.get(model, 0),
        )
        for model in sorted(newest)
    ]
    state = {
        "format": FORMAT,
        "taken": {},
        "ignored": 0,
        "models": [model_learner.state() for model_learner in model_learners],
    }
    parents = {model: records[-1]["checksum"] for model, records in newest.items()}
    turned = IntervalResult(said[-1]["event_time_ms"], [], {}, state)
    [(_, stored)] = RecordWriter("", {}, parents=parents).records(turned)
    return stored.value


@dataclass(frozen=True, slots=True)
class StoredState:
    """A leader's state as it was written; empty ones where nothing is known."""

    fingerprint: str
    input_fingerprint: str
    event_time_ms: int | None = None
    positions: dict[int, int] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None
    generations: dict[int, list[str]] = field(default_factory=dict)

    def elsewhere(self) -> "StoredState":
        """The same, to go on with the settled queries of other workers from their beginning."""
        return replace(self, positions={}, state=self._state_with({}), generations={})

    def without(self, task: int, position: int) -> "StoredState":
        """The same, as if nothing were known yet of a task, of which one reads on from there."""
        taken = {} if self.state is None else dict(self.state["taken"])
        taken.pop(str(task), None)
        positions = {**self.positions, task: position}
        return replace(self, positions=positions, state=self._state_with(taken))

    def in_generation(self, task: int, name: str, position: int) -> "StoredState":
        """The same, with a task that begins with a new generation of `settled` there."""
        names = [*self.generations.get(task, ()), name][-MOST_GENERATIONS:]
        generations = {**self.generations, task: names}
        return replace(self.without(task, position), generations=generations)

    def _state_with(self, taken: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if self.state is None else {**self.state, "taken": taken}


class _StateRecord(msgspec.Struct):
    format: Literal[1]
    fingerprint: str
    input_fingerprint: str
    event_time_ms: TimeMs | None
    positions: dict[Count, Count]
    parents: dict[str, str]
    checksum: str
    generations: dict[Count, list[str]] = {}


_read_state: Final[Reader[dict[str, Any]]] = Reader(
    dict[str, Any], StateRefused, _NO_STATE, max_bytes=MAX_WEIGHTS_BYTES
)


def read_state(value: bytes) -> StoredState:
    """The state in a record.

    Raises:
        StateRefused: if it is none, or not as it was written.
    """
    document = _read_state(value)
    with refused_as(StateRefused, _NO_STATE):
        record = msgspec.convert(document, _StateRecord, str_keys=True)
        if document.pop("checksum") != _digest(document):
            raise StateRefused("its checksum is of another record")
        state = document["state"]
        if state is not None:
            check_state(state)
        return StoredState(
            fingerprint=record.fingerprint,
            input_fingerprint=record.input_fingerprint,
            event_time_ms=record.event_time_ms,
            positions=record.positions,
            parents=record.parents,
            state=state,
            generations=record.generations,
        )
