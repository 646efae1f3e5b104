"""Whether the two sides of a trace are in one partition, according to a sample."""

import pytest

from evaluator.adapters.kafka import PARTITIONERS
from evaluator.mapping.meeting import Placement, meeting

TRACES = [f"trace-{n}" for n in range(40)]


def placed(topic, traces, *, by="murmur2", n=4, key=str.encode):
    placement = Placement(topic, n)
    for trace in traces:
        partition = PARTITIONERS[by](trace.encode(), n)
        placement.add(trace, partition, key(trace), PARTITIONERS)
    return placement


def no_key(_):
    return None


@pytest.mark.parametrize(
    ("name", "key", "number"),
    [  # from the tests of the Java client, zlib and the authors of FNV
        ("murmur2", b"foobar", -790332482),
        ("murmur2", b"a-little-bit-long-string", -985981536),
        ("crc32", b"123456789", 0xCBF43926),
        ("fnv1a", b"", 0x811C9DC5 - (1 << 32)),
        ("fnv1a", b"foobar", 0xBF9CF968 - (1 << 32)),
    ],
)
def test_partitioners_hash_as_their_clients(name, key, number):
    n = 2_000_003
    positive = number & 0x7FFFFFFF if name == "murmur2" else abs(number)
    assert PARTITIONERS[name](key, n) == positive % n


def test_traces_in_partitions_of_equal_number_meet():
    verdict = meeting(placed("i", TRACES), placed("c", TRACES[:9], key=no_key))
    assert verdict.severity == "ok"
    assert verdict.what == (
        "All 9 traces that this sample has of both topics meet: 40 of 40 messages of i are keyed "
        "by trace_id, and its keys are placed by murmur2; c has no keys."
    )


def test_different_partitioners_separate_traces():
    verdict = meeting(placed("i", TRACES), placed("c", TRACES, by="crc32"))
    apart = sum(
        PARTITIONERS["murmur2"](trace.encode(), 4) != PARTITIONERS["crc32"](trace.encode(), 4)
        for trace in TRACES
    )
    assert verdict.severity == "error"
    assert verdict.what.startswith(f"{apart} of 40 traces are in partitions of different numbers")
    assert "placed by crc32" in verdict.what
    assert "Key both topics" in verdict.what_to_do
    assert "copy them with `evaluator map --mapping FILE --source " in verdict.what_to_do


def test_a_trace_in_several_partitions_does_not_meet():
    clicks = placed("c", TRACES)
    clicks.add(TRACES[0], (PARTITIONERS["murmur2"](TRACES[0].encode(), 4) + 1) % 4, b"user", {})
    assert meeting(placed("i", TRACES), clicks).severity == "error"
    assert (
        "40 of 41 messages of c are keyed by trace_id, and its keys are placed by an unknown"
        in (str(clicks))
    )


def test_partition_counts_that_differ_are_an_error():
    verdict = meeting(placed("i", TRACES), placed("c", TRACES, n=3))
    assert verdict[:2] == ("error", "i has 4 partitions and c has 3.")


def test_one_topic_for_both_kinds_is_copied():
    severity, what, advice = meeting(placed("all", TRACES), placed("all", TRACES, by="crc32"))
    assert severity == "warning"
    assert what == "all has rankings and judgments, and a worker reads two topics."
    assert advice.startswith("Copy them with `evaluator map --mapping FILE ")


def test_one_partition_is_enough():
    assert meeting(placed("i", TRACES, n=1), placed("c", [], n=1)).severity == "ok"


def test_without_common_traces_keys_decide():
    early, late = TRACES[:20], TRACES[20:]
    assert meeting(placed("i", early), placed("c", late)).what == (
        "Both topics are keyed by trace_id, with the partitioner murmur2."
    )
    for other in (
        placed("c", late, by="fnv1a"),
        placed("c", late, key=no_key),
        placed("c", late, key=lambda trace: trace.encode() * 2),
    ):
        verdict = meeting(placed("i", early), other)
        assert verdict.severity == "warning"
        assert "Take a larger sample" in verdict.what_to_do
    verdict = meeting(placed("i", early), placed("c", []))
    assert verdict.severity == "warning"
    assert verdict.what.endswith("no record of c is a message.")
    assert verdict.what_to_do.startswith("Correct the mapping first")
