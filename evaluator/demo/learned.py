"""What the demo says of learning; every figure stands in a record that the steward published."""

import json
from collections.abc import Iterable
from typing import Any

from evaluator.core.steward import StewardView
from evaluator.wire.records import OutputRecord

WORDS = "Learned from the judged queries, and tried on later ones:"


def learned_words(view: StewardView, said: Iterable[OutputRecord]) -> str:
    """A few lines for each model.

    Args:
        view: of the steward, after its last turn.
        said: the records of weights, in order.
    """
    documents = [json.loads(record.value) for record in said]
    lines = [WORDS]
    for pupil in view.pupils:
        mine = [one for one in documents if one["model"] == pupil.model]
        n_tried = sum(one["status"] == "candidate" for one in mine)
        promoted = [one for one in mine if one["status"] == "promoted"]
        head = f"- {pupil.model}: {pupil.updates:,} updates; of {n_tried} weights tried, "
        lines += [head + (_promotions(promoted) if promoted else "none is promoted so far.")]
        if promoted:
            lines.append(f"  In force: {_weights(promoted[-1])}.")
    return "\n".join(lines)


def _promotions(promoted: list[dict[str, Any]]) -> str:
    first, measure = promoted[0]["evidence"], promoted[0]["settings"]["gate"]["measure"]
    return (
        f"{len(promoted)} promoted, the first after {first['traces']:,} traces:\n"
        f"  {measure} {first['mean_difference']:+.4f} against what was served."
    )


def _weights(document: dict[str, Any]) -> str:
    pairs = zip(document["feature_names"], document["weights"], strict=True)
    return ", ".join(f"{name} {weight:.2f}" for name, weight in pairs)
