"""`replay --weights`: one more ranker for queries with features, and no other change."""

import json
import random

import pytest

import evaluator
from evaluator.cli import main
from evaluator.wire.canonical import checksum_of
from tests.replay import running

NAMES = ["near", "new", "liked"]
WEIGHTS = [0.75, -1.5, 0.1]
RECORD = {"format": 1, "model": "m", "weights": WEIGHTS, "feature_names": NAMES}


def score_of(features):
    """Summed feature by feature, from the first on."""
    total = 0.0
    for feature, weight in zip(features, WEIGHTS, strict=True):
        total += feature * weight
    return total


@pytest.fixture
def replay(tmp_path, capsys):
    """Exit code, stdout, stderr and files of a replay of these messages."""
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps(RECORD))

    def run(rankings, judgments, *arguments, measured=True):
        directory = running.put(tmp_path / "logs", "rankings.ndjson", rankings)
        running.put(directory, "judgments.ndjson", judgments)
        out = tmp_path / "out"
        more = [f"--weights={weights}"] if measured else []
        command = ["replay", f"--source=file://{directory}", f"--out={out}", "--force"]
        for file in out.iterdir() if out.exists() else ():
            file.unlink()
        code = main([*command, *more, *arguments])
        return code, *capsys.readouterr(), running.contents(out) if out.exists() else {}

    run.weights = weights
    return run


def world(n=200, *, seed=3):
    """Rankings, most with features, and judgments; linear scores and grades by query."""
    rng = random.Random(seed)
    rankings, judgments, run, qrels = [], [], {}, {}
    for number in range(n):
        about = {"trace_id": f"t{number}", "timestamp_ms": 1_000 * number}
        ids = [f"c{place}" for place in range(rng.randint(1, 8))]
        features = [[rng.choice((-1.0, 0.1, 0.3, 2.0)) for _ in NAMES] for _ in ids]
        more = {}
        if rng.random() < 0.3:
            more["scorers"] = {"zzz": [rng.random() for _ in ids]}
        if rng.random() < 0.3:
            more["ranks"] = [rng.randint(1, 5) for _ in ids]
        if rng.random() < 0.8:
            more |= {"features": features, "feature_names": NAMES}
            run[f"t{number}"] = dict(zip(ids, map(score_of, features), strict=True))
        scores = [rng.random() for _ in ids]
        rankings.append(running.ranking(**about, ids=ids, scores=scores, **more))
        qrels[f"t{number}"] = {name: rng.randint(0, 2) for name in ids}
        judgments.append(running.judgment(**about, grades=qrels[f"t{number}"]))
    return rankings, judgments, run, qrels


def by_trace(files):
    return {row["trace_id"]: row for row in running.rows(files, "evaluations.ndjson")}


def test_values_equal_those_of_the_linear_scores(replay):
    rankings, judgments, run, qrels = world()
    code, _, err, files = replay(rankings, judgments)
    assert code == 0
    found = {
        trace: row["values"]["weights"]
        for trace, row in by_trace(files).items()
        if "weights" in row["values"]
    }
    measures = "top1,top3,mrr,ndcg@10,map@10"
    judged = {trace: grades for trace, grades in qrels.items() if trace in run}
    assert found == evaluator.evaluate(judged, run, measures).per_query
    assert err.count("\n") == 1
    assert f"measured on {len(run)} of 200 rankings: {200 - len(run)} have no features" in err
    top = by_trace(files)[next(iter(run))]["top3"]["weights"]
    assert all(score == run[next(iter(run))][name] for name, score in top)


@pytest.mark.slow(alone=False)
def test_the_other_rankers_keep_their_values(replay):
    rankings, judgments, _, _ = world()
    with_weights = by_trace(replay(rankings, judgments)[3])
    without = by_trace(replay(rankings, judgments, measured=False)[3])
    assert with_weights.keys() == without.keys()
    for trace, row in with_weights.items():
        for member in ("values", "rank", "top3"):
            assert list(row[member])[:1] == ["served"]
            row[member].pop("weights", None)
        assert row == without[trace]


@pytest.mark.slow(alone=False)
def test_batch_size_does_not_change_the_bytes(replay):
    rankings, judgments, _, _ = world()
    assert (
        replay(rankings, judgments)[3] == replay(rankings, judgments, "--set=max_poll_records=7")[3]
    )


def test_the_manifest_names_the_weights(replay):
    rankings, judgments, _, _ = world(3)
    for measured, expected in ((True, checksum_of(RECORD)), (False, None)):
        files = replay(rankings, judgments, measured=measured)[3]
        assert json.loads(files["manifest.json"])["settings"]["weights"] == expected


def test_samples_are_scored(tmp_path, capsys):
    rows = [
        {"trace_id": "t", "node_id": "n", "tool": name, "features": list(features), "label": label}
        for name, features, label in (("a", (1, 0), 0), ("b", (0, 1), 2))
    ]
    samples, weights = tmp_path / "samples.ndjson", tmp_path / "w.json"
    samples.write_text("\n".join(map(json.dumps, rows)))
    weights.write_text(json.dumps(RECORD | {"weights": [1, 3], "feature_names": ["f0", "f1"]}))
    out = tmp_path / "out"
    code = main(["replay", f"--samples={samples}", f"--weights={weights}", f"--out={out}"])
    (row,) = running.rows(running.contents(out), "evaluations.ndjson")
    assert (code, capsys.readouterr().err) == (0, "")
    assert row["rank"] == {"served": 2, "weights": 1}
    assert row["top3"]["weights"] == [["b", 3.0], ["a", 1.0]]


def test_a_missing_feature_is_the_mean_of_the_other_candidates(replay):
    """near is 2 and 4, so the gap has 3; liked is missing everywhere, so it is 0."""
    rows = [[2.0, 1.0, None], [None, 0.0, None], [4.0, 3.0, None]]
    about = {"ids": list("abc"), "scores": [3, 2, 1], "feature_names": NAMES}
    rankings = [running.ranking("t0", **about, features=rows)]
    code, _, err, files = replay(rankings, [running.judgment("t0")])
    (row,) = by_trace(files).values()
    expected = [["b", 0.75 * 3], ["a", 0.75 * 2 - 1.5], ["c", 0.75 * 4 - 1.5 * 3]]
    assert (code, err, row["top3"]["weights"]) == (0, "", expected)


@pytest.mark.slow(alone=False)
def test_weights_written_by_fit_can_be_measured(tmp_path):
    rng = random.Random(1)
    rows = []
    for number in range(60):
        for name in "abcdef":
            near, new = rng.random(), rng.random()
            label = 1 if near > 0.7 + 0.1 * new else 0
            about = {"trace_id": f"t{number}", "node_id": "n", "candidate_id": name}
            rows.append({**about, "features": [near, new], "label": label})
    samples, weights, out = tmp_path / "s.ndjson", tmp_path / "w.json", tmp_path / "out"
    samples.write_text("\n".join(map(json.dumps, rows)))
    assert main(["fit", f"--samples={samples}", f"--out={weights}", "--epochs=20"]) == 0
    assert main(["replay", f"--samples={samples}", f"--weights={weights}", f"--out={out}"]) == 0
    totals = json.loads((out / "totals.json").read_bytes())["totals"]
    means = {
        row["ranker"]: row["mean"]
        for row in totals
        if (row["kind"], row["measure"]) == ("settled", "ndcg@10")
    }
    assert means["weights"] > means["served"] + 0.2


def test_other_features_are_reported_with_their_first_query(replay):
    about = {"features": [[1, 2, 3], [4, 5, 6]]}
    rankings = [
        running.ranking("t0", **about, feature_names=NAMES),
        running.ranking("t1", **about, feature_names=["new", "near", "liked"]),
        running.ranking("t2", **about),
        running.ranking("t3", features=[[1e308, -1e308, 0], [1, 1, 1]], feature_names=NAMES),
    ]
    huge = RECORD | {"weights": [10.0, 10.0, 1.0]}
    replay.weights.write_text(json.dumps(huge))
    code, _, err, files = replay(rankings, [running.judgment(f"t{n}") for n in range(4)])
    assert code == 0
    assert "measured on 1 of 4 rankings: 2 have other features than the weights" in err
    assert "(near, new, liked), first t1, n with new, near, liked" in err
    assert "1 would have scores beyond the range of a float" in err
    assert ["weights" in row["values"] for row in by_trace(files).values()] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("more", [{}, {"features": [[1, 2, 3]] * 2}])
def test_without_any_scorable_ranking_the_replay_fails_and_leaves_no_files(replay, more):
    code, _, err, files = replay([running.ranking("t", **more)], [running.judgment("t")])
    assert (code, files, err.count("\n")) == (3, {}, 1)
    assert "measured on 0 of 1 rankings" in err
    assert "Give weights for these features, or leave --weights out." in err


def test_an_empty_log_is_not_blamed_on_the_weights(replay):
    assert replay([], [])[0] == 0


def test_an_empty_ranking_counts_for_the_weights(replay):
    bare = {"ids": [], "scores": [], "features": [], "feature_names": NAMES}
    _, _, err, files = replay([running.ranking("t", **bare)], [running.judgment("t")])
    assert err == ""
    (row,) = running.rows(files, "evaluations.ndjson")
    assert row["values"]["weights"] == row["values"]["served"]
    assert row["values"]["weights"]["ndcg@10"] == 0.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a file"),
        (b"{", "no JSON"),
        (json.dumps(RECORD | {"checksum": "0" * 64}).encode(), "it was changed"),
    ],
)
def test_unreadable_weights_are_an_unusable_input(replay, content, message):
    replay.weights.unlink()
    if content is not None:
        replay.weights.write_bytes(content)
    rankings, judgments, _, _ = world(2)
    code, _, err, files = replay(rankings, judgments)
    assert (code, files, err.count("\n")) == (3, {}, 1)
    assert "weights.json" in err
    assert message in err
