"""What the steward says, as records: weights after their parents, and the state to go on from."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from evaluator.core.releases import LIVE, Release
from evaluator.core.steward import Turned
from evaluator.wire.outputs import encode_document
from evaluator.wire.records import OutputRecord
from evaluator.wire.weights import WEIGHTS_FORMAT, with_checksum

StewardOutput = Literal["weights", "weights-log"]

STATE_KEY: Final = b'["steward"]'
"""Key of the state in the topic of the live weights, whose other keys are names of models."""
_FORMAT: Final = 1


class StateRefused(ValueError):
    """A record of the steward's state cannot be used; the message says why."""


def weights_key(model: str) -> bytes:
    """Key of the weights of a model."""
    return json.dumps(model, ensure_ascii=False).encode()


@dataclass(slots=True)
class Scribe:
    """Makes records of what a steward says, and remembers the last one of each model.

    Args:
        lineage: names the rules; a state says under which it was made.
        settings: what the rules are, as every record tells.
        parents: checksum of the last record of each model.
    """

    lineage: str
    settings: Mapping[str, Any]
    parents: dict[str, str] = field(default_factory=dict)

    def records(self, turned: Turned) -> list[tuple[StewardOutput, OutputRecord]]:
        """The records of the end of a turn, in order: the state comes last."""
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
            "event_time_ms": turned.now_ms,
            "parents": dict(sorted(self.parents.items())),
            "state": turned.state,
        }
        whole = encode_document({**state, "checksum": _digest(state)})
        return [*said, ("weights", OutputRecord(STATE_KEY, whole))]

    def _document(self, release: Release, now_ms: int) -> dict[str, Any]:
        names = list(release.feature_names)
        more = {"reason": release.reason} if release.reason else {}
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


@dataclass(frozen=True, slots=True)
class StoredState:
    """A steward's state as it was written."""

    lineage: str
    parents: dict[str, str]
    state: Mapping[str, Any]


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
        return StoredState(record["lineage"], dict(record["parents"]), record["state"])
    except StateRefused:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateRefused(f"no state of a steward: {error!r}") from None
