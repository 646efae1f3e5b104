"""Sums of unbounded values."""

from evaluator.core.alarms.sums import HourlySums, integers


def test_sums_beyond_64_bits_are_exact():
    sums, values = HourlySums(), [(1 << 63) + 1, 5]
    sums.open.add(integers([1, 2]), integers([1, 1]), integers(values))
    sums.close(7)
    assert sums.of(7).values == sum(values)
    assert integers([1, 2]).dtype == int
