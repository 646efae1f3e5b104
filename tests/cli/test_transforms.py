"""`feature_transforms` in `fit`, in its record, and in `replay --weights`."""

import json
import math

import pytest

from evaluator.cli import main
from tests.cli.test_fit import flat, seeded_groups
from tests.repeats import sized

DECLARED = "--set=feature_transforms=f0=clip:-1:1,f2=log1p"


def transformed(rows):
    """The rows whose features were transformed by their sender."""

    def of(a, b, c):
        return [min(max(a, -1.0), 1.0), b, math.copysign(math.log1p(abs(c)), c)]

    return [{**row, "features": of(*row["features"])} for row in rows]


@pytest.fixture
def run(tmp_path, capsys):
    """Writes rows as samples, and runs a command on them; the code, stdout and stderr."""

    def ran(command, rows, *arguments):
        path = tmp_path / "samples.ndjson"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = main([command, f"--samples={path}", *arguments, "--force"])
        return code, *capsys.readouterr()

    return ran


def test_declared_transforms_equal_transforms_of_the_sender(run, tmp_path):
    rows = flat(seeded_groups(sized(220, quick=60)))
    out, sent = tmp_path / "declared.json", tmp_path / "sent.json"
    tables = [
        run("fit", each, f"--out={path}", "--epochs=3", *more)[1].split("\n", 1)[1]
        for each, path, more in ((rows, out, (DECLARED,)), (transformed(rows), sent, ()))
    ]
    assert tables[0] == tables[1]
    records = [json.loads(path.read_bytes()) for path in (out, sent)]
    assert records[0]["weights"] == pytest.approx(records[1]["weights"], rel=1e-9)
    assert records[0]["transforms"] == {
        "f0": {"low": -1.0, "high": 1.0, "log1p": False},
        "f2": {"low": None, "high": None, "log1p": True},
    }
    assert "transforms" not in records[1]
    totals = []
    for each, path in ((rows, out), (transformed(rows), sent)):
        into = tmp_path / "out"
        assert run("replay", each, f"--weights={path}", f"--out={into}")[0] == 0
        totals.append(json.loads((into / "totals.json").read_bytes())["totals"])
    assert totals[0] == totals[1]
    assert "weights" in {row["ranker"] for row in totals[0]}


@pytest.mark.slow(alone=False)
def test_mismatched_names_and_weights_are_refused(run, tmp_path):
    rows, out = flat(seeded_groups(60)), tmp_path / "weights.json"
    wrong = run("fit", rows, f"--out={out}", "--set=feature_transforms=price=log1p")
    assert wrong[0] == 2
    assert (
        "feature_transforms names 'price', and the groups have the features f0, f1, f2" in wrong[2]
    )
    assert run("fit", rows, f"--out={out}", DECLARED)[0] in (0, 5)
    again = ("fit", rows, f"--out={tmp_path / 'next.json'}", f"--set=initial_weights={out}")
    assert run(*again, DECLARED)[0] in (0, 5)
    code, _, err = run(*again)
    assert (code, "for other transforms than those of feature_transforms" in err) == (2, True)
    code, _, err = run("fit", rows, f"--out={out}", "--set=feature_transforms=f0=root")
    assert (code, "clip:LOW:HIGH" in err) == (2, True)
