"""The usual traffic as records of foreign formats, and the mapping that reads it back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import ParseDict

from benchmarks.mapping import avro_of, in_avro, protobuf_of
from benchmarks.world import World
from evaluator.core.types.records import LOGS, Log
from evaluator.mapping.schemas import Answer

REGISTRY: Final = "http://127.0.0.1:9"
"""Address of a registry that gets no requests: its answers are recorded before."""
_FORMATS: Final = {
    "json": 'format = "json"',
    "avro": f'format = "avro"\nregistry = "{REGISTRY}"',
    "protobuf": 'format = "protobuf"\ndescriptor_set = "{log}.desc"\nmessage = "Event"',
}
_MEMBERS: Final = {
    "rankings": """
trace_id = ["request.session", "key:"]
node_id = "request.step"
timestamp_ms = "served_at"
model = "model.name"
variant = "model.arm"
query = "text"
segments = { locale = "client.locale" }
[rankings.rows]
each = "results"
candidate_id = "product"
score = "relevance"
features = { rel = "f.rel", hist = "f.hist", coop = "f.coop", struct = "f.struct" }
scorers = { bm25 = "bm25" }
""",
    "judgments": """
trace_id = ["session", "key:"]
node_id = "step"
timestamp_ms = "at"
judgment_id = "id"
source = "rater"
[judgments.rows]
each = "votes"
candidate_id = "product"
grade = "grade"
""",
}


class ForeignWorld:
    """A world as records of a format; `mapping` is the file that reads it."""

    def __init__(self, world: World, form: str, folder: Path) -> None:
        folder.mkdir()
        self.mapping = folder / "mapping.toml"
        self.answers: dict[str, Answer] = {}
        texts = [f"[{log}]\n{_FORMATS[form]}{_MEMBERS[log]}" for log in LOGS]
        self.mapping.write_text(
            "".join(text.replace("{log}", log) for log, text in zip(LOGS, texts, strict=True))
        )
        of = {"rankings": _impression, "judgments": _votes}
        logs = []
        for number, (log, messages) in enumerate(zip(LOGS, world, strict=True), 1):
            documents = [of[log](json.loads(each.value)) for each in messages]
            encode = self._encoder(form, log, number, documents[0])
            pairs = zip(messages, documents, strict=True)
            logs.append([message._replace(value=encode(each)) for message, each in pairs])
        self.world = World(*logs)

    def _encoder(self, form: str, log: Log, number: int, like: Any) -> Callable[[Any], bytes]:
        """The encoder of documents like this one; declares their schema."""
        if form == "avro":
            schema = avro_of("Event", like)
            self.answers[str(number)] = Answer("AVRO", json.dumps(schema))
            return lambda document: in_avro(schema, document, number)
        if form == "protobuf":
            kind, descriptors = protobuf_of(like)
            (self.mapping.parent / f"{log}.desc").write_bytes(descriptors)
            return lambda document: bytes(ParseDict(document, kind()).SerializeToString())
        return lambda document: json.dumps(document).encode()


def _impression(ranking: dict[str, Any]) -> dict[str, Any]:
    """A foreign ranking, with a text for each row and an agent, which no path names."""
    columns = (ranking[name] for name in ("candidate_ids", "scores", "features"))
    rows = [
        {
            "product": product,
            "relevance": relevance,
            "title": f"The {product} of the shop",
            "bm25": bm25,
            "f": dict(zip(("rel", "hist", "coop", "struct"), features, strict=True)),
        }
        for product, relevance, features, bm25 in zip(
            *columns, ranking["scorers"]["bm25"], strict=True
        )
    ]
    return {
        "request": {
            "session": ranking["trace_id"],
            "step": ranking["node_id"],
            "agent": "Mozilla/5.0 (X11; Linux)",
        },
        "served_at": ranking["timestamp_ms"],
        "model": {"name": ranking["model"], "arm": ranking["variant"]},
        "text": ranking["query"],
        "client": ranking["segments"],
        "results": rows,
    }


def _votes(judgment: dict[str, Any]) -> dict[str, Any]:
    """A foreign judgment."""
    return {
        "session": judgment["trace_id"],
        "step": judgment["node_id"],
        "at": judgment["timestamp_ms"],
        "id": judgment["judgment_id"],
        "rater": judgment["source"],
        "votes": [
            {"product": product, "grade": grade} for product, grade in judgment["grades"].items()
        ],
    }
