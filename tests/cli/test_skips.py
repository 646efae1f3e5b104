"""`--skip`: which offsets it names."""

from types import SimpleNamespace

import pytest

from evaluator.cli.skips import skips_of
from evaluator.cli.wiring import UsageError
from evaluator.config import Settings

SETTINGS = Settings(topic_prefix="shop-")


def asked(*skip):
    return SimpleNamespace(skip=list(skip))


def test_offsets_are_named_one_by_one_or_as_a_range_and_merged():
    found = skips_of(
        asked("shop-rankings-0:5", "shop-rankings-0:6-9", "shop-judgments-12:0"), SETTINGS
    )
    assert found == {("rankings", 0): [(5, 9)], ("judgments", 12): [(0, 0)]}
    assert skips_of(asked(), SETTINGS) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings:5", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:-1", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:9-8", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:9223372036854775808", "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-0:" + "9" * 5_000, "is not TOPIC-PARTITION:OFFSET"),
        ("shop-rankings-\u0663:5", "is not TOPIC-PARTITION:OFFSET"),
        ("rankings-0:5", "names no input. Topics of the inputs are shop-rankings and shop-judgm"),
        ("shop-settled-0:5", "names no input"),
    ],
)
def test_what_names_no_offsets_of_an_input_is_refused(text, why):
    with pytest.raises(UsageError, match=why):
        skips_of(asked(text), SETTINGS)
