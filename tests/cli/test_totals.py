"""`evaluator totals`: checkpoints of recreated topics are not mixed with others."""

import json
import re
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from evaluator.cli import wiring
from evaluator.cli.totals import totals_of
from evaluator.cli.wiring import fingerprint_of, new_engine
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.join.changes import LogId, Origin
from evaluator.core.types.records import LOGS, OTHER
from evaluator.core.types.segments import SegmentRules
from evaluator.ports import RequestRefused, SourceUnusable
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records
from evaluator.wire.state.checkpoint import FORMAT, checkpoint_key, encode_checkpoint
from tests.replay.running import judgment, ranking
from tests.tidy.tree import ROOT

SETTINGS = Settings()
NOW = {"rankings": "r", "judgments": "j"}


def records(*ids, settings=SETTINGS):
    """The checkpoint of each task for topics with these ids; each has read one ranking."""
    made = {}
    for task, of_task in enumerate(ids):
        engine = new_engine(settings, measure_set(settings), task)
        head = engine.head
        head.origin = Origin({log: LogId(each) for log, each in zip(LOGS, of_task, strict=True)})
        head.read["rankings"]["read"] = head.read["rankings"]["heartbeat"] = 1
        value = encode_checkpoint(msgspec.structs.replace(engine.checkpoint(), head=head))
        made[task] = {checkpoint_key(task, fingerprint_of(settings)): value}
    return made


def test_checkpoints_of_other_topics_are_left_out_and_named():
    found = totals_of(records("rj", "rx", "xj", "rj"), SETTINGS, topic_ids=NOW)
    assert (found["tasks"], found["tasks_of_other_topics"]) == ([0, 3], [1, 2])
    assert found["tasks_missing"] == [1, 2]
    assert found["ledger"]["rankings"]["read"] == 2
    assert found["positions"].keys() == {f"{log}-{task}" for log in LOGS for task in (0, 3)}


def test_checkpoints_without_ids_are_counted():
    found = totals_of(records((None, None), "rj"), SETTINGS, topic_ids=NOW)
    assert found["tasks"] == [0, 1]


def test_without_the_right_to_describe_topics_totals_need_one_set_of_ids():
    assert totals_of(records("rj", "rj"), SETTINGS, topic_ids={})["tasks"] == [0, 1]
    with pytest.raises(SourceUnusable, match=r"several topics .* Grant Describe on the inputs"):
        totals_of(records("rj", "xj"), SETTINGS, topic_ids={})


def test_totals_of_only_checkpoints_of_other_topics_are_an_error():
    with pytest.raises(SourceUnusable, match="1 of topics that were recreated since"):
        totals_of(records("xj"), SETTINGS, topic_ids=NOW)


def test_the_page_on_upgrading_has_the_errors_of_totals_before_an_update():
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


SEGMENTED = replace(SETTINGS, segments=("locale",))
LATER = {"rankings": "r2", "judgments": "j2"}
LATEST = {"rankings": "r3", "judgments": "j3"}


def saved(path, ids, topic_ids, settings=SETTINGS, added=()):
    made = totals_of(records(*ids, settings=settings), settings, topic_ids=topic_ids, added=added)
    path.write_text(json.dumps(made))
    return path


def test_totals_of_other_topics_add_up_for_any_grouping(tmp_path):
    old = saved(tmp_path / "old", ["rj", "rj"], NOW, SEGMENTED)
    new = saved(tmp_path / "new", [("r2", "j2")] * 4, LATER, SEGMENTED)
    both = saved(tmp_path / "both", [("r2", "j2")] * 4, LATER, SEGMENTED, [old])
    newest = records(*[("r3", "j3")] * 8, settings=SEGMENTED)
    found, other = (
        totals_of(newest, SEGMENTED, topic_ids=LATEST, added=added)
        for added in ([new, old], [both])
    )
    assert found["ledger"]["rankings"]["read"] == 2 + 4 + 8
    assert [each["topic_ids"] for each in found["added"]] == [LATER, NOW]
    assert [each["tasks"] for each in found["added"]] == [[0, 1, 2, 3], [0, 1]]
    assert found["topic_ids"] == LATEST
    assert other == found


def totals_by_level(numbers, topic_ids, added=()):
    """The totals of queries with these levels; two of three levels have judgments."""
    engine = new_engine(SEGMENTED, measure_set(SEGMENTED), 0)
    rankings = [
        ranking(str(n), 1_000 + n, segments={"locale": f"l{number}"})
        for n, number in enumerate(numbers)
    ]
    judgments = [
        judgment(str(n), 1_000 + n, {"b": number % 3})
        for n, number in enumerate(numbers)
        if number % 3
    ]
    options = {"max_future_skew_ms": SEGMENTED.max_future_skew_ms}
    columns = {"features": False, "segments": SEGMENTED.segments}
    logs = [
        Records.of(log, 0, range(len(values)), [None] * len(values), values, None, len(values))
        for log, values in zip(LOGS, (rankings, judgments), strict=True)
    ]
    engine.receive(
        decode_rankings(logs[0], **options, **columns), decode_judgments(logs[1], **options)
    )
    head = engine.head
    head.origin = Origin({log: LogId(of) for log, of in topic_ids.items()})
    value = encode_checkpoint(msgspec.structs.replace(engine.checkpoint(), head=head))
    of_task = {0: {checkpoint_key(0, fingerprint_of(SEGMENTED)): value}}
    return totals_of(of_task, SEGMENTED, topic_ids=topic_ids, added=added)


def test_totals_of_levels_equal_those_of_one_run_for_any_grouping(tmp_path, monkeypatch):
    monkeypatch.setattr(wiring, "SegmentRules", partial(SegmentRules, max_levels=4))
    first, second, third = ([*range(*of)] * 2 for of in ((0, 30), (20, 50), (10, 40)))
    one = totals_by_level([*first, *second, *third], NOW)
    assert len(one["levels"]["locale"]) == 4
    assert {row["level"] for row in one["segments"]} > {OTHER}
    old, new, both = (tmp_path / name for name in ("old", "new", "both"))
    old.write_text(json.dumps(totals_by_level(first, NOW)))
    new.write_text(json.dumps(totals_by_level(second, LATER)))
    both.write_text(json.dumps(totals_by_level(second, LATER, [old])))
    for added in ([old, new], [new, old], [both]):
        found = totals_by_level(third, LATEST, added)
        for name in ("levels", "segments", "totals", "queries", "ledger"):
            assert found[name] == one[name], (name, added)


def test_totals_of_the_same_topics_or_of_another_meaning_are_not_added(tmp_path):
    old = saved(tmp_path / "old", ["rj"], NOW)
    unknown = saved(tmp_path / "unknown", ["rj"], {})
    unknown.write_text(unknown.read_text().replace('"rankings": "r"', '"rankings": null'))
    later, of_later = records(("r2", "j2")), saved(tmp_path / "later", [("r2", "j2")], LATER)
    for added in ([of_later], [old, old], [unknown]):
        with pytest.raises(RequestRefused, match="the same topics, or of a broker without ids"):
            totals_of(later, SETTINGS, topic_ids=LATER, added=added)
    other = saved(tmp_path / "other", ["rj"], NOW, replace(SETTINGS, maturity_ms=1))
    with pytest.raises(RequestRefused, match="other has another meaning"):
        totals_of(later, SETTINGS, topic_ids=LATER, added=[other])


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ('"meaning"', '"other"'),
        ('"format": 2', '"format": 1'),
        ('"read": 1', '"read": "1"'),
        ('"read": 1', '"read": 1.0'),
        ("{", "["),
    ],
)
def test_a_file_of_another_kind_is_not_added(tmp_path, text, by):
    old = saved(tmp_path / "old", ["rj"], NOW)
    assert text in old.read_text()
    old.write_text(old.read_text().replace(text, by, 1))
    with pytest.raises(SourceUnusable, match="old is not a document of `evaluator totals`"):
        totals_of(records(("r2", "j2")), SETTINGS, topic_ids=LATER, added=[old])
