"""Records of the leader: weights records, operator commands, and the leader state."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from evaluator.core.features import SuccessTable
from evaluator.core.learning.transforms import documents, loaded
from evaluator.core.online.events import LIVE, MOST_MODELS, Command, Release
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.online_learner import FORMAT, IntervalResult
from evaluator.wire.canonical import checksum_of, encode_document
from evaluator.wire.reading import Count, HistoryTable, Reader, checked_sums, refused_as
from evaluator.wire.records import LeaderOutput, OutputRecord
from evaluator.wire.weights.checksum import MAX_WEIGHTS_BYTES, WeightsRefused
from evaluator.wire.weights.learner_state import TimeMs, TransformRow, check_state
from evaluator.wire.weights.weights_record import (
    WEIGHTS_FORMAT,
    read_record,
    read_weights,
    with_checksum,
)

STATE_KEY: Final = b'["leader"]'
"""Key of the leader state in the topic `weights`.

The other keys are a model's name, for its live weights, and `["command", model]`, for its last
operator command.
"""
MAX_KEY_BYTES: Final = 64 << 10
MAX_GENERATIONS: Final = 16
"""Generations of a task that a state contains."""
_COMMAND: Final = "command"
_COMMAND_FORMAT: Final = 1
_STATE_FORMAT: Final = 2
_NOT_A_COMMAND: Final = "not an operator command"
_NOT_A_STATE: Final = "not a leader state"


class StateRefused(ValueError):
    """A leader state cannot be used; the message has the reason."""


class CommandRefused(ValueError):
    """An operator command cannot be used; the message has the reason."""


def weights_key(model: str) -> bytes:
    """Key of the weights of a model."""
    return json.dumps(model, ensure_ascii=False).encode()


def command_key(model: str) -> bytes:
    """Key of the operator commands of a model."""
    return json.dumps([_COMMAND, model], ensure_ascii=False).encode()


def model_of(key: bytes) -> str | None:
    """The model of a key of weights; None for another key."""
    name = _read_key(key)
    return name if isinstance(name, str) else None


def command_model_of(key: bytes) -> str | None:
    """The model of a key of operator commands; None for another key."""
    name = _read_key(key)
    return name[1] if isinstance(name, tuple) and name[0] == _COMMAND else None


_Key = str | tuple[str, str]
_read: Final[Reader[_Key]] = Reader(_Key, ValueError, max_bytes=MAX_KEY_BYTES)


def _read_key(key: bytes) -> _Key | None:
    with suppress(ValueError):
        return _read(key)
    return None


class _CommandRecord(Struct):
    format: Literal[1]
    number: Count
    action: Literal["freeze", "roll_back"]
    reason: str
    weights: tuple[float, ...]
    feature_names: tuple[str, ...]
    success_rates: HistoryTable | None = None
    transforms: dict[str, TransformRow] | msgspec.UnsetType = msgspec.UNSET


_read_command: Final[Reader[_CommandRecord]] = Reader(
    _CommandRecord, CommandRefused, _NOT_A_COMMAND, max_bytes=MAX_WEIGHTS_BYTES
)


def command_record(command: Command) -> bytes:
    """The value of a command's record."""
    history = command.history
    table = None if history is None else msgspec.convert(history.state(), HistoryTable)
    record = _CommandRecord(_COMMAND_FORMAT, *command[:5], table)
    if command.transforms:
        of_features = documents(command.transforms)
        record.transforms = msgspec.convert(of_features, dict[str, TransformRow])
    return msgspec.json.encode(record)


def read_command(value: bytes) -> Command:
    """The operator command in a record. Raises CommandRefused."""
    found = _read_command(value)
    if len(found.weights) != len(found.feature_names):
        raise CommandRefused(f"{_NOT_A_COMMAND}: each weight needs the name of its feature")
    if found.action == "roll_back" and not found.weights:
        raise CommandRefused(f"{_NOT_A_COMMAND}: a roll-back needs weights")
    table = found.success_rates
    with refused_as(CommandRefused, _NOT_A_COMMAND):
        history = None if table is None else SuccessTable.load(msgspec.to_builtins(table))
        transforms = loaded(msgspec.to_builtins(found.transforms or {}))
    numbers = found.weights, found.feature_names
    return Command(found.number, found.action, found.reason, *numbers, history, transforms)


class RecordWriter(Struct):
    """Creates the records of a leader, each weights record with the checksum of its parent.

    Args:
        fingerprint: of the rules; a state is only continued under the same rules.
        settings: the rules, as in every record.
        input_fingerprint: of the workers whose settled queries are read; empty in a replay.
        parents: checksum of the last record of each model.
        generations: generations of `settled` that were read, by task; the present one is last.
    """

    fingerprint: str
    settings: Mapping[str, Any]
    input_fingerprint: str = ""
    parents: dict[str, str] = field(default_factory=dict)
    generations: dict[int, list[str]] = field(default_factory=dict)

    def records(self, interval: IntervalResult) -> list[tuple[LeaderOutput, OutputRecord]]:
        """The records of the end of an interval, in order; the state is last."""
        records: list[tuple[LeaderOutput, OutputRecord]] = []
        for release in interval.releases:
            document = self._document(release, interval.now_ms)
            record = OutputRecord(weights_key(release.model), encode_document(document))
            self.parents[release.model] = document["checksum"]
            records.append(("weights-log", record))
            if release.status in LIVE:
                records.append(("weights", record))
        state = {
            "format": _STATE_FORMAT,
            "fingerprint": self.fingerprint,
            "input_fingerprint": self.input_fingerprint,
            "event_time_ms": interval.now_ms,
            "positions": {str(task): at for task, at in sorted(interval.positions.items())},
            "parents": dict(sorted(self.parents.items())),
            "state": interval.state,
        }
        if self.generations:
            by_task = sorted(self.generations.items())
            state["generations"] = {str(task): names for task, names in by_task}
        value = encode_document({**state, "checksum": checksum_of(state)})
        return [*records, ("weights", OutputRecord(STATE_KEY, value))]

    def _document(self, release: Release, now_ms: int) -> dict[str, Any]:
        names = list(release.feature_names)
        more: dict[str, Any] = {"reason": release.reason} if release.reason else {}
        if release.history is not None:
            more["success_rates"] = release.history.state()
        if release.transforms:
            more["transforms"] = documents(release.transforms)
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


class _Evidence(Struct):
    traces: Count
    mean_difference: float | None = None


class _LogRecord(Struct):
    """Members that commands need of a record of the weights log, beyond `Weights`."""

    model: str
    epoch: Count
    version: Count
    of_version: Count
    status: str
    event_time_ms: TimeMs
    checksum: str
    evidence: _Evidence | None = None
    reason: str | None = None


def read_log_record(value: bytes) -> dict[str, Any]:
    """A record of the weights log. Raises WeightsRefused."""
    read_weights(value)
    record: dict[str, Any] = read_record(value)
    with refused_as(WeightsRefused, "not a record of the weights log"):
        checked_sums([msgspec.convert(record, _LogRecord).event_time_ms])
    return record


def emptied_state(published: Sequence[Mapping[str, Any]], last_command: Mapping[str, int]) -> bytes:
    """A leader state that keeps only the next versions and epochs.

    So versions of a model stay unique, and no parent is missing.

    Args:
        published: the weights log, in order; not empty. Of more models than the limit of learned
            models, the last ones.
        last_command: number of the last command of each model, which is not executed again.
    """
    of_model: dict[str, list[Mapping[str, Any]]] = {}
    for record in published:
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
    interval = IntervalResult(published[-1]["event_time_ms"], [], {}, state)
    [(_, stored)] = RecordWriter("", {}, parents=parents).records(interval)
    return stored.value


class StoredState(Struct, frozen=True):
    """A leader state as it was written; without a state, the one to begin from."""

    fingerprint: str
    input_fingerprint: str
    event_time_ms: TimeMs | None = None
    positions: dict[Count, Count] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    state: Any = None
    generations: dict[Count, list[str]] = field(default_factory=dict)

    def for_other_workers(self) -> "StoredState":
        """The same, to continue with other workers' settled queries from their beginning."""
        return self._with({}, positions={}, generations={})

    def without(self, task: int, position: int) -> "StoredState":
        """The same, with a task that is read from the beginning, at *position*."""
        taken = {} if self.state is None else dict(self.state["taken"])
        taken.pop(str(task), None)
        return self._with(taken, positions={**self.positions, task: position})

    def in_generation(self, task: int, name: str, position: int) -> "StoredState":
        """The same, with a new generation of `settled` of a task, which begins at *position*."""
        names = [*self.generations.get(task, ()), name][-MAX_GENERATIONS:]
        generations = {**self.generations, task: names}
        return replace(self.without(task, position), generations=generations)

    def _with(self, taken: Mapping[str, Any], **changes: Any) -> "StoredState":
        state = None if self.state is None else {**self.state, "taken": taken}
        return replace(self, state=state, **changes)


_REQUIRED: Final = set(StoredState.__struct_fields__) - {"generations"} | {"checksum"}
_read_state: Final[Reader[dict[str, Any]]] = Reader(
    dict[str, Any], StateRefused, _NOT_A_STATE, max_bytes=MAX_WEIGHTS_BYTES
)


def read_state(value: bytes) -> StoredState:
    """The leader state in a record. Raises StateRefused."""
    document = _read_state(value)
    with refused_as(StateRefused, _NOT_A_STATE):
        if document.get("format") != _STATE_FORMAT:
            raise StateRefused(f"its format is not {_STATE_FORMAT}")
        if missing := sorted(_REQUIRED - document.keys()):
            raise StateRefused(f"it has no {missing[0]}")
        if document["checksum"] != checksum_of(document):
            raise StateRefused("its checksum is of another record")
        stored = msgspec.convert(document, StoredState, str_keys=True)
        if stored.state is not None:
            check_state(stored.state)
        return stored
