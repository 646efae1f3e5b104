"""The records that a mapper takes from its backlogs, and when a group may continue."""

import asyncio
import json
import time

import pytest
from structlog.testing import capture_logs

from evaluator.cli import main
from evaluator.mapping.backlog import NO_CLOCK, Backlog
from evaluator.mapping.document import read_document
from evaluator.mapping.mapper import Mapper, MapperSettings
from evaluator.mapping.progress import UNLIMITED, Note, RepeatRules, behind_ms, note_of
from evaluator.mapping.stage import Stage
from evaluator.ports import Assignment, Committed, Progress, SourceUnavailable, SourceUnusable
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records
from tests.simulation.clock import simulated_time

MAPPING = """
[rankings]
where = { kind = ["ranking"] }
trace_id = "t"
node_id = "q"
timestamp_ms = "at"
[rankings.rows]
candidate_id = "ids"
[judgments]
where = { kind = ["click"] }
trace_id = "t"
node_id = "q"
[judgments.rows]
each = "clicks"
timestamp_ms = "at"
candidate_id = "id"
grade = "g"
"""
DECODERS = {"rankings": decode_rankings, "judgments": decode_judgments}


def backlog(*values, clock_ms=NO_CLOCK, first=10, times=None):
    logs = read_document(MAPPING, "m.toml").logs
    stages = {
        log: (
            Stage(each, max_future_skew_ms=0),
            lambda records, log=log: DECODERS[log](records, max_future_skew_ms=0),
        )
        for log, each in logs.items()
    }
    texts = [None if each is None else json.dumps(each).encode() for each in values]
    n = len(texts)
    records = Records.of(
        "rankings", 0, range(first, first + n), [None] * n, texts, times, first + n
    )
    return Backlog(records, stages, clock_ms)


def ranking(at, **others):
    return {"kind": "ranking", "t": "a", "q": 1, "at": at, "ids": ["x"], **others}


def clicks(*times):
    return {
        "kind": "click",
        "t": "a",
        "q": 1,
        "clicks": [{"at": at, "id": "x", "g": 1} for at in times],
    }


def taken(backlog, limit_ms):
    portion = backlog.take(limit_ms)
    return None if portion is None else ([m[:2] for m in portion.messages], *portion[3:])


def test_records_are_taken_up_to_the_first_beyond_the_lead():
    waiting = backlog(ranking(5), clicks(4, 7), {"kind": "view"}, ranking(20), ranking(6))
    assert waiting.head_ms == 5
    assert taken(waiting, 4) is None
    assert taken(waiting, 6) == ([(10, "rankings")], 11, 5)
    assert taken(waiting, 19) == ([(11, "judgments")] * 2, 13, 7)
    assert waiting.head_ms == 20
    assert taken(waiting, 20) == ([(13, "rankings"), (14, "rankings")], 15, 20)
    assert waiting.is_empty


def test_a_record_whose_messages_span_more_than_the_lead_is_taken_whole():
    waiting = backlog(clicks(1, 1_000), ranking(1_001))
    assert waiting.head_ms == 1_000  # awaited by the partition, so the wait ends
    assert taken(waiting, 1_000) == ([(10, "judgments")] * 2, 11, 1_000)


def test_records_without_timestamps_wait_for_nothing():
    records = {"kind": "view"}, None, ranking("no time")
    waiting = backlog(*records, clock_ms=70, times=[1, 60, 1])
    portion = waiting.take(70)
    assert portion.outcomes == {"mapped": 0, "refused": 1, "heartbeat": 1, "left_out": 1}
    assert portion[3:] == (13, 70)
    ((offset, letter),) = portion.letters
    assert (offset, letter.reason) == (12, "mapping")
    assert json.loads(letter.value) == ranking("no time")


def test_a_batch_without_records_moves_the_offset():
    waiting = backlog()
    assert waiting.take(-5)[3] == 10
    assert waiting.is_empty


def test_a_record_that_no_stage_can_read_is_one_dead_letter():
    waiting = backlog([1])
    assert waiting.take(UNLIMITED).outcomes["refused"] == 1


def progress(offset, end, **note):
    return Progress(Committed(offset, Note(**note).text), end)


def test_a_member_waits_for_others_that_are_not_at_their_end():
    found = {
        ("rankings", 1): progress(5, 9, clock_ms=70),
        ("rankings", 2): progress(9, 9, clock_ms=2),
        ("judgments", 0): Progress(None, 0),
    }
    ends = {each: it.end for each, it in found.items()}
    assert behind_ms(found, ends) == 70
    assert behind_ms(found, {}) == NO_CLOCK
    more = {**found, ("judgments", 1): Progress(None, 3)}
    assert behind_ms(more, {**ends, ("judgments", 1): 3}) == NO_CLOCK
    assert behind_ms({}, {}) == UNLIMITED


class Topics:
    """A source and a sink: `found` are the batches of each poll, `logs` the ends of the logs."""

    assignment, revoking, known_end = Assignment(1, frozenset()), False, {}.get
    lane = letter_lane = lambda *_: ("rankings", 0)

    def __init__(self, ends):
        self.ends, self.found, self.written, self.asked = ends, [], [], 0

    async def nothing(self, *_, **__):
        return {}

    start = stop = committed = has_written = topic_ids = nothing

    @property
    def partitions(self):
        return frozenset(self.ends)

    async def progress(self):
        self.asked += 1
        return {each: Progress(None, end) for each, end in self.ends.items()}

    async def beginning(self, new):
        return dict.fromkeys(new, 0)

    async def end(self, partitions):
        return {each: self.ends[each] for each in partitions}

    async def commit(self, _):
        return True

    def seek(self, *_):
        pass

    stay_in_group = seek

    async def poll(self, partitions, **_):
        found = self.found.pop(0) if self.found else []
        assert {(each.log, each.partition) for each in found} <= set(partitions)
        return found

    async def emit(self, rows):
        for lane in rows.values():
            self.written += [json.loads(row.value)["timestamp_ms"] for row in lane]
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def test_a_partition_lost_between_two_turns_starts_at_its_commit():
    one, two = ("rankings", 0), ("rankings", 1)
    topics, sought = Topics({one: 0, two: 0}), []
    topics.seek = lambda partition, offset: sought.append((partition, offset))
    topics.release = lambda: setattr(topics, "revoking", False)
    names = {"rankings": "a", "judgments": "b"}
    settings = MapperSettings(
        group_id="g", topic_names=names, max_lead_ms=10, repeats=RepeatRules(1)
    )
    mapper = Mapper(topics, topics, {}, settings)
    await mapper._turn()
    assert sought == [(one, 0), (two, 0)]
    # Before the next turn the group assigns twice: another member had the first one and read on.
    topics.assignment, topics.ends, topics.revoking = Assignment(2, frozenset()), {two: 0}, True
    await mapper._turn()
    committed_at = Committed(7, Note(5, time.time_ns() // 1_000_000, drained=True).text)

    async def committed(new):
        return {one: committed_at} if one in new else {}

    topics.assignment, topics.ends, topics.committed = (
        Assignment(3, frozenset()),
        {one: 9, two: 0},
        committed,
    )
    await mapper._turn()
    assert sought[2:] == [(one, 7)]


def test_the_pauses_of_a_mapper_double_until_the_broker_answers():
    topics = Topics({})
    settings = MapperSettings(group_id="g", topic_names={}, max_lead_ms=10, repeats=RepeatRules(1))
    mapper, answers = Mapper(topics, topics, {}, settings), iter("----+--")

    async def turn():
        answer = next(answers, None)
        if answer is None:
            mapper.stop()
        elif answer == "-":
            raise SourceUnavailable("gone")

    mapper._turn = turn
    with capture_logs() as logs, simulated_time(int) as loop:
        loop.run_until_complete(mapper.run())
    waited = [line["seconds"] for line in logs if line["event"] == "mapper_waits"]
    assert waited == [0.25, 0.5, 1.0, 2.0, 0.25, 0.5]


async def test_a_recreated_topic_is_read_from_its_beginning_and_a_shorter_log_is_refused():
    one, two = ("rankings", 0), ("rankings", 1)
    topics, sought, ids = Topics({one: 9, two: 3}), {}, {"rankings": "new"}
    notes = {"clock_ms": 5, "at_ms": 1, "topic_id": "old"}
    commits = {one: Committed(7, Note(**notes).text), two: Committed(7, Note(**notes).text)}

    async def committed(new):
        return {each: commits[each] for each in new}

    async def topic_ids():
        return ids

    async def commit(found):
        commits.update(found)
        return True

    topics.committed, topics.topic_ids, topics.commit = committed, topic_ids, commit
    topics.seek = sought.__setitem__
    names = {"rankings": "a", "judgments": "b"}

    def mapper(*, accept_repeats=False):
        rules = RepeatRules(1, accept_repeats)
        settings = MapperSettings(group_id="g", topic_names=names, max_lead_ms=10, repeats=rules)
        return Mapper(topics, topics, {}, settings)

    first = mapper()
    await first._turn()
    assert sought == {one: 0, two: 0}  # also where the new topic has grown beyond the commit
    assert first.topics.n_recreated == {"rankings": 2}
    assert {note_of(each).topic_id for each in commits.values()} == {"new"}
    assert {note_of(each).clock_ms for each in commits.values()} == {NO_CLOCK}
    ids["rankings"] = "newer"  # while it is read
    first.topics._watched_at -= 3_600
    with pytest.raises(SourceUnusable, match="a was recreated while it was read: its id was new"):
        await first._turn()

    kept = Note(5, time.time_ns() // 1_000_000, drained=True, topic_id="newer").text
    commits.update({one: Committed(7, kept), two: Committed(4, kept)})
    with pytest.raises(SourceUnusable, match="offset 4 of a-1, beyond its end 3: "):
        await mapper()._turn()
    await mapper(accept_repeats=True)._turn()
    assert sought == {one: 7, two: 0}


def batch(log, first, *times):
    values = [json.dumps(ranking(at)).encode() for at in times]
    end = first + len(values)
    return Records.of(log, 0, range(first, end), [None] * len(values), values, None, end)


async def test_a_partition_formerly_at_its_end_holds_back_later_records():
    stage = (
        Stage(read_document(MAPPING, "m.toml").logs["rankings"], max_future_skew_ms=0),
        lambda records: decode_rankings(records, max_future_skew_ms=0),
    )
    names = {"rankings": "a", "judgments": "b"}
    stages = {log: {"rankings": stage} for log in names}
    topics = Topics({("rankings", 0): 0, ("judgments", 0): 0})
    settings = MapperSettings(
        group_id="g", topic_names=names, max_lead_ms=10, repeats=RepeatRules(1)
    )
    mapper = Mapper(topics, topics, stages, settings)
    steps = []

    async def turn(*found):
        topics.found = [list(found)]
        await mapper._turn()
        steps.append(sorted(topics.written))
        topics.written.clear()

    topics.ends["rankings", 0] = 1
    await turn(batch("rankings", 0, 50))
    await turn()  # the other one is at its end, and holds up no partition
    # An outage: meanwhile both have become longer, and the broker answers for one of them first.
    topics.ends.update({("rankings", 0): 2, ("judgments", 0): 2})
    await turn(batch("rankings", 1, 9_000))
    await turn()
    await turn(batch("judgments", 0, 60, 8_995))
    await turn()
    await turn()
    assert steps == [[], [50], [], [], [], [60], [8_995, 9_000]]
    # Records that lead no clock need no request.
    asked, mapper._committed_at = topics.asked, time.monotonic()
    topics.ends["rankings", 0] = 3
    await turn(batch("rankings", 2, 9_001))
    await turn()
    assert steps[-2:] == [[], [9_001]]
    assert topics.asked == asked


def test_commits_of_other_programs_have_no_note():
    for text in ("", "{", "[]", "\udc80", '{"clock_ms": "x"}', '{"a":' + "[" * 4_000):
        assert note_of(Committed(5, text)) == Note()
    note = Note(clock_ms=3, at_ms=4, drained=True)
    assert note_of(Committed(5, note.text)) == note


def test_positions_older_than_reserved_keys_are_refused():
    rules, partition = RepeatRules(1_000), ("rankings", 3)

    def require(rules=rules, **note):
        rules.require(partition, "clicks", Committed(7, Note(**note).text), end=7, now_ms=5_000)

    require(at_ms=4_000)
    require(at_ms=1, drained=True)
    require()
    require(RepeatRules(1_000, accept_repeats=True), at_ms=1)
    with pytest.raises(SourceUnusable, match="Records of clicks-3 from offset 7 on may have been"):
        require(at_ms=3_999)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("rankings", "--to rankings is not two topics. Give RANKINGS,JUDGMENTS."),
        ("a,a", "is not two topics"),
        ("a,b,c", "is not two topics"),
        ("a,clicks", "clicks is a topic of the mapping"),
    ],
)
def test_topics_to_write_must_be_two_other_topics(tmp_path, capsys, to, expected):
    text = MAPPING.replace("[judgments]", '[judgments]\ntopic = "clicks"')
    (tmp_path / "m.toml").write_text(text)
    source = ["--source=kafka://127.0.0.1:1", f"--mapping={tmp_path / 'm.toml'}"]
    assert main(["map", *source, f"--to={to}"]) == 2
    assert expected in capsys.readouterr().err


async def test_a_busy_partition_without_timestamps_holds_back_no_other():
    stage = (
        Stage(read_document(MAPPING, "m.toml").logs["rankings"], max_future_skew_ms=0),
        lambda records: decode_rankings(records, max_future_skew_ms=0),
    )
    names = {"rankings": "a", "judgments": "b"}
    stages = {log: {"rankings": stage} for log in names}
    topics = Topics({("rankings", 0): 1, ("judgments", 0): 0})
    settings = MapperSettings(
        group_id="g", topic_names=names, max_lead_ms=10, repeats=RepeatRules(1)
    )
    mapper, emit = Mapper(topics, topics, stages, settings), topics.emit
    topics.emit = lambda rows: emit(
        {lane: [row for row in of if row.value != b"{"] for lane, of in rows.items()}
    )
    for turn in range(6):
        first = 10 * turn
        topics.ends["judgments", 0] = first + 15  # the broker has always more
        bad = Records.of(
            "judgments", 0, range(first, first + 10), [None] * 10, [b"{"] * 10, None, first + 10
        )
        topics.found = [[*[batch("rankings", 0, 50)][turn:], bad]]
        await mapper._turn()
    assert topics.written == [50]


@pytest.mark.parametrize(
    "later",
    [
        {("judgments", 5): progress(9, 9, clock_ms=1), ("judgments", 6): Progress(None, 0)},
        {("judgments", 5): progress(2, 2, clock_ms=1)},
    ],
    ids=["a new partition", "a shorter log"],
)
async def test_waiting_records_count_partitions_that_change_meanwhile(later):
    topics = Topics({("rankings", 0): 1})
    log = read_document(MAPPING, "m.toml").logs["rankings"]
    stage = Stage(log, max_future_skew_ms=0), lambda of: decode_rankings(of, max_future_skew_ms=0)
    names = {"rankings": "a", "judgments": "b"}
    settings = MapperSettings(
        group_id="g", topic_names=names, max_lead_ms=10, repeats=RepeatRules(1)
    )
    mapper = Mapper(topics, topics, {"rankings": {"rankings": stage}}, settings)
    own, others = topics.progress, {("judgments", 5): progress(5, 9, clock_ms=1)}

    async def found():
        return {**await own(), **others}

    topics.progress, topics.found = found, [[batch("rankings", 0, 50)]]
    for _ in range(3):
        await mapper._turn()
    assert not topics.written
    others.clear()
    others.update(later)
    for _ in range(3):
        mapper._committed_at = 0
        await mapper._turn()
    assert topics.written == [50]
