"""The demo's report on learning: figures of published records, in plain words."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from evaluator.core.online.views import LeaderView
from evaluator.demo import Learning
from evaluator.demo.report import learned_text
from evaluator.wire.records import OutputRecord
from tests.adapters.synthetic import learned
from tests.demo.test_run import Reader, demo


def weights_record(status, model="ranker", **members):
    return OutputRecord(b"key", json.dumps({"status": status, "model": model, **members}).encode())


PROMOTED = weights_record(
    "promoted",
    settings={"gate": {"measure": "ndcg@10"}},
    evidence={"traces": 1_234, "mean_difference": 0.02345},
    feature_names=["phi_a", "phi_b"],
    weights=[0.5, -2.0],
)


def test_a_promotion_is_reported_with_its_evidence_and_weights():
    records = [
        weights_record("challenger"),
        weights_record("rejected"),
        weights_record("challenger"),
        PROMOTED,
        weights_record("challenger"),
    ]
    lines = learned_text(learned(), records).splitlines()
    assert lines[1:] == [
        "- ranker: 250 updates; of 3 weights tested, 1 promoted, the first after 1,234 traces:",
        "  ndcg@10 +0.0234 against what was served.",
        "  Live: phi_a 0.50, phi_b -2.00.",
        "- other: 0 updates; of 0 weights tested, none is promoted so far.",
    ]


async def test_the_report_waits_for_the_leader():
    reader, rest = Reader(per_turn=100), asyncio.create_task(asyncio.Event().wait())
    worker = asyncio.create_task(reader.work())
    views = iter([LeaderView(counts={("records", "query"): 1}), LeaderView()])
    seen = []

    def view():
        seen.append(
            next(views, learned(counts={("records", "watermark"): 2, ("records", "query"): 1}))
        )
        return seen[-1]

    settled = [OutputRecord(b"k", b'{"task": 0, "watermark_ms": 1, "n": 0}')] * 3
    learning = Learning(rest, view, lambda: [PROMOTED])
    (text,) = await demo(reader, worker, 300, learning=learning, produced=lambda output: settled)
    for task in (worker, rest):
        task.cancel()
    assert len(seen) == 2 + 2  # two that had not read all yet, the one that had, and its figures
    assert "1 promoted" in text


async def test_a_leader_that_fails_ends_the_demo_with_its_error():
    async def fail() -> None:
        raise ValueError("the desk burned down")

    reader = Reader(per_turn=100)
    worker = asyncio.create_task(reader.work())
    learning = Learning(asyncio.create_task(fail()), LeaderView, list)
    with pytest.raises(ValueError, match="burned down"):
        await demo(reader, worker, 300, learning=learning, produced=lambda _: [PROMOTED])
    worker.cancel()


def test_without_a_model_the_report_has_one_line():
    assert len(learned_text(replace(learned(), models=()), []).splitlines()) == 1
