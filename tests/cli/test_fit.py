"""`evaluator fit`: the contract of an update, skipped groups, propensities, files and refusals."""

import gzip
import json
import math
import os
import random

import pytest

from evaluator.cli import main
from evaluator.core.learning.names import LOSSES
from evaluator.wire.canonical import checksum_of
from evaluator.wire.weights.weights_record import read_weights
from tests.repeats import repeated, sized
from tests.replay import running

TRUTH = (1.0, -2.0, 0.5)
PLAIN = (
    *("--validate=0", "--set=optimizer=sgd", "--set=schedule=constant"),
    *("--set=learning_rate=0.1", "--set=batch_queries=1", "--set=scale=none"),
)
"""One step of one length for each group, on raw features, as handmade expectations assume."""


def rows_of(number, candidates, **more):
    """A group: candidates as pairs of features and label."""
    about = {"trace_id": f"t{number}", "node_id": "n", "query": "q", **more}
    return [
        {**about, "candidate_id": f"c{place}", "features": list(features), "label": label}
        for place, (features, label) in enumerate(candidates)
    ]


def seeded_groups(n, *, seed=0, noise=0.3, spread=(1.0, 1.0, 1.0)):
    """Groups of 2 to 9 candidates with a linear truth; some have no training signal."""
    rng = random.Random(seed)
    for _ in range(n):
        features = [[rng.gauss(0, 1) for _ in TRUTH] for _ in range(rng.randint(2, 9))]
        utilities = [
            sum(w * x for w, x in zip(TRUTH, row, strict=True)) + rng.gauss(0, noise)
            for row in features
        ]
        best = sorted(range(len(features)), key=utilities.__getitem__, reverse=True)
        labels = [0.0] * len(features)
        labels[best[0]], labels[best[1]] = 2.0, 1.0
        features = [[x * s for x, s in zip(row, spread, strict=True)] for row in features]
        kind = rng.random()
        if kind < 0.1:
            labels = [0.0] * len(features)
        elif kind < 0.2:
            features, labels = features[:1], [2.0]
        yield list(zip(features, labels, strict=True))


@pytest.fixture
def fit(tmp_path, capsys):
    """Exit code, stdout, stderr and the record, if there is one."""

    def run(rows, *arguments, name="samples.ndjson"):
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        out = tmp_path / "deep" / "weights.json"
        out.unlink(missing_ok=True)
        code = main(["fit", f"--samples={path}", f"--out={out}", *PLAIN, *arguments])
        record = json.loads(out.read_bytes()) if out.exists() else None
        return code, *capsys.readouterr(), record

    return run


def flat(groups, **more):
    return [row for number, group in enumerate(groups) for row in rows_of(number, group, **more)]


# The contract in a plain implementation


def plain_fit(groups, *, epochs, rate, l2, batch, initial, schedule, clip, mode):
    """Softmax and sgd exactly as the contract specifies, with lists and loops."""
    w, updates, history = list(initial), 0, []
    for _ in range(epochs):
        losses = []
        for first in range(0, len(groups), batch):
            gradients = []
            for group in groups[first : first + batch]:
                labels = [label for _, label in group]
                if len(group) < 2 or not any(label > 0 for label in labels):
                    continue
                scores = [sum(a * b for a, b in zip(w, row, strict=True)) for row, _ in group]
                top = max(scores)
                log_sum = top + math.log(sum(math.exp(s - top) for s in scores))
                p = [math.exp(s - log_sum) for s in scores]
                t = [2**y - 1 if mode == "gain" else y for y in labels]
                if mode != "sum":
                    t = [one / sum(t) for one in t]
                losses.append(-sum(a * (s - log_sum) for a, s in zip(t, scores, strict=True)))
                slopes = [sum(t) * a - b for a, b in zip(p, t, strict=True)]
                gradients.append(
                    [
                        sum(slope * row[f] for slope, (row, _) in zip(slopes, group, strict=True))
                        for f in range(len(w))
                    ]
                )
            if not gradients:
                continue
            g = [
                sum(one[f] for one in gradients) / len(gradients) + 2 * l2 * w[f]
                for f in range(len(w))
            ]
            norm = math.sqrt(sum(one * one for one in g))
            if clip is not None and norm > clip:
                g = [one * clip / norm for one in g]
            step = rate / math.sqrt(1 + updates) if schedule == "inv_sqrt" else rate
            w = [one - step * slope for one, slope in zip(w, g, strict=True)]
            updates += 1
        history.append((sum(losses) / len(losses), len(losses)))
    return w, updates, history


@pytest.mark.parametrize("part", repeated(12, quick=1))
def test_the_weights_equal_those_of_the_reference_implementation(fit, part):
    rng = random.Random(part)
    groups = list(seeded_groups(60, seed=part))
    course = {
        "epochs": rng.randint(1, 4),
        "rate": rng.choice((0.01, 0.1, 0.5)),
        "l2": rng.choice((0.0, 0.01, 0.3)),
        "batch": rng.choice((1, 2, 7, 64)),
        "initial": rng.choice(((0.0, 0.0, 0.0), (0.25, -0.5, 1.0))),
        "schedule": rng.choice(("constant", "inv_sqrt")),
        "clip": rng.choice((None, 0.4)),
        "mode": ("distribution", "gain", "sum")[part % 3],
    }
    code, _, err, record = fit(
        flat(groups),
        f"--epochs={course['epochs']}",
        f"--set=learning_rate={course['rate']}",
        f"--set=l2={course['l2']}",
        f"--set=batch_queries={course['batch']}",
        f"--set=schedule={course['schedule']}",
        f"--set=clip_norm={course['clip'] or 'none'}",
        f"--set=label_mode={course['mode']}",
        f"--set=initial_weights={','.join(map(str, course['initial']))}",
    )
    weights, updates, history = plain_fit(groups, **course)
    assert (code, err, record["updates"]) == (0, "", updates)
    assert record["weights"] == pytest.approx(weights, rel=1e-9)
    assert [one["groups"] for one in record["history"]] == [n for _, n in history]
    assert [one["mean_loss"] for one in record["history"]] == pytest.approx([m for m, _ in history])
    assert [one["epoch"] for one in record["history"]] == list(range(1, course["epochs"] + 1))
    assert {one["groups"] + one["skipped"] for one in record["history"]} == {60}


@pytest.mark.parametrize(
    ("mode", "scale"),
    [
        ("distribution", "none"),
        *(
            pytest.param(mode, scale, marks=pytest.mark.slow)
            for mode, scale in (
                *(("distribution", "within_query"), ("gain", "none")),
                *(("sum", "none"), ("sum", "within_query")),
            )
        ),
    ],
)
def test_it_recovers_the_direction_of_a_linear_truth(fit, mode, scale):
    spread = (1.0, 100.0, 0.01) if scale == "within_query" else (1.0, 1.0, 1.0)
    code, _, _, record = fit(
        flat(seeded_groups(sized(400, quick=200), spread=spread)),
        "--epochs=5",
        f"--set=label_mode={mode}",
        f"--set=scale={scale}",
        "--set=schedule=inv_sqrt",
        "--set=learning_rate=0.5",
    )
    assert code == 0
    found = [w * s for w, s in zip(record["weights"], spread, strict=True)]
    product = sum(a * b for a, b in zip(found, TRUTH, strict=True))
    assert product / math.hypot(*found) / math.hypot(*TRUTH) > 0.99
    assert record["history"][-1]["mean_loss"] < record["history"][0]["mean_loss"]
    assert (record["scale"] is None) == (scale == "none")


# The record


def test_the_record_is_complete_with_a_valid_checksum(fit):
    code, out, err, record = fit(flat(seeded_groups(20)), "--epochs=2", "--model=tool-ranker")
    assert (code, err) == (0, "")
    assert out.startswith("20 groups, ")
    assert out.count("\n") == 1
    assert list(record)[:8] == [
        *("format", "model", "epoch", "version", "parent", "weights", "feature_names", "scale")
    ]
    assert (record["format"], record["model"], record["parent"]) == (1, "tool-ranker", None)
    assert record["feature_names"] == ["f0", "f1", "f2"]
    assert record["checksum"] == checksum_of(record)
    assert read_weights(json.dumps(record).encode()).weights == record["weights"]
    assert record["settings"]["label_mode"] == "distribution"


@pytest.mark.slow(alone=False)
def test_the_same_input_gives_the_same_bytes_in_any_storage_format(fit, tmp_path):
    rows = flat(seeded_groups(80))
    written = tmp_path / "deep" / "weights.json"
    options = ("--epochs=2", "--set=scale=within_query", "--set=optimizer=adam")
    bytes_of = []
    for name, more in (
        ("samples.ndjson", ()),
        ("samples.ndjson", ("--set=max_poll_records=7",)),
        ("samples.ndjson.gz", ()),
    ):
        assert fit(rows, *options, *more, name=name)[0] == 0
        bytes_of.append(written.read_bytes())
    assert bytes_of[0] == bytes_of[1] == bytes_of[2]


def test_rows_of_a_group_need_not_be_adjacent_and_first_rows_order_the_groups(fit):
    groups = list(seeded_groups(40))
    rows = flat(groups)
    first = [row for row in rows if row["candidate_id"] == "c0"]
    rest = [row for row in rows if row["candidate_id"] != "c0"]
    rest.sort(key=lambda row: int(row["trace_id"][1:]), reverse=True)
    apart = fit([*first, *rest], "--epochs=1")[3]
    assert apart["weights"] == fit(rows, "--epochs=1")[3]["weights"]
    backwards = [row for group in reversed(range(40)) for row in rows_of(group, groups[group])]
    assert fit(backwards, "--epochs=1")[3]["weights"] != apart["weights"]


@pytest.mark.slow(alone=False)
def test_a_seed_shuffles_reproducibly(fit):
    rows = flat(seeded_groups(20))
    by_seed = [
        fit(rows, "--epochs=2", *more)[3]["weights"]
        for more in ((), ("--shuffle-seed=1",), ("--shuffle-seed=1",), ("--shuffle-seed=2",))
    ]
    assert by_seed[1] == by_seed[2]
    assert len({tuple(weights) for weights in by_seed}) == 3


# Skipped groups


@pytest.mark.parametrize(
    ("optimizer", "scale"),
    [
        ("adam", "within_query"),
        *(
            pytest.param(optimizer, scale, marks=pytest.mark.slow)
            for optimizer in ("sgd", "adagrad", "adam")
            for scale in ("none", "within_query")
            if (optimizer, scale) != ("adam", "within_query")
        ),
    ],
)
def test_groups_without_a_training_signal_change_nothing(fit, optimizer, scale):
    groups = [group for group in seeded_groups(80) if len(group) > 1]
    groups = [group for group in groups if any(label for _, label in group)]
    options = (
        "--epochs=2",
        f"--set=optimizer={optimizer}",
        f"--set=scale={scale}",
        "--set=schedule=inv_sqrt",
        "--set=l2=0.1",
    )
    expected = fit(flat(groups), *options)[3]
    nothing = [
        [((1.0, 1.0, 1.0), 0.0)] * 3,
        [((9.0, 9.0, 9.0), 1.0)],
        [((1.0, 2.0, 3.0), None)] * 2,
    ]
    mixed = [one for group in groups for one in (nothing[0], group, nothing[1], nothing[2])]
    found = fit(flat(mixed), *options)[3]
    assert (found["weights"], found["updates"]) == (expected["weights"], expected["updates"])
    assert [one["mean_loss"] for one in found["history"]] == [
        one["mean_loss"] for one in expected["history"]
    ]
    assert {one["skipped"] for one in found["history"]} == {3 * len(groups)}


def test_an_input_without_a_training_signal_is_reported(fit):
    code, out, err, record = fit(
        flat([[((1.0,), 0.0), ((2.0,), 0.0)]]), "--set=initial_weights=0.5", "--epochs=2"
    )
    assert (code, record["weights"], record["updates"]) == (0, [0.5], 0)
    assert [one["mean_loss"] for one in record["history"]] == [None, None]
    assert "no update was made" in err
    assert "mean loss none" in out


def test_fewer_than_fifty_groups_are_not_enough_for_a_scale(fit):
    groups = [[((1.0,), 1.0), ((2.0,), 0.0)]] * 49
    *_, err, record = fit(flat(groups), "--set=scale=within_query", "--epochs=1")
    assert (record["updates"], record["scale"]) == (0, None)
    assert "the first one needs 50 groups to learn from" in err
    record = fit(flat(groups), "--set=scale=within_query", "--epochs=2")[3]
    assert record["updates"] == 2 * 49 - 49


def test_an_unjudged_candidate_has_grade_0_and_the_first_of_repeated_ones_counts(fit):
    group = rows_of(0, [((1.0, 0.0), 1.0), ((0.0, 1.0), 0.0), ((0.5, 0.5), 0.0)])
    expected = fit(group, "--epochs=3")[3]["weights"]
    unjudged = [{**row, "label": row["label"] or None} for row in group]
    assert fit(unjudged, "--epochs=3")[3]["weights"] == expected
    again = [*group, {**group[0], "features": [9.0, 9.0]}]
    assert fit(again, "--epochs=3")[3]["weights"] == expected


def test_a_missing_feature_is_the_mean_of_the_other_candidates(fit):
    groups = [group for group in seeded_groups(40) if len(group) > 2]
    holes = [
        [
            ((None if place == 1 else x, y, None), label)
            for place, ((x, y, _), label) in enumerate(g)
        ]
        for g in groups
    ]
    filled = [
        [
            ((_mean_but_second(group) if place == 1 else x, y, 0.0), label)
            for place, ((x, y, _), label) in enumerate(group)
        ]
        for group in groups
    ]
    found, expected = (fit(flat(each), "--epochs=2")[3] for each in (holes, filled))
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-12)
    assert found["weights"][2] == 0.0


def _mean_but_second(group):
    others = [x for place, ((x, _, _), _) in enumerate(group) if place != 1]
    return sum(others) / len(others)


@pytest.mark.slow(alone=False)
def test_initial_weights_may_be_read_from_a_file(fit, tmp_path):
    rows = flat(seeded_groups(30))
    first = fit(rows, "--epochs=1")[3]
    kept = tmp_path / "first.json"
    kept.write_text(json.dumps(first))
    numbers = ",".join(map(repr, first["weights"]))
    by_numbers = fit(rows, "--epochs=1", f"--set=initial_weights={numbers}")[3]
    by_file = fit(rows, "--epochs=1", f"--set=initial_weights={kept}")[3]
    assert by_file == by_numbers
    for number, (record, code, message) in enumerate(
        [
            ({**first, "feature_names": ["a", "b", "c"]}, 2, "are for the features a, b, c, and"),
            ({**first, "weights": [1.0, 2.0, 3.0]}, 3, "its checksum is that of another record"),
            (None, 3, "other2.json"),
        ]
    ):
        other = tmp_path / f"other{number}.json"
        if record is not None:
            found = {name: value for name, value in record.items() if name != "checksum"}
            other.write_text(json.dumps(found if code == 2 else record))
        result = fit(rows, f"--set=initial_weights={other}")
        assert (result[0], result[3]) == (code, None)
        assert message in result[2]


# Propensities


def test_labels_are_divided_by_propensities(fit):
    """One update from 0: p = 1/3 each, targets 1/0.5 and 1/0.25, in all 6."""
    group = rows_of(0, [((1.0,), 1.0), ((2.0,), 0.0), ((4.0,), 1.0)])
    group[0]["propensity"], group[2]["propensity"] = 0.5, 0.25
    record = fit(group, "--epochs=1", "--set=label_mode=sum")[3]
    gradient = 6 * (1 + 2 + 4) / 3 - (2 * 1 + 4 * 4)
    assert record["weights"] == pytest.approx([-0.1 * gradient])
    loss = -(2 + 4) * math.log(1 / 3)
    assert record["history"][0]["mean_loss"] == pytest.approx(loss)


@pytest.mark.parametrize(
    "setting", ["label_mode=distribution", "label_mode=gain", "loss=lambdarank"]
)
def test_propensities_need_labels_that_are_summed(fit, setting):
    group = rows_of(0, [((1.0,), 1.0), ((2.0,), 0.0)])
    group[1]["propensity"] = 1.0
    code, _, err, record = fit(group, f"--set={setting}")
    assert (code, record, err.count("\n")) == (2, None, 1)
    assert "Set loss=softmax and label_mode=sum" in err


def test_a_propensity_close_to_zero_is_an_error(fit):
    group = rows_of(0, [((1.0,), 1.0), ((2.0,), 0.0)])
    group[0]["propensity"] = 1e-310
    code, _, err, record = fit(group, "--set=label_mode=sum")
    assert (code, record, err.count("\n")) == (2, None, 1)
    assert "check for extremely large features or propensities" in err


# Logs


def log_of(groups, directory, **more):
    """The same groups as rankings and judgments; some grades come after maturity."""
    rankings, judgments = [], []
    for number, group in enumerate(groups):
        about = {"trace_id": f"t{number}", "timestamp_ms": 1_000 * number}
        ids = [f"c{place}" for place in range(len(group))]
        rankings.append(
            running.ranking(
                **about, ids=ids, scores=[0.0] * len(ids), features=[f for f, _ in group], **more
            )
        )
        grades = {name: label for name, (_, label) in zip(ids, group, strict=True)}
        judgments.append(running.judgment(**about, grades=grades))
    running.put(directory, "rankings.ndjson", rankings)
    return running.put(directory, "judgments.ndjson", judgments)


def fit_log(directory, out, *arguments):
    return main(["fit", f"--source=file://{directory}", f"--out={out}", *PLAIN, *arguments])


@pytest.mark.slow(alone=False)
def test_logs_give_the_weights_of_the_same_samples(fit, tmp_path):
    groups = list(seeded_groups(80))
    expected = fit(flat(groups), "--epochs=2")[3]
    directory = log_of(groups, tmp_path / "logs", feature_names=["a", "b", "c"])
    assert fit_log(directory, tmp_path / "w.json", "--epochs=2") == 0
    record = json.loads((tmp_path / "w.json").read_bytes())
    assert record["feature_names"] == ["a", "b", "c"]
    for member in ("weights", "updates", "history", "settings", "ranges"):
        assert record[member] == expected[member]


def test_grades_are_those_at_maturity(tmp_path):
    group = [((1.0, 0.0), 1.0), ((0.0, 1.0), 0.0)]
    weights = []
    for name, later in (("plain", []), ("late", [running.judgment("t0", 60_001, {"c1": 9.0})])):
        directory = log_of([group], tmp_path / name)
        path = directory / "judgments.ndjson"
        path.write_bytes(path.read_bytes() + b"".join(line + b"\n" for line in later))
        assert fit_log(directory, tmp_path / f"{name}.json", "--set=maturity_ms=60000") == 0
        weights.append(json.loads((tmp_path / f"{name}.json").read_bytes())["weights"])
    assert weights[0] == weights[1]


def test_queries_of_several_partitions_are_learned_in_settling_order(tmp_path):
    groups = list(seeded_groups(30))
    whole = log_of(groups, tmp_path / "whole")
    parts = tmp_path / "parts"
    parts.mkdir()
    for log in ("rankings", "judgments"):
        lines = (whole / f"{log}.ndjson").read_bytes().splitlines(keepends=True)
        for part in range(3):
            (parts / f"{log}-{part}.ndjson").write_bytes(b"".join(lines[part::3]))
    found = []
    for directory in (whole, parts):
        assert fit_log(directory, tmp_path / "w.json", "--force", "--epochs=2") == 0
        found.append(json.loads((tmp_path / "w.json").read_bytes())["weights"])
    assert found[0] == found[1]


def test_only_the_given_range_of_a_log_is_learned(fit, tmp_path):
    groups = list(seeded_groups(60))
    directory = log_of(groups, tmp_path / "logs")
    code = fit_log(directory, tmp_path / "w.json", "--from=10000", "--to=30000", "--epochs=1")
    record = json.loads((tmp_path / "w.json").read_bytes())
    assert code == 0
    assert record["ranges"]["rankings-0"] == {"start": 10, "end": 30}
    assert record["weights"] == fit(flat(groups[10:30]), "--epochs=1")[3]["weights"]


def test_groups_without_features_and_dead_letters_are_reported(fit, tmp_path, capsys):
    directory = log_of(list(seeded_groups(10)), tmp_path / "logs")
    more = [running.ranking("bare", 10_000), b"{", running.judgment("bare", 10_000)]
    for name, lines in (("rankings.ndjson", more[:2]), ("judgments.ndjson", more[2:])):
        path = directory / name
        path.write_bytes(path.read_bytes() + b"".join(line + b"\n" for line in lines))
    assert fit_log(directory, tmp_path / "w.json", "--epochs=1") == 0
    err = capsys.readouterr().err
    assert "1 records are dead letters" in err
    assert "1 of 11 groups have no features" in err
    record = json.loads((tmp_path / "w.json").read_bytes())
    assert record["weights"] == fit(flat(seeded_groups(10)), "--epochs=1")[3]["weights"]


def test_features_that_change_within_a_log_are_refused(tmp_path, capsys):
    group = [((1.0, 0.0), 1.0), ((0.0, 1.0), 0.0)]
    directory = log_of([group], tmp_path / "logs", feature_names=["a", "b"])
    other = running.ranking("t9", 9_000, features=[[1, 2], [3, 4]], feature_names=["a", "other"])
    path = directory / "rankings.ndjson"
    path.write_bytes(path.read_bytes() + other + b"\n")
    assert fit_log(directory, tmp_path / "w.json") == 3
    assert "the features of t9, n are a, other; those before it are a, b" in capsys.readouterr().err
    assert not (tmp_path / "w.json").exists()


# Refusals


def test_an_input_without_features_cannot_be_learned_from(fit):
    rows = [{"trace_id": "t", "node_id": "n", "candidate_id": "a", "label": 1}]
    code, _, err, record = fit(rows)
    assert (code, record, err.count("\n")) == (3, None, 1)
    assert "has features, so there is nothing to learn from" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": [1.0]}, "features f0 for a candidate of t0, n whose first row has f0, f1."),
        ({"features": None}, "features none for a candidate of t0, n whose first row has f0, f1."),
        ({"feature_names": ["a", "b"]}, "features a, b for a candidate of t0, n whose first row"),
        ({"feature_names": ["a"]}, "2 features and 1 feature_names."),
        ({"features": [0.0] * 257}, "257 features; a candidate has at most 256."),
    ],
)
def test_rows_of_a_group_have_the_same_features(fit, change, message):
    rows = rows_of(0, [((1.0, 2.0), 1.0), ((1.0, 2.0), 0.0)])
    rows[1] |= change
    code, _, err, record = fit(rows)
    assert (code, record) == (3, None)
    assert "samples.ndjson, line 2: " in err
    assert message in err


@pytest.mark.slow(alone=False)
def test_features_of_samples_may_exceed_the_largest_message(fit):
    """500 candidates of 256 features: some megabytes."""
    wide = [((0.125 + place / 3,) * 256, float(place == 1)) for place in range(500)]
    code, _, err, record = fit(rows_of(0, wide), "--epochs=1")
    assert (code, err, record["updates"]) == (0, "", 1)
    assert len(record["weights"]) == 256


def test_features_of_samples_may_have_names(fit):
    rows = rows_of(0, [((1.0, 2.0), 1.0), ((1.0, 3.0), 0.0)], feature_names=["near", "new"])
    assert fit(rows)[3]["feature_names"] == ["near", "new"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs=0"], "--epochs 0 is not accepted"),
        (["--set=initial_weights=1,2"], "initial_weights has 2 numbers for 1 features"),
        (["--set=loss=hinge"], "Accepted: softmax or pairwise_logistic or"),
        (["--set=learning_rate=0"], "Accepted: a number > 0"),
        (["--set=batch_queries=0"], "Accepted: an integer from 1"),
        (["--from=5"], "samples have no times"),
        (
            ["--set=learning_rate=1e308", "--set=loss=pointwise_squared"],
            "Set a smaller learning_rate",
        ),
    ],
)
def test_invalid_arguments_are_refused_without_output_files(fit, arguments, message):
    group = rows_of(0, [((1e5,), 2.0), ((2e5,), 0.0)])
    code, _, err, record = fit(group, *arguments)
    assert (code, record, err.count("\n")) == (2, None, 1)
    assert message in err


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_whose_sum_overflows_are_refused(fit, loss):
    group = [((1.0,), 0.0), ((0.0,), 2.0)]
    code, out, err, record = fit(
        flat([group] * 30), "--epochs=3", f"--set=loss={loss}", "--set=initial_weights=1e308"
    )
    assert (code, out, record, err.count("\n")) == (2, "", None, 1)
    assert "Set a smaller learning_rate" in err


def test_a_file_that_is_not_empty_is_kept_unless_forced(fit, tmp_path, capsys):
    rows = flat(seeded_groups(3))
    assert fit(rows)[0] == 0
    written = tmp_path / "deep" / "weights.json"
    before = written.read_bytes()
    samples = tmp_path / "samples.ndjson"
    command = ["fit", f"--samples={samples}", f"--out={written}", *PLAIN, "--epochs=1"]
    assert main(command) == 2
    assert "is not empty. Name another file, or add --force" in capsys.readouterr().err
    assert written.read_bytes() == before
    assert main([*command, "--force"]) == 0
    assert written.read_bytes() != before
    assert [path.name for path in written.parent.iterdir()] == ["weights.json"]
    assert main([*command[:2], f"--out={tmp_path}"]) == 2
    assert main([*command[:2], f"--out={samples}/below/w.json"]) == 2


def test_a_link_is_followed_and_a_special_file_is_kept(fit, tmp_path, capsys):
    rows = flat(seeded_groups(3))
    assert fit(rows)[0] == 0
    pipe, link, target = (tmp_path / name for name in ("pipe", "link", "target.json"))
    os.mkfifo(pipe)
    link.symlink_to(target)
    command = ["fit", f"--samples={tmp_path / 'samples.ndjson'}", *PLAIN, "--epochs=1", "--force"]
    assert main([*command, f"--out={pipe}"]) == 2
    assert "is a device or a pipe. Name a file." in capsys.readouterr().err
    assert pipe.is_fifo()
    assert main([*command, f"--out={link}"]) == 0
    assert link.is_symlink()
    assert target.is_file()
