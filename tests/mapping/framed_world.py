"""A world of framed records and its canonical twin, for a fake registry and a real one."""

import json
import random

NOW_MS = 1_769_846_400_000
N_QUERIES = 200
MAPPING = """
[rankings]
topic = "{prefix}serps"
format = "{format}"
registry = "{url}"
trace_id = "session"
node_id = "number"
timestamp_ms = "at"
query = "text"
[rankings.rows]
each = "hits"
candidate_id = "sku"
score = "score"
features = {{ price = "price" }}
[judgments]
topic = "{prefix}clicks"
format = "{format}"
registry = "{url}"
trace_id = "session"
node_id = "number"
timestamp_ms = "at"
judgment_id = "id"
source = {{ const = "click" }}
candidate_id = "sku"
grade = {{ path = "action", table = {{ click = 1, buy = 3 }} }}
"""


def field(name, kind):
    return {"name": name, "type": kind}


_HEAD = [field("session", "string"), field("number", "int"), field("at", "long")]
_HIT = {
    "type": "record",
    "name": "Hit",
    "fields": [field("sku", "long"), field("score", "double"), field("price", "double")],
}
SERP = {
    "type": "record",
    "name": "Serp",
    "namespace": "shop",
    "fields": [
        *_HEAD,
        field("text", ["null", "string"]),
        field("hits", {"type": "array", "items": _HIT}),
    ],
}
CLICK = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [*_HEAD, field("id", "string"), field("sku", "long"), field("action", "string")],
}


def world(seed=3):
    """Rows of (partition, foreign serp or click, canonical message or None if left out)."""
    chance = random.Random(seed)
    serps, clicks = [], []
    for n in range(N_QUERIES):
        at, session = NOW_MS + 100 * n, f"s-{n // 2}"
        head = {"session": session, "number": n, "at": at}
        hits = [
            {"sku": sku, "score": chance.random(), "price": round(chance.random() * 50, 2)}
            for sku in chance.sample(range(1, 60), 5)
        ]
        text = chance.choice([None, f"text {n}"])
        canonical = {
            "schema_version": 1, "trace_id": session, "node_id": str(n), "timestamp_ms": at,
            **({} if text is None else {"query": text}),
            "candidate_ids": [str(hit["sku"]) for hit in hits],
            "scores": [hit["score"] for hit in hits],
            "feature_names": ["price"], "features": [[hit["price"]] for hit in hits],
        }  # fmt: skip
        partition = (n // 2) % 2
        serps.append((partition, {**head, "text": text, "hits": hits}, canonical))
        for k in range(chance.randrange(3)):
            sku, action = chance.choice(hits)["sku"], chance.choice(["click", "buy", "view"])
            at_click = at + 50 + k
            click = {**head, "at": at_click, "id": f"{n}-{k}", "sku": sku, "action": action}
            grade = {"click": 1.0, "buy": 3.0}.get(action)
            canonical = None if grade is None else {
                "schema_version": 1, "trace_id": session, "node_id": str(n),
                "timestamp_ms": at_click, "source": "click", "judgment_id": f"{n}-{k}",
                "grades": {str(sku): grade},
            }  # fmt: skip
            clicks.append((partition, click, canonical))
    return serps, clicks


def without_places(directory):
    """Totals without records left out, settled queries without offsets, evaluations, windows."""
    totals = json.loads((directory / "totals.json").read_text())
    for ledger in totals["ledger"].values():
        ledger["read"] -= ledger.pop("left_out")
    settled = [json.loads(line) for line in (directory / "settled.ndjson").read_text().splitlines()]
    for row in settled:
        row.pop("offset", None)
    others = [(directory / f"{name}.ndjson").read_text() for name in ("evaluations", "windows")]
    return totals, settled, *others
