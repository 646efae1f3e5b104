"""What settled queries offer to learn from, as members of their records; and marks."""

from dataclasses import asdict
from typing import Final

import msgspec

from evaluator.core.types.candidates import Described
from evaluator.core.types.records import OfferedColumns, WatermarkRecord
from evaluator.wire.messages.models import MAX_FEATURES, MAX_NAME_BYTES
from evaluator.wire.outputs.texts import Texts
from evaluator.wire.records import OutputRecord

MAX_OFFERED_BYTES: Final = 512 << 10
"""Of what a query offers; a record is never larger than a topic takes by default."""

MAX_NAMES_BYTES: Final = MAX_FEATURES * (MAX_NAME_BYTES + 4)
"""Of the names of features in JSON; only escapes need more. Weights and state have copies."""

_encode: Final = msgspec.json.Encoder().encode


def offered_members(offered: OfferedColumns) -> Texts:
    """The further members of each record, from a comma on."""
    columns = (
        offered.names,
        offered.candidate_ids,
        offered.features,
        offered.propensities,
        offered.described,
        offered.sources,
    )
    texts = []
    for row in zip(*columns, strict=True):
        names, candidate_ids, features, propensities, described, sources = row
        members: dict[str, object] = {"sources": sources}
        if names is not None:
            members |= {
                "candidate_ids": candidate_ids,
                "feature_names": names,
                "features": features.tolist(),
            }
        elif described is not None:
            members |= _description(described)
        if propensities is not None:
            members["propensities"] = list(propensities)
        text = _encode(members)
        if len(text) > MAX_OFFERED_BYTES or len(_encode(names)) > MAX_NAMES_BYTES:
            text = _encode({"sources": sources, "too_large": len(text)})
        texts.append(b"," + text[1:-1])
    return texts


def _description(described: Described) -> dict[str, object]:
    members: dict[str, object] = {
        "candidate_ids": list(described.candidate_ids),
        "candidate_kind": described.kind,
        "query": described.query,
    }
    if described.descriptions:
        members["descriptions"] = list(described.descriptions)
    if described.kind == "graph":
        members["graphs"] = list(map(asdict, described.graphs))
    return members


def encode_watermark(mark: WatermarkRecord | None, *, task: int) -> list[OutputRecord]:
    """The record of a mark, if there is one; it has no key."""
    if mark is None:
        return []
    said = {"task": task, "watermark_ms": mark.watermark_ms, "n": mark.n}
    return [OutputRecord(None, _encode(said))]
