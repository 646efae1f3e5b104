"""The setting `embedder`."""

import pytest

from evaluator.adapters import minilm
from evaluator.adapters.minilm import embedder as adapter
from evaluator.cli import main, stewardship
from evaluator.config import Settings
from evaluator.core.features import HashedNgrams


def test_ngrams_need_nothing():
    assert stewardship.embedder_of(Settings()).name == HashedNgrams().name


@pytest.mark.parametrize("command", ["replay --set=learning=propose --set=gate_measure=mrr", "fit"])
def test_a_model_that_is_not_installed_ends_it_and_says_what_to_install(
    monkeypatch, tmp_path, capsys, command
):
    monkeypatch.setattr(adapter, "find_spec", lambda _: None)
    samples, out = tmp_path / "samples.ndjson", tmp_path / "out"
    samples.write_text('{"trace_id": "t", "node_id": "n", "tool": "a"}\n')
    more = [f"--samples={samples}", f"--out={out}", "--set=embedder=minilm"]
    assert main([*command.split(), *more]) == 2
    assert "Install the extra evaluator[embeddings]" in capsys.readouterr().err
    assert not out.exists()


def test_the_sentence_model_is_asked_once_for_each_text(monkeypatch):
    asked = []

    class Model:
        name = "minilm-0"

        def embed(self, texts):
            asked.extend(texts)
            return HashedNgrams().embed(texts)

    monkeypatch.setattr(stewardship, "MiniLM", Model)
    embedder = stewardship.embedder_of(Settings(embedder="minilm"))
    embedder.embed(["a", "b"])
    embedder.embed(["b", "c"])
    assert (embedder.name, asked) == ("minilm-0", ["a", "b", "c"])
    assert minilm.MiniLM is not Model
