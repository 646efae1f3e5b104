"""`evaluator totals`: checkpoints of topics that were recreated are not mixed with others."""

import re
from dataclasses import replace

import pytest

from evaluator.cli.administration import totals_of
from evaluator.cli.wiring import fingerprint_of, new_engine
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.join.changes import LogId, Origin
from evaluator.core.types.records import LOGS
from evaluator.ports import SourceUnusable
from evaluator.wire.state.checkpoint import FORMAT, checkpoint_key, encode_checkpoint
from tests.tidy.tree import ROOT

SETTINGS = Settings()
NOW = {"rankings": "r", "judgments": "j"}


def records(*ids):
    """The checkpoint of each task, made of topics with these ids; of each a ranking was read."""
    made = {}
    for task, of_task in enumerate(ids):
        engine = new_engine(SETTINGS, measure_set(SETTINGS), task)
        head = engine.head
        head.origin = Origin({log: LogId(each) for log, each in zip(LOGS, of_task, strict=True)})
        head.read["rankings"]["read"] = head.read["rankings"]["heartbeat"] = 1
        value = encode_checkpoint(replace(engine.checkpoint(), head=head))
        made[task] = {checkpoint_key(task, fingerprint_of(SETTINGS)): value}
    return made


def test_checkpoints_of_other_topics_are_left_out_and_named():
    found = totals_of(records("rj", "rx", "xj", "rj"), SETTINGS, topic_ids=NOW)
    assert (found["tasks"], found["tasks_of_other_topics"]) == ([0, 3], [1, 2])
    assert found["tasks_missing"] == [1, 2]
    assert found["ledger"]["rankings"]["read"] == 2
    assert found["positions"].keys() == {f"{log}-{task}" for log in LOGS for task in (0, 3)}


def test_checkpoints_without_ids_count_as_ever():
    found = totals_of(records((None, None), "rj"), SETTINGS, topic_ids=NOW)
    assert found["tasks"] == [0, 1]


def test_who_may_not_see_the_topics_gets_totals_of_one_kind_or_none():
    assert totals_of(records("rj", "rj"), SETTINGS, topic_ids={})["tasks"] == [0, 1]
    with pytest.raises(SourceUnusable, match=r"several topics .* Grant Describe on the inputs"):
        totals_of(records("rj", "xj"), SETTINGS, topic_ids={})


def test_only_checkpoints_of_other_topics_are_none():
    with pytest.raises(SourceUnusable, match="1 of topics that were recreated since"):
        totals_of(records("xj"), SETTINGS, topic_ids=NOW)


def test_the_page_on_upgrading_has_the_errors_that_totals_ends_with_before_an_update():
    page = (ROOT / "docs" / "upgrading.md").read_text("utf-8")
    [of_task] = records("rj").values()
    [(key, value)] = of_task.items()
    earlier = value.replace(b'"format":%d,' % FORMAT, b'"format":%d,' % (FORMAT - 1), 1)
    for settings, found, error in (
        (replace(SETTINGS, maturity_ms=1), value, "No task has a checkpoint of these settings"),
        (SETTINGS, earlier, f"its format is {FORMAT - 1}, and this version reads {FORMAT}"),
    ):
        with pytest.raises(SourceUnusable) as raised:
            totals_of({0: {key: found}}, settings, topic_ids=NOW)
        assert error in str(raised.value)
        assert re.sub(r"\d+", "...", error) in page
