"""`fit` and `replay --weights` with described candidates, whose features are computed."""

import json
from random import Random

import numpy as np
import pytest

from evaluator.cli import main
from evaluator.core.features import (
    FEATURE_NAMES,
    HashedNgrams,
    SuccessTable,
    features_of,
    learned,
)
from evaluator.core.types.candidates import Described, Graph
from evaluator.wire.canonical import checksum_of
from evaluator.wire.weights.weights_record import read_weights
from tests.repeats import sized
from tests.replay import running

N_QUERIES = sized(150, quick=60)
SETTINGS = ["--set=scale=within_query"]


def query_of(i, *, rename=lambda name: name):
    """A query with its grades; graphs of type a are good, and of the others some."""
    random = Random(i)
    types = random.sample("abcd", 4)
    made = [Graph(t, f"text {random.randrange(5)}", random.randrange(9), 2) for t in types]
    ids = [rename(f"g{place}") for place in range(4)]
    grades = {
        name: 2.0 if kind == "a" else float(random.randrange(2))
        for name, kind in zip(ids, types, strict=True)
    }
    del grades[ids[i % 4]]
    return Described("graph", f"query {i % 9}", ids, graphs=made), grades


def graph_of(graph):
    return {
        "type": graph.type,
        "text": graph.text,
        "nodes": [0] * graph.n_nodes,
        "edges": [[0, 1]] * graph.n_edges,
    }


def samples(path, **how):
    """All queries as rows; of each group the members that describe it."""
    rows = []
    for i in range(N_QUERIES):
        described, grades = query_of(i, **how)
        for name, graph in zip(described.candidate_ids, described.graphs, strict=True):
            about = {"trace_id": f"t{i}", "node_id": "n", "query": described.query}
            row = {**about, "candidate_id": name, "graph": graph_of(graph)}
            rows.append({**row, "label": grades.get(name)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"--samples={path}"


def logs(path, *, featured=False):
    """The same queries as messages; *featured*: with features, made here one by one."""
    rankings, judgments, history = [], [], SuccessTable()
    for i in range(N_QUERIES):
        described, grades = query_of(i)
        about = {"trace_id": f"t{i}", "timestamp_ms": i}
        if featured:
            features = features_of(described, embedder=HashedNgrams(), history=history)
            history = learned(history, [(described, grades)])
            more = {"features": features.tolist(), "feature_names": list(FEATURE_NAMES)}
        else:
            more = {"graphs": list(map(graph_of, described.graphs)), "query": described.query}
        ids = list(described.candidate_ids)
        rankings.append(running.ranking(**about, ids=ids, scores=[4, 3, 2, 1], **more))
        judgments.append(running.judgment(**about, grades=grades))
    running.put(path, "rankings.ndjson", rankings)
    running.put(path, "judgments.ndjson", judgments)
    return f"--source=file://{path}"


@pytest.fixture
def fitted(tmp_path):
    """The record that is learned from a source."""

    def run(source, *arguments):
        out = tmp_path / "weights.json"
        assert main(["fit", source, f"--out={out}", "--force", *SETTINGS, *arguments]) == 0
        return read_weights(out.read_bytes())

    return run


@pytest.mark.slow(alone=False)
def test_each_group_is_learned_with_the_table_of_the_groups_before_it(fitted, tmp_path):
    """As from the features of a loop that measures first and then learns."""
    brought = fitted(logs(tmp_path / "brought", featured=True))
    made = fitted(logs(tmp_path / "made"))
    assert made.weights == brought.weights
    assert made.history == brought.history
    assert made.feature_names == list(FEATURE_NAMES)
    assert made.settings["embedder"] == HashedNgrams.name
    assert made.table() == learned(SuccessTable(), map(query_of, range(N_QUERIES)))
    assert brought.table() is None
    assert not {"embedder", "map_graded_max_grade"} & set(brought.settings)


@pytest.mark.slow(alone=False)
def test_the_best_grade_is_that_of_the_settings_and_in_the_record(fitted, tmp_path):
    source = logs(tmp_path / "logs")
    usual, of_one = fitted(source), fitted(source, "--set=map_graded_max_grade=1")
    assert usual.settings["map_graded_max_grade"] == 2
    assert of_one.settings["map_graded_max_grade"] == 1
    assert of_one.table() == learned(SuccessTable(), map(query_of, range(N_QUERIES)), max_grade=1)
    assert of_one.table() != usual.table()
    assert of_one.weights != usual.weights


@pytest.mark.slow
def test_samples_give_the_same_weights_as_logs(fitted, tmp_path):
    of_logs = fitted(logs(tmp_path / "logs"))
    of_samples = fitted(samples(tmp_path / "samples.ndjson"))
    assert of_samples.weights == of_logs.weights
    assert of_samples.table() == of_logs.table()


@pytest.mark.slow(alone=False)
def test_the_names_of_graphs_change_nothing(fitted, tmp_path):
    one = fitted(samples(tmp_path / "one.ndjson"))
    other = fitted(samples(tmp_path / "other.ndjson", rename=lambda name: f"x-{name}"))
    assert one == other


@pytest.mark.slow(alone=False)
def test_success_rates_do_not_leak_the_judgment_of_the_same_group(fitted, tmp_path):
    """Each tool occurs once: with the final table, phi_hist would be a perfect oracle."""
    path, random = tmp_path / "oracle.ndjson", Random(3)
    with path.open("w") as file:
        for i in range(N_QUERIES):
            best = random.randrange(3)
            for place in range(3):
                about = {"trace_id": f"t{i}", "node_id": "n", "candidate_kind": "tool"}
                row = {**about, "tool": f"{i}-{place}", "label": 2 * (place == best)}
                file.write(json.dumps(row) + "\n")
    record = fitted(f"--samples={path}")
    assert np.abs(record.weights).max() < 1e-3  # rounding errors alone
    assert set(record.table().success_rates("tool", ["7-0", "7-1", "7-2"])) == {5 / 11, 6 / 11}


@pytest.fixture
def replayed(tmp_path, capsys):
    """Exit code, output and files of a replay."""

    def run(*arguments):
        out = tmp_path / "replayed"
        code = main(["replay", f"--out={out}", "--force", *arguments])
        return code, capsys.readouterr().err, running.contents(out) if out.exists() else {}

    return run


@pytest.mark.parametrize("source", [samples, logs])
def test_weights_are_evaluated_with_their_table(replayed, tmp_path, source):
    table = learned(SuccessTable(), map(query_of, range(40)))
    record = {
        "format": 1,
        "weights": [0.1, 2.0, -0.3, 0.7],
        "feature_names": list(FEATURE_NAMES),
        "success_rates": table.state(),
    }
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps(record))
    code, err, files = replayed(source(tmp_path / "source"), f"--weights={weights}")
    assert (code, err) == (0, "")
    evaluations = running.rows(files, "evaluations.ndjson")
    assert len(evaluations) == N_QUERIES
    for each in evaluations:
        described, _ = query_of(int(each["trace_id"][1:]))
        features = features_of(described, embedder=HashedNgrams(), history=table)
        scores = features @ np.array(record["weights"])
        found = dict(map(tuple, each["top3"]["weights"]))
        expected = dict(zip(described.candidate_ids, scores.tolist(), strict=True))
        assert found == pytest.approx({name: expected[name] for name in found})
        assert min(found.values()) >= sorted(expected.values())[1] - 1e-12


@pytest.mark.slow(alone=False)
def test_additional_measures_do_not_change_what_is_learned(replayed, tmp_path):
    source = logs(tmp_path / "logs")
    weights = tmp_path / "weights.json"
    record = {"format": 1, "weights": [1, 1, 1, 1], "feature_names": list(FEATURE_NAMES)}
    weights.write_text(json.dumps(record))
    learns = ["--set=learning=propose", "--set=learning_interval_ms=10"]
    _, _, plain = replayed(source, *learns)
    _, _, beside = replayed(source, *learns, f"--weights={weights}")
    assert plain["weights.ndjson"] == beside["weights.ndjson"]
    for one, other in zip(
        running.rows(plain, "settled.ndjson"), running.rows(beside, "settled.ndjson"), strict=True
    ):
        del other["values"]["weights"]
        assert one == other
        assert "graphs" in one


def test_weights_of_other_features_are_an_error_for_described_candidates(replayed, tmp_path):
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps({"format": 1, "weights": [1], "feature_names": ["x"]}))
    code, err, _ = replayed(logs(tmp_path / "logs"), f"--weights={weights}")
    assert code == 3
    assert f"{N_QUERIES} have no features" in err


@pytest.mark.slow
def test_weights_of_another_embedder_are_refused(replayed, fitted, tmp_path):
    source = samples(tmp_path / "samples.ndjson")
    record = json.loads(fitted(source).model_dump_json(exclude_none=True))
    record["settings"]["embedder"] = "minilm-0"
    record["checksum"] = checksum_of(record)
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps(record))
    code, err, _ = replayed(source, f"--weights={weights}")
    assert code == 2
    assert "learned with the embedder minilm-0, and this one is ngrams-1" in err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"description": "a", "graph": {}}], "a description (of a tool) or a graph, not both"),
        ([{"description": "a", "candidate_kind": "graph"}], "candidate_kind is graph"),
        ([{"graph": {}, "candidate_kind": "tool"}], "candidate_kind is tool"),
        ([{"candidate_kind": "page"}], "not a sample"),
        ([{"description": 3}], "not a sample"),
        ([{"graph": {"nodes": 3}}], "not a sample"),
        ([{"graph": {}}, {}], "is not described, and its first row is a graph"),
        ([{}, {"candidate_kind": "tool"}], "is a tool, and its first row is not described"),
        ([{"graph": {"nodes": [0] * 1_001}}], "1001 nodes"),
        ([{"graph": {"edges": [0] * 10_001}}], "10001 edges"),
        ([{"graph": {"type": "\u00e4" * 129}}], "type has 258 bytes"),
        ([{"description": "\u00e4" * 4_097}], "description has 8194 bytes"),
    ],
)
def test_rows_with_incomplete_descriptions_are_refused(tmp_path, capsys, rows, message):
    path = tmp_path / "samples.ndjson"
    about = {"trace_id": "t", "node_id": "n", "tool": "a", "label": 1}
    path.write_text("".join(json.dumps({**about, **row}) + "\n" for row in rows))
    assert main(["fit", f"--samples={path}", f"--out={tmp_path / 'w.json'}"]) == 3
    err = capsys.readouterr().err
    assert f"line {len(rows)}: " in err
    assert message in err


def test_a_description_is_ignored_if_features_are_given(fitted, tmp_path):
    rows = [
        {"trace_id": f"t{i}", "node_id": "n", "tool": tool, "features": [value], "label": value}
        for i in range(5)
        for tool, value in (("a", 0), ("b", 1))
    ]
    found = []
    for more in ({}, {"description": "d"}):
        path = tmp_path / "samples.ndjson"
        path.write_text("".join(json.dumps({**row, **more}) + "\n" for row in rows))
        found.append(fitted(f"--samples={path}", "--set=scale=none"))
    assert found[0] == found[1]
    assert found[0].table() is None
