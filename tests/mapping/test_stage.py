"""The stage before the decoder: offsets, clocks, the ledger, and dead letters."""

import json
from functools import partial

from structlog.testing import capture_logs

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.types.records import DeadLetter, Outputs
from evaluator.mapping.document import read_document
from evaluator.mapping.stage import Stage
from evaluator.mapping.watch import MessageWatch
from evaluator.wire.messages.codec import decode_judgments
from evaluator.wire.messages.staged import restored
from evaluator.wire.records import KEPT_BYTES, MAX_RECORD_BYTES, Records, packed_headers

SKEW_MS = 300_000
CLICKS = """
[judgments]
trace_id = "t"
node_id = { const = "n" }
timestamp_ms = "at"
candidate_id = "c"
grade = { path = "act", table = { click = 1, bad = 99 } }
"""
SEVERAL = """
[judgments]
trace_id = "t"
[judgments.rows]
each = "r"
node_id = "n"
timestamp_ms = "at"
candidate_id = "c"
grade = "g"
"""
decode = partial(decode_judgments, max_future_skew_ms=SKEW_MS)


def stage_of(text):
    ((_, mapping),) = read_document(text, "m.toml").logs.items()
    return Stage(mapping, max_future_skew_ms=SKEW_MS)


def records_of(*values, log="judgments", first=10, times=None, headers=None, keys=None):
    n = len(values)
    values = [json.dumps(v).encode() if isinstance(v, dict) else v for v in values]
    records = Records.of(log, 0, range(first, first + n), list(keys or [b"k%d" % i for i in range(n)]), values, times, first + n, MAX_RECORD_BYTES)  # fmt: skip
    if headers is None:
        return records
    packed = ByteStrings.of([packed_headers(each) for each in headers])
    return Records(
        **{name: getattr(records, name) for name in Records.__slots__} | {"headers": packed}
    )


def click(at, act="click", trace="t"):
    return {"t": trace, "at": at, "c": "x", "act": act}


def test_a_topic_that_gives_no_message_is_logged_with_its_reason():
    ((_, mapping),) = read_document(CLICKS, "m.toml").logs.items()
    now = [0.0]
    watch = MessageWatch("clicks", lambda: now[0])
    stage = Stage(mapping, max_future_skew_ms=SKEW_MS, watch=watch)
    views = [click(1, act=f"view {number}") for number in range(600)]

    def logged_at(seconds, *values):
        now[0] = seconds
        with capture_logs() as lines:
            stage.decoded(records_of(*values), decode)
        return lines

    assert not logged_at(0, *views, {"act": "click"})
    assert not logged_at(59, *views)
    (line,) = logged_at(60, *views)
    assert (line["event"], line["topic"]) == ("topic_without_messages", "clicks")
    assert (line["records"], line["of_this_reason"]) == (1_801, 1_800)
    assert line["reason"] == "judgments.grade: act is ..., not in the table"
    assert line["command"] == "evaluator mapping try"
    assert not logged_at(659, *views)
    assert len(logged_at(660, None, *views)) == 1  # a heartbeat is no message
    assert not logged_at(2_000, click(5), *views)
    assert not logged_at(2_001, *views)
    assert not logged_at(2_060, *views[:300])
    (line,) = logged_at(2_061, *[{"act": "click"}] * 1_500)
    assert line["reason"].startswith("mapping: judgments.trace_id: t is missing; needed: text")


def letters(stage, columns):
    outputs = Outputs(dead_letters=list(columns.malformed))
    return restored(outputs, {"judgments": stage}).dead_letters


def test_a_record_left_out_moves_the_clock_by_its_mapped_timestamp_if_valid():
    stage = stage_of(CLICKS)
    records = records_of(
        click(1), click(5, "view"), click("no time", "view"), click(-1, "view"), click(2)
    )
    columns = stage.decoded(records, decode)
    assert columns.offsets.tolist() == [10, 14]
    assert (columns.n_left_out, columns.n_left_out_timed, columns.n_heartbeats) == (3, 1, 0)
    assert columns.heartbeat_offsets.tolist() == [11]
    assert columns.heartbeat_timestamps_ms.tolist() == [5]
    assert (columns.n_read, columns.next_offset) == (5, 15)


def test_a_timestamp_in_the_future_moves_no_clock():
    late = SKEW_MS + 1
    columns = stage_of(CLICKS).decoded(records_of(click(late, "view"), times=[0]), decode)
    assert (columns.n_left_out, columns.n_left_out_timed) == (1, 0)
    columns = stage_of(CLICKS).decoded(records_of(click(SKEW_MS, "view"), times=[0]), decode)
    assert columns.heartbeat_timestamps_ms.tolist() == [SKEW_MS]


def test_a_record_without_a_value_is_a_heartbeat_and_with_debezium_a_tombstone():
    columns = stage_of(CLICKS).decoded(records_of(None, times=[7]), decode)
    assert columns.heartbeat_timestamps_ms.tolist() == [7]
    assert columns.n_heartbeats == 1
    text = CLICKS.replace("[judgments]\n", '[judgments]\nenvelope = "debezium"\n')
    columns = stage_of(text).decoded(records_of(None, times=[7]), decode)
    assert (columns.n_left_out, columns.n_heartbeats) == (1, 0)


def test_a_dead_letter_has_the_original_bytes_key_and_headers():
    stage = stage_of(CLICKS)
    headers = [[("a", b"1"), ("b", None)], []]
    records = records_of(b"{", click(1, "bad"), headers=headers)
    refused, too_high = letters(stage, stage.decoded(records, decode))
    assert (refused.offset, refused.reason, refused.key, refused.value) == (
        10,
        "decode",
        b"k0",
        b"{",
    )
    assert refused.headers == [("a", b"1"), ("b", None)]
    assert (too_high.offset, too_high.reason) == (11, "limit")
    assert json.loads(too_high.value) == click(1, "bad")
    assert too_high.headers == []


def test_large_records_are_mapped_up_to_the_limit_and_dead_letters_truncated():
    stage = stage_of(CLICKS)
    large = json.dumps(click(1) | {"text": "x" * 300_000}).encode()
    too_large = b"x" * (MAX_RECORD_BYTES + 1)
    bad = json.dumps(click(1, "bad") | {"text": "x" * 300_000}).encode()
    columns = stage.decoded(records_of(large, too_large, bad), decode)
    assert columns.offsets.tolist() == [10]
    oversize, cut = letters(stage, columns)
    assert (oversize.reason, oversize.cut_from) == ("oversize", MAX_RECORD_BYTES + 1)
    assert (cut.reason, cut.cut_from, cut.value) == ("limit", len(bad), bad[:KEPT_BYTES])


def rows(*rows):
    return {"t": "t", "r": [{"n": n, "at": at, "c": "x", "g": g} for n, at, g in rows]}


def test_several_messages_are_in_the_order_of_offset_and_index():
    stage = stage_of(SEVERAL)
    columns = stage.decoded(records_of(rows(("a", 1, 1), ("b", 2, 1)), rows(("c", 3, 1))), decode)
    assert columns.offsets.tolist() == [10 << 10, (10 << 10) + 1, 11 << 10]
    assert columns.node_ids == ["a", "b", "c"]
    assert (columns.next_offset, columns.index_bits, columns.n_read) == (12, 10, 3)


def test_an_error_in_one_message_refuses_its_record_and_no_other():
    stage = stage_of(SEVERAL)
    records = records_of(rows(("a", 1, 1)), rows(("b", 1, 1), ("c", 1, 99), ("d", 1, 98)), rows())
    columns = stage.decoded(records, decode)
    assert columns.node_ids == ["a"]
    (letter,) = letters(stage, columns)
    assert (letter.offset, letter.reason) == (11, "limit")
    assert (columns.n_read, columns.n_left_out) == (3, 1)


def test_the_dead_letter_of_one_of_several_messages_has_it_and_its_index():
    stage = stage_of(SEVERAL)
    columns = stage.decoded(records_of(rows(("a", 1, 1), ("b", 2, 1))), decode)
    late = DeadLetter("judgments", 10 << 10 | 1, "late", "", columns.keys[1], columns.values[1])
    letter = stage.restored(late)
    assert (letter.offset, letter.key, letter.headers) == (10, b"k0", [("index", b"1")])
    assert json.loads(letter.value)["node_id"] == "b"
