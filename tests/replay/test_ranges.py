"""Times become offsets, also of records with timestamps of their own."""

import pytest

from evaluator.replay.ranges import LogRange, ReadRules, parse_time_ms
from evaluator.wire.records import Records
from tests.replay.running import ranking

SKEW_MS = 50


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0),
        ("1763690000000", 1_763_690_000_000),
        ("1970-01-01", 0),
        ("1970-01-02T00:00:00", 86_400_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:01Z", 1_000),
        ("19700101T000001Z", 1_000),
        ("1970-01-01T00:00:00.001", 1),
        ("1970-01-01T00:00:00.000001", 1),  # clocks count whole milliseconds
        ("1969-12-31T23:59:59", -1_000),
    ],
)
def test_a_moment_is_iso_8601_in_utc_or_epoch_milliseconds(text, expected_ms):
    assert parse_time_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "12.5", "2026-13-01", "١٢"])
def test_anything_else_is_refused_with_both_forms_named(text):
    with pytest.raises(ValueError, match=r"not a time.*2026-01-31T08:00:00Z.*epoch"):
        parse_time_ms(text)


class Topic:
    """A log whose records have timestamps; offsets begin at 10 and have gaps of 2."""

    def __init__(self, *records):
        self.records = [(10 + 2 * n, *record) for n, record in enumerate(records)]
        self.end = 10 + 2 * len(records)
        self.asked_from = None
        self.left = False

    async def bounds(self, log, partition):
        return 10, self.end

    async def seek_hint(self, log, partition, record_timestamp_ms):
        later = (o for o, record_ms, _ in self.records if record_ms >= record_timestamp_ms)
        return next(later, self.end)

    async def read(self, log, partition, start, end, *, max_records):
        self.asked_from = start
        rows = [record for record in self.records if start <= record[0] < end]
        try:
            for first in range(0, len(rows), max_records):
                some = rows[first : first + max_records]
                yield Records.of(
                    log=log,
                    partition=partition,
                    offsets=[offset for offset, _, _ in some],
                    keys=[None] * len(some),
                    values=[value for _, _, value in some],
                    timestamps_ms=[record_ms for _, record_ms, _ in some],
                    next_offset=some[-1][0] + 1,
                )
        finally:
            self.left = True


async def read(topic, from_ms=None, to_ms=None, max_records=2):
    read_records = []
    log_range = LogRange(
        topic,
        "rankings",
        0,
        ReadRules(
            max_future_skew_ms=SKEW_MS, max_poll_records=max_records, from_ms=from_ms, to_ms=to_ms
        ),
        on_read=read_records.append,
    )
    batches = [batch async for batch in log_range.read()]
    offsets = [offset for batch in batches for offset in batch.offsets.tolist()]
    beats = [offset for batch in batches for offset in batch.heartbeat_offsets.tolist()]
    return log_range, sorted(offsets + beats)


def plain():
    return Topic(*((at_ms, ranking(f"t-{at_ms}", at_ms)) for at_ms in (100, 200, 300, 400)))


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_range_ends_at_the_pinned_end_of_the_log(size):
    log_range, offsets = await read(plain(), max_records=size)
    assert offsets == [10, 12, 14, 16]
    assert (log_range.start, log_range.end) == (10, 18)


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_records_stamped_long_before_the_moment_are_not_read(size):
    topic = plain()
    log_range, offsets = await read(topic, from_ms=300, max_records=size)
    assert topic.asked_from == 14  # the first record stamped 300 - 50 or later
    assert offsets == [14, 16]
    assert (log_range.start, log_range.end) == (14, 18)


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_message_that_is_ahead_of_its_record_begins_the_range(size):
    topic = Topic(
        (100, ranking("a", 100)),
        (260, ranking("b", 305)),  # within the skew: its clock reaches 300 before 300 is stamped
        (270, ranking("c", 270)),
        (400, ranking("d", 400)),
    )
    _, offsets = await read(topic, from_ms=300, max_records=size)
    assert offsets == [12, 14, 16]


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_heartbeat_begins_and_ends_a_range(size):
    topic = Topic((100, ranking("a", 100)), (200, None), (150, ranking("b", 150)), (300, None))
    log_range, offsets = await read(topic, from_ms=200, to_ms=300, max_records=size)
    assert offsets == [12, 14]
    assert (log_range.start, log_range.end) == (12, 16)


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_moment_that_is_never_reached_makes_an_empty_range_at_the_end(size):
    log_range, offsets = await read(plain(), from_ms=440, max_records=size)
    assert offsets == []
    assert (log_range.start, log_range.end) == (18, 18)


async def test_reading_ends_with_the_range():
    topic = plain()
    _, offsets = await read(topic, to_ms=200, max_records=1)
    assert offsets == [10]
    assert topic.left
