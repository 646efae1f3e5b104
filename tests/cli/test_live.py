"""`evaluator run`: its refusals before it connects to a broker, and its worker."""

import asyncio
import json
import threading

import pytest
from msgspec.structs import replace

from evaluator.adapters.memory import MemorySink, MemorySource, MemoryStateDirectory
from evaluator.adapters.prometheus import exposition
from evaluator.cli import live, main, views
from evaluator.cli.wiring import fingerprint_of, histograms_of, meaning_of
from evaluator.config import Settings
from evaluator.core.engine.engine import SEMANTICS
from evaluator.core.online.views import LeaderView
from tests.faulty_broker import FaultyBroker
from tests.replay.running import judgment, ranking
from tests.waiting import finished


def test_run_refuses_more_measures_than_the_series_limit_allows(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EVALUATOR_STATE_DIR", str(tmp_path / "state"))  # not that of another test
    measures = ",".join(f"hit@{k}" for k in range(1, 168))
    code = main(["run", "--source=kafka://localhost:1", f"--set=measures={measures}"])
    assert code == 2
    assert "at most 166" in capsys.readouterr().err


def test_scrapes_are_written_one_at_a_time_and_outside_the_loop(monkeypatch):
    threads, readers = [], []

    def written(registry, accept):
        threads.append(threading.current_thread())
        return exposition(registry, accept)

    class Leader:
        @property
        def view(self):
            readers.append(threading.current_thread())
            return LeaderView()

        def readiness(self):
            return []

    async def scrape():
        process = views.ProcessViews(None, Settings(), leader=Leader())
        return await asyncio.gather(*(process.metrics("") for _ in range(5)))

    monkeypatch.setattr(views, "exposition", written)
    texts = asyncio.run(scrape())
    assert all(b"\nevaluator_ready 1.0\n" in body for body, _ in texts)
    assert set(readers) == {threading.main_thread()}
    assert len(threads) == 5
    [thread] = set(threads)
    assert thread is not threading.main_thread()


# The fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"emit_query": False},
        {"retention_ms": 86_400_001},
        {"maturity_ms": 1},
        {"early_ms": 1},
        {"remember_ms": 1},
        {"out_of_orderness_ms": 1},
        {"max_future_skew_ms": 1},
        {"window_ms": 1},
        {"measures": ("mrr",)},
        {"empty": "skip"},
        {"segments": ("locale",)},
        {"learning": "propose"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_fingerprint_names_what_outputs_depend_on(change):
    changed = replace(Settings(), **change)
    assert fingerprint_of(changed) != fingerprint_of(Settings())
    assert (meaning_of(changed) != meaning_of(Settings())) == (change.keys() <= OF_VALUES)


OF_VALUES = {
    *("retention_ms", "maturity_ms", "early_ms", "remember_ms", "out_of_orderness_ms"),
    *("max_future_skew_ms", "window_ms", "measures", "empty", "segments"),
}


def test_the_meaning_of_the_defaults_changes_with_the_semantics_only():
    """Defaults are not part of it: `tests/config` pins them. A changed one needs a new number."""
    assert (SEMANTICS, meaning_of(Settings())) == (3, "d5edc5e15af3d58c")


@pytest.mark.parametrize(
    "change",
    [
        {"max_poll_records": 1},
        {"max_lead_ms": 1},
        {"idle_ms": 1},
        {"heartbeats": False},
        {"group_id": "other"},
        {"topic_prefix": "other-"},
        {"output_prefix": "other-"},
        {"http_port": 1},
        {"log_level": "debug"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_fingerprint_excludes_what_outputs_do_not_depend_on(change):
    assert fingerprint_of(replace(Settings(), **change)) == fingerprint_of(Settings())


def test_histograms_need_no_measure_of_the_gate():
    measures = ("top1", "hit@1", "mrr", "ndcg@10")
    settings = Settings(learning="propose", measures=measures, histogram_measures=measures[:3])
    assert histograms_of(settings) == ("top1", "mrr")


def test_the_resources_of_a_worker_are_shown_and_a_leader_needs_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "memory_limit_bytes", lambda: 1_024)
    settings = Settings(state_dir=str(tmp_path), max_store_bytes=4_096)
    states = MemoryStateDirectory()
    worker = live.new_worker(
        MemorySource(FaultyBroker()), MemorySink(FaultyBroker()), states, settings
    )
    text = asyncio.run(views.ProcessViews(worker, settings).metrics(""))[0].decode()
    assert "\nevaluator_memory_limit_bytes 1024.0\n" in text
    assert "\nevaluator_state_limit_bytes 4096.0\n" in text
    assert "\nevaluator_disk_free_bytes " in text
    alone = asyncio.run(views.ProcessViews(None, settings).metrics(""))[0].decode()
    assert "\nevaluator_memory_limit_bytes 1024.0\n" in alone
    assert "\nevaluator_state_limit_bytes " not in alone
    assert "\nevaluator_disk_free_bytes " not in alone


def test_evaluations_are_emitted_again_after_emit_query_is_turned_off():
    broker = FaultyBroker()
    broker.append("rankings", 0, b"t", ranking("t", 1_000, query="a flight"), 1_000)
    broker.append("judgments", 0, b"t", judgment("t", 1_500), 1_500)

    def emitted(emit_query):
        """Evaluations of a complete run of the worker of `evaluator run`."""
        before = len(broker.output("evaluations", 0))
        settings = Settings(emit_query=emit_query, heartbeats=False)
        states = MemoryStateDirectory()
        worker = live.new_worker(MemorySource(broker), MemorySink(broker), states, settings)
        asyncio.run(finished(worker.run(until_end=True)))
        return [json.loads(row.value) for row in broker.output("evaluations", 0)[before:]]

    (with_query,) = emitted(emit_query=True)
    assert with_query.pop("query") == "a flight"
    assert emitted(emit_query=True) == []
    assert emitted(emit_query=False) == [with_query]
    assert emitted(emit_query=False) == []
