"""JSON Schemas and an AsyncAPI document, generated from the models.

Rules beyond JSON Schema (parallel lists, ids counted in bytes, strict JSON) are in docs/messages.md
and in the models.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from evaluator.wire.messages.models import Judgment, Ranking
from evaluator.wire.outputs.output_models import (
    DeadLetterHeaders,
    Evaluation,
    Settled,
    WatermarkRecord,
    Window,
)
from evaluator.wire.weights.weights_record import Weights

Schema = dict[str, Any]

_MODELS: Final[Mapping[str, type[BaseModel]]] = {
    "ranking": Ranking,
    "judgment": Judgment,
    "evaluation": Evaluation,
    "settled": Settled,
    "watermark": WatermarkRecord,
    "window": Window,
    "dead-letter-headers": DeadLetterHeaders,
    "weights": Weights,
}
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_KEYS: Final[Mapping[str, Schema]] = {
    "trace": {"type": "string", "description": "trace_id"},
    "query": {
        "type": "array",
        "description": "[trace_id, node_id]",
        "items": {"type": "string"},
        "minItems": 2,
        "maxItems": 2,
    },
    "window": {
        "type": "array",
        "description": "[task, model, variant, ranker, measure, start_ms]",
        "minItems": 6,
        "maxItems": 6,
    },
}
_CHANNELS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    # topic: (action of the evaluator, {message: key})
    "rankings": ("receive", {"ranking": "trace"}),
    "judgments": ("receive", {"judgment": "trace"}),
    "evaluations": ("send", {"evaluation": "query"}),
    "settled": ("send", {"settled": "query", "watermark": ""}),
    "windows": ("send", {"window": "window"}),
    "dead-letters": ("send", {"dead-letter": ""}),
}


def schemas() -> dict[str, Schema]:
    """Every generated document by name: one JSON Schema per message, and `asyncapi`."""
    documents = {
        name: {"$schema": _DIALECT, **model.model_json_schema(mode="validation")}
        for name, model in _MODELS.items()
    }
    return {**documents, "asyncapi": _asyncapi()}


def _asyncapi() -> Schema:
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "evaluator",
            "version": "1.0.0",
            "description": "Topics of the evaluator with their default names. All values are JSON.",
        },
        "defaultContentType": "application/json",
        "channels": {
            topic: {
                "address": topic,
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
            }
            for topic, (_, messages) in _CHANNELS.items()
        },
        "operations": {
            f"{action}-{topic}": {
                "action": action,
                "channel": {"$ref": f"#/channels/{topic}"},
                "messages": [{"$ref": f"#/channels/{topic}/messages/{name}"} for name in messages],
            }
            for topic, (action, messages) in _CHANNELS.items()
        },
        "components": {
            "messages": {
                name: _message(name, key)
                for _, messages in _CHANNELS.values()
                for name, key in messages.items()
            }
        },
    }


def _message(name: str, key: str) -> Schema:
    if name == "dead-letter":
        return {
            "name": name,
            "summary": "The original key and value of a record without effect.",
            "contentType": "application/octet-stream",
            "headers": {"$ref": "./dead-letter-headers.json"},
            "payload": {"description": "The original bytes."},
        }
    summary = (_MODELS[name].__doc__ or "").partition("\n")[0]
    bindings = {"bindings": {"kafka": {"key": _KEYS[key]}}} if key else {}
    return {"name": name, "summary": summary, "payload": {"$ref": f"./{name}.json"}, **bindings}
