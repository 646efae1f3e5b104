"""Offline samples: rows become groups, which are measured like queries."""

import gzip
import json
from random import Random

import cramjam
import pytest

import evaluator
from evaluator.cli import main

ENCODINGS = {
    "": lambda text: text,
    ".gz": lambda text: gzip.compress(text, mtime=0),
    ".zst": lambda text: bytes(cramjam.zstd.compress(text)),
}


def row(trace, candidate, label=None, **more):
    about = {"trace_id": trace, "node_id": "n", "candidate_id": candidate, "features": [0.5, 1]}
    return {**about, "query": f"of {trace}", "label": label, **more}


@pytest.fixture
def replay(tmp_path, capsys):
    """Exit code, stdout, stderr and files of a replay of these rows."""

    def run(rows, *arguments, ending=""):
        lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
        path = tmp_path / f"samples.ndjson{ending}"
        path.write_bytes(ENCODINGS[ending]("\n".join(lines).encode()))
        out = tmp_path / "out"
        code = main(["replay", f"--samples={path}", f"--out={out}", "--force", *arguments])
        files = {file.name: file.read_bytes() for file in out.iterdir()} if out.exists() else {}
        return code, *capsys.readouterr(), files

    return run


def evaluations(files):
    return [json.loads(line) for line in files["evaluations.ndjson"].splitlines()]


def test_rows_of_a_query_form_a_group_in_the_order_of_the_first_ones(replay):
    rows = [row("z", "a", 0), row("b", "c", 1), row("z", "b", 2), row("b", "d"), row("none", "e")]
    code, out, err, files = replay(rows)
    assert (code, err) == (0, "")
    assert out.startswith("read 3 rankings and 2 judgments; 3 queries settled (2 judged)")
    first, second = evaluations(files)
    assert [first["trace_id"], second["trace_id"]] == ["z", "b"]
    assert [first["event_time_ms"], second["event_time_ms"]] == [0, 1]
    assert first["grades"] == {"a": 0, "b": 2}
    assert (first["query"], second["grades"]) == ("of z", {"c": 1})


def test_rows_without_scores_keep_the_served_order(replay):
    *_, files = replay([row("t", "z", 0), row("t", "a", 0), row("t", "m", 1)])
    (found,) = evaluations(files)
    assert found["rank"] == {"served": 3}
    assert found["top3"] == {"served": [["z", None], ["a", None], ["m", None]]}


def test_scores_order_the_rows_where_they_are_given(replay):
    *_, files = replay([row("t", "z", 0, score=0.5), row("t", "a", 1, score=2)])
    (found,) = evaluations(files)
    assert found["rank"] == {"served": 1}
    assert found["top3"] == {"served": [["a", 2.0], ["z", 0.5]]}


def test_a_tool_is_a_candidate_and_a_propensity_is_ignored(replay):
    tool = {"trace_id": "t", "node_id": "n", "tool": "search", "label": 1, "propensity": 0.5}
    *_, files = replay([tool])
    assert evaluations(files)[0]["grades"] == {"search": 1}


def test_a_row_without_a_label_is_unjudged_not_0(replay):
    *_, files = replay([row("t", "a"), row("t", "b", 0), row("u", "a"), row("v", "a", -1)])
    assert [found["grades"] for found in evaluations(files)] == [{"b": 0}]
    queries = json.loads(files["totals.json"])["queries"]
    assert (queries["settled_judged"], queries["settled_unjudged"]) == (1, 2)


def test_values_equal_those_of_the_library(replay):
    random = Random(5)
    rows, qrels, run = [], {}, {}
    for number in range(200):
        for place in range(random.randint(1, 12)):
            score, label = random.randrange(6) / 2, random.choice((None, 0, 1, 2))
            rows.append(row(f"t{number}", f"c{place}", label, score=score))
            run.setdefault(f"t{number}", {})[f"c{place}"] = score
            if label is not None:
                qrels.setdefault(f"t{number}", {})[f"c{place}"] = label
    random.shuffle(rows)
    *_, files = replay(rows, "--set=measures=ndcg@5,map,p@3")
    expected = evaluator.evaluate(qrels, run, "ndcg@5,map,p@3", missing="skip")
    found = {one["trace_id"]: one["values"]["served"] for one in evaluations(files)}
    assert found == expected.per_query
    settled = {
        total["measure"]: total["mean"]
        for total in json.loads(files["totals.json"])["totals"]
        if total["kind"] == "settled"
    }
    assert settled == expected.mean


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_gives_the_same_files(replay, ending):
    rows = [row("t", "a", 1), "", row("u", "b", 0)]
    assert replay(rows)[3] == replay(rows, ending=ending)[3]


def test_a_group_beyond_the_limits_of_a_message_is_a_dead_letter(replay):
    code, out, _, files = replay([row("t", f"c{n}") for n in range(1_001)] + [row("u", "a", 32)])
    assert code == 0
    assert "2 dead letters (limit 2); " in out
    reasons = [json.loads(line)["reason"] for line in files["dead-letters.ndjson"].splitlines()]
    assert reasons == ["limit", "limit"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", "not a sample: "),
        ('{"trace_id": "t"}', "required field `node_id`"),
        ('{"trace_id": "t", "node_id": "n"}', "neither candidate_id nor tool"),
        (json.dumps(row("t", "b", "good")), "Expected `float | null`, got `str` - at `$.label`"),
        (json.dumps(row("t", "b", propensity=0)), "propensity must be above 0"),
        (json.dumps(row("t", "b", score=1.0)), "some rows of t, n have a score and some have none"),
    ],
)
def test_an_invalid_row_ends_the_replay_and_is_named(replay, line, message):
    code, _, err, files = replay([row("t", "a", 1), line])
    assert (code, files, err.count("\n")) == (3, {}, 1)
    assert "samples.ndjson, line 2: " in err
    assert message in err


def test_a_missing_file_is_an_unusable_input(tmp_path, capsys):
    code = main(["replay", f"--samples={tmp_path / 'no'}", f"--out={tmp_path / 'out'}"])
    assert (code, capsys.readouterr().err.count("\n")) == (3, 1)


def test_samples_have_no_times(replay):
    code, _, err, _ = replay([row("t", "a", 1)], "--from=5")
    assert (code, err) == (2, "evaluator: samples have no times: leave --from and --to out.\n")


def test_samples_and_a_source_are_mutually_exclusive(replay):
    assert replay([row("t", "a", 1)], "--source=file://.")[0] == 2
