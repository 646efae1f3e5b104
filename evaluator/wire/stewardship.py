"""What the steward says, as records: weights after their parents, and the state to go on from."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from evaluator.core.features import History
from evaluator.core.pupil import Pupil
from evaluator.core.releases import LIVE, Release, Word
from evaluator.core.steward import FORMAT, MOST_MODELS, Turned
from evaluator.wire.outputs import encode_document
from evaluator.wire.records import OutputRecord, StewardOutput
from evaluator.wire.weights import WEIGHTS_FORMAT, with_checksum

STATE_KEY: Final = b'["steward"]'
"""Key of the state in the topic of the live weights.

The other keys there are the name of a model, for its live weights, and `["word", model]`, for what
an operator has asked for last.
"""
_WORD: Final = "word"
_FORMAT: Final = 1


class StateRefused(ValueError):
    """A record of the steward's state cannot be used; the message says why."""


def weights_key(model: str) -> bytes:
    """Key of the weights of a model."""
    return json.dumps(model, ensure_ascii=False).encode()


def model_of(key: bytes) -> str | None:
    """The model whose weights a key of the topic stands for; None for another key."""
    name = _document_of(key)
    return name if isinstance(name, str) else None


def word_key(model: str) -> bytes:
    """Key of what an operator has asked for."""
    return json.dumps([_WORD, model], ensure_ascii=False).encode()


def word_model_of(key: bytes) -> str | None:
    """The model that a key of an operator's word names; None for another key."""
    name = _document_of(key)
    if isinstance(name, list) and len(name) == 2 and name[0] == _WORD:
        return name[1] if isinstance(name[1], str) else None
    return None


def _document_of(key: bytes) -> Any:
    try:
        return json.loads(key)
    except ValueError:
        return None


class _WordRecord(msgspec.Struct):
    format: Literal[1]
    number: int
    action: Literal["freeze", "roll_back"]
    reason: str
    weights: tuple[float, ...]
    feature_names: tuple[str, ...]
    reliabilities: dict[str, Any] | None = None


def word_record(word: Word) -> bytes:
    """A word as a record."""
    table = None if word.history is None else word.history.state()
    return msgspec.json.encode(_WordRecord(_FORMAT, *word[:-1], table))


def read_word(value: bytes) -> Word:
    """What an operator has asked for.

    Raises:
        ValueError: if the record is no such thing.
    """
    try:
        found = msgspec.json.decode(value, type=_WordRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no word of an operator: {error}") from None
    if len(found.weights) != len(found.feature_names):
        raise ValueError("no word of an operator: each weight needs the name of its feature")
    try:
        table = None if found.reliabilities is None else History.from_state(found.reliabilities)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no word of an operator: {error!r}") from None
    return Word(found.number, found.action, found.reason, found.weights, found.feature_names, table)


@dataclass(slots=True)
class Scribe:
    """Makes records of what a steward says, and remembers the last one of each model.

    Args:
        lineage: names the rules; a state says under which it was made.
        input_lineage: of the workers whose settled queries are read; empty in a replay.
        settings: what the rules are, as every record tells.
        parents: checksum of the last record of each model.
    """

    lineage: str
    settings: Mapping[str, Any]
    input_lineage: str = ""
    parents: dict[str, str] = field(default_factory=dict)

    def records(
        self, turned: Turned, positions: Mapping[int, int] | None = None
    ) -> list[tuple[StewardOutput, OutputRecord]]:
        """The records of the end of a turn, in order: the state comes last.

        *positions* are the offsets of `settled`, by task, where one goes on from that state.
        """
        said: list[tuple[StewardOutput, OutputRecord]] = []
        for release in turned.releases:
            document = self._document(release, turned.now_ms)
            record = OutputRecord(weights_key(release.model), encode_document(document))
            self.parents[release.model] = document["checksum"]
            said.append(("weights-log", record))
            if release.status in LIVE:
                said.append(("weights", record))
        state = {
            "format": _FORMAT,
            "lineage": self.lineage,
            "input_lineage": self.input_lineage,
            "event_time_ms": turned.now_ms,
            "positions": {str(task): at for task, at in sorted((positions or {}).items())},
            "parents": dict(sorted(self.parents.items())),
            "state": turned.state,
        }
        whole = encode_document({**state, "checksum": _digest(state)})
        return [*said, ("weights", OutputRecord(STATE_KEY, whole))]

    def _document(self, release: Release, now_ms: int) -> dict[str, Any]:
        names = list(release.feature_names)
        more: dict[str, Any] = {"reason": release.reason} if release.reason else {}
        if release.history is not None:
            more["reliabilities"] = release.history.state()
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


def forgotten(said: Sequence[Mapping[str, Any]], heard: Mapping[str, int]) -> bytes:
    """The state of a steward that has forgotten everything but where versions and epochs go on.

    So no version of a model is ever said twice, and no parent is missing.

    Args:
        said: the log of weights, in order; not empty. Of its models the last ones count, as many
            as are learned for.
        heard: number of the last word of each model, which is not followed again.
    """
    of_model: dict[str, list[Mapping[str, Any]]] = {}
    for record in said:
        of_model[record["model"]] = [*of_model.pop(record["model"], []), record]  # newest last
    newest = dict(list(of_model.items())[-MOST_MODELS:])
    pupils = [
        Pupil(
            model,
            epoch=max(record["epoch"] for record in newest[model]),
            version=max(record["version"] for record in newest[model]),
            heard=heard.get(model, 0),
        )
        for model in sorted(newest)
    ]
    state = {
        "format": FORMAT,
        "taken": {},
        "left_alone": 0,
        "models": [pupil.state() for pupil in pupils],
    }
    parents = {model: records[-1]["checksum"] for model, records in newest.items()}
    turned = Turned(said[-1]["event_time_ms"], [], {}, state)
    [(_, stored)] = Scribe("", {}, parents=parents).records(turned)
    return stored.value


@dataclass(frozen=True, slots=True)
class StoredState:
    """A steward's state as it was written; empty ones where nothing is known."""

    lineage: str
    input_lineage: str
    event_time_ms: int | None = None
    positions: dict[int, int] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None

    def elsewhere(self) -> "StoredState":
        """The same, to go on with the settled queries of other workers from their beginning."""
        return replace(self, positions={}, state=self._state_with({}))

    def without(self, task: int, position: int) -> "StoredState":
        """The same, as if nothing were known yet of a task, of which one reads on from there."""
        taken = {} if self.state is None else dict(self.state["taken"])
        taken.pop(str(task), None)
        positions = {**self.positions, task: position}
        return replace(self, positions=positions, state=self._state_with(taken))

    def _state_with(self, taken: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if self.state is None else {**self.state, "taken": taken}


def read_state(value: bytes) -> StoredState:
    """The state in a record.

    Raises:
        StateRefused: if it is none, or not as it was written.
    """
    try:
        record = json.loads(value)
        checksum = record.pop("checksum")
        if record["format"] != _FORMAT or checksum != _digest(record):
            raise StateRefused("its format or its checksum is of another record")
        return StoredState(
            lineage=record["lineage"],
            input_lineage=record["input_lineage"],
            event_time_ms=record["event_time_ms"],
            positions={int(task): at for task, at in record["positions"].items()},
            parents=dict(record["parents"]),
            state=record["state"],
        )
    except StateRefused:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateRefused(f"no state of a steward: {error!r}") from None
