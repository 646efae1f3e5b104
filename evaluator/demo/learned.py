"""What the demo says of learning; every figure stands in a record that the leader published."""

import json
from collections.abc import Iterable
from typing import Any

from evaluator.core.online.online_learner import LeaderView
from evaluator.wire.records import OutputRecord

WORDS = "Learned from the judged queries, and tried on later ones:"


def learned_words(view: LeaderView, said: Iterable[OutputRecord]) -> str:
    """A few lines for each model.

    Args:
        view: of the leader, after its last interval.
        said: the records of weights, in order.
    """
    documents = [json.loads(record.value) for record in said]
    lines = [WORDS]
    for model_view in view.models:
        mine = [one for one in documents if one["model"] == model_view.model]
        n_tried = sum(one["status"] == "challenger" for one in mine)
        promoted = [one for one in mine if one["status"] == "promoted"]
        head = f"- {model_view.model}: {model_view.updates:,} updates; of {n_tried} weights tried, "
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
