"""`--skip`: the offsets that it selects."""

from types import SimpleNamespace

import pytest

from evaluator.cli import main
from evaluator.cli.wiring import UsageError, skips_of
from evaluator.config import Settings
from tests.replay.running import judgment, put, ranking

SETTINGS = Settings(topic_prefix="shop-")


def arguments_with(*skip):
    return SimpleNamespace(skip=list(skip))


def test_offsets_are_given_singly_or_as_a_range_and_merged():
    found = skips_of(
        arguments_with("shop-rankings-0:5", "shop-rankings-0:6-9", "shop-judgments-12:0"), SETTINGS
    )
    assert found == {("rankings", 0): [(5, 9)], ("judgments", 12): [(0, 0)]}
    assert skips_of(arguments_with(), SETTINGS) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings:5", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:-1", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:9-8", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:9223372036854775808", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:" + "9" * 5_000, "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-\u0663:5", "is not TOPIC-PARTITION:OFFSET"),
        (
            "rankings-0:5",
            "The input topics are shop-rankings and shop-judgm",
        ),
        ("shop-settled-0:5", "does not name an input"),
    ],
)
def test_invalid_offsets_of_an_input_are_refused(text, reason):
    with pytest.raises(UsageError, match=reason):
        skips_of(arguments_with(text), SETTINGS)


def test_a_replay_refuses_offsets_of_a_missing_partition(tmp_path, capsys):
    put(tmp_path / "logs", "rankings.ndjson", [ranking("t", 1_000)])
    put(tmp_path / "logs", "judgments.ndjson", [judgment("t", 1_500)])
    out = tmp_path / "out"
    command = ["replay", f"--source=file://{tmp_path / 'logs'}", f"--out={out}"]
    assert main([*command, "--skip=rankings-1:5"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "partition 1 of rankings, and the inputs have 1 partition, 0" in line
    assert not out.exists()
    assert main([*command, "--skip=rankings-0:5"]) == 0
