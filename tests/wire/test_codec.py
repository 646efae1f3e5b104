"""Accepted and refused records, and the content of columns."""

import json
import math

import numpy as np
import pytest
import xxhash
from msgspec.structs import replace

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.types.records import Stratum
from evaluator.wire.messages import codec, reference_rows
from evaluator.wire.messages.codec import decode_rankings
from evaluator.wire.messages.limits import RESERVED_RANKERS
from evaluator.wire.messages.strict import read_message
from evaluator.wire.records import KEPT_BYTES
from tests.wire.messages import (
    NOW_MS,
    SKEW_MS,
    as_bytes,
    judgment,
    judgments_of,
    ranking,
    ranking_by_the_models,
    rankings_of,
    records,
    refusal,
)


def spliced(message, name, token):
    """The message with the member *name* written as *token*, JSON or not."""
    text = json.dumps(message | {name: "HERE"}).encode()
    return text.replace(b'"HERE"', token)


def with_grade(grade):
    return judgment(grades={"weather": grade})


# --- malformed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "value", "reason"),
    [
        ("not JSON", b"hello", "decode"),
        ("cut off", as_bytes(ranking())[:-1], "decode"),
        ("two objects", as_bytes(ranking()) * 2, "decode"),
        ("JSON of another kind", b'["a", "list"]', "schema"),
        ("a JSON string", b'"text"', "schema"),
        ("null, which is no heartbeat", b"null", "schema"),
        ("a string for a number", ranking(scores=["1.7", 0.2]), "schema"),
        ("a string for a timestamp", ranking(timestamp_ms="1763690000000"), "schema"),
        ("a float for a timestamp", ranking(timestamp_ms=1.0), "schema"),
        ("a bool for a number", ranking(scores=[True, 0.2]), "schema"),
        ("a bool for the version", ranking(schema_version=True), "schema"),
        ("a number for an id", ranking(candidate_ids=["a", 1]), "schema"),
        ("NaN", spliced(ranking(), "scores", b"[NaN, 1]"), "non_finite"),
        ("NaN in an unknown member", spliced(ranking(), "note", b"NaN"), "non_finite"),
        ("Infinity", spliced(ranking(), "scores", b"[1, -Infinity]"), "non_finite"),
        ("1e999", spliced(ranking(), "scores", b"[1e999, 1]"), "non_finite"),
        ("5,000 digits", spliced(ranking(), "scores", b"[%s, 1]" % (b"9" * 5_000)), "non_finite"),
        ("a time of 5,000 digits", spliced(ranking(), "timestamp_ms", b"9" * 5_000), "schema"),
        (
            "1e999 in features",
            spliced(ranking(), "features", b"[[1, 1e999], [1, 2]]"),
            "non_finite",
        ),
        (
            "a huge integer",
            spliced(ranking(), "scores", b"[1" + b"0" * 5000 + b", 1]"),
            "non_finite",
        ),
        ("fewer scores than ids", ranking(scores=[1.7]), "schema"),
        ("more scores than ids", ranking(scores=[1, 2, 3]), "schema"),
        ("fewer ranks than ids", ranking(ranks=[1]), "schema"),
        ("a scorer of another length", ranking(scorers={"bm25": [1, 2, 3]}), "schema"),
        ("features for one of two", ranking(features=[[1, 2]]), "schema"),
        ("ragged features", ranking(features=[[1, 2], [3]]), "schema"),
        ("an empty row of features", ranking(features=[[1], []]), "schema"),
        (
            "other features than names",
            ranking(feature_names=["a"], features=[[1, 2]] * 2),
            "schema",
        ),
        ("too few propensities", ranking(propensities=[1]), "schema"),
        ("too few publishing times", ranking(published_ms=[1]), "schema"),
        ("another kind", ranking(candidate_kind="document"), "schema"),
        ("a kind that is no name", ranking(candidate_kind=["tool"]), "schema"),
        ("too few descriptions", ranking(descriptions=["a"]), "schema"),
        ("8,193 bytes of description", ranking(descriptions=["ä" * 4096 + "x", ""]), "limit"),
        ("too few graphs", ranking(graphs=[{}]), "schema"),
        ("8,193 bytes of text", ranking(graphs=[{"text": "x" * 8193}, {}]), "limit"),
        ("257 bytes of type", ranking(graphs=[{"type": "ä" * 128 + "x"}, {}]), "limit"),
        ("1,001 nodes", ranking(graphs=[{"nodes": [0] * 1001}, {}]), "limit"),
        ("10,001 edges", ranking(graphs=[{"edges": [0] * 10_001}, {}]), "limit"),
        (
            "descriptions of graphs",
            ranking(candidate_kind="graph", descriptions=["a", ""]),
            "schema",
        ),
        ("tools that are graphs", ranking(candidate_kind="tool", graphs=[{}, {}]), "schema"),
        ("tools and graphs", ranking(descriptions=["a", "b"], graphs=[{}, {}]), "schema"),
        ("neither scores nor ranks", ranking(scores=...), "schema"),
        ("no candidates member", ranking(candidate_ids=...), "schema"),
        ("nine scorers", ranking(scorers={f"s{k}": [1, 2] for k in range(9)}), "limit"),
        ("a scorer called served", ranking(scorers={"served": [1, 2]}), "schema"),
        ("1,001 candidates", ranking(candidate_ids=["a"] * 1001, scores=[1] * 1001), "limit"),
        ("257 features", ranking(features=[[1] * 257] * 2), "limit"),
        ("a 300 KiB message", ranking(query="q" * 300 * 1024), "oversize"),
        ("262,145 bytes", as_bytes(ranking()).ljust(262_145), "oversize"),
        ("deep nesting", spliced(ranking(), "note", b"[" * 100_000 + b"]" * 100_000), "limit"),
        ("65 levels", spliced(ranking(), "note", b"[" * 64 + b"]" * 64), "limit"),
        ("invalid UTF-8", as_bytes(ranking()).replace(b"flight", b"fl\xff"), "decode"),
        ("invalid UTF-8 in an unknown member", spliced(ranking(), "note", b'"\xff"'), "decode"),
        ("an encoded surrogate", spliced(ranking(), "query", b'"\xed\xa0\x80"'), "decode"),
        ("a lone surrogate", spliced(ranking(), "query", b'"\\ud800"'), "decode"),
        (
            "a lone surrogate in an unknown member",
            spliced(ranking(), "note", b'"\\udfff"'),
            "decode",
        ),
        ("a byte order mark", b"\xef\xbb\xbf" + as_bytes(ranking()), "decode"),
        ("an unknown version", ranking(schema_version=2), "version"),
        ("no version", ranking(schema_version=...), "schema"),
        ("a negative timestamp", ranking(timestamp_ms=-1), "limit"),
        ("a timestamp of 2^63", ranking(timestamp_ms=2**63), "limit"),
        ("a future timestamp", ranking(timestamp_ms=NOW_MS + SKEW_MS + 1), "future"),
        ("an empty trace_id", ranking(trace_id=""), "schema"),
        ("an id of 257 bytes", ranking(node_id="ä" * 128 + "x"), "limit"),
        *(
            (f"a long {where}", ranking(**{where: "ä" * 128 + "x"}), "limit")
            for where in ("model", "variant")
        ),
        ("a long scorer", ranking(scorers={"ä" * 128 + "x": [1, 2]}), "limit"),
        ("a long feature", ranking(feature_names=["x" * 257], features=[[1]] * 2), "limit"),
        ("a long name of a segment", ranking(segments={"ä" * 128 + "x": "de"}), "limit"),
        ("a long value of a segment", ranking(segments={"locale": "ä" * 128 + "x"}), "limit"),
        ("a long subtopic", ranking(subtopics={"a": ["sky", "ä" * 128 + "x"]}), "limit"),
        ("an empty candidate id", ranking(candidate_ids=["", "a"]), "schema"),
        ("an empty value", b"", "decode"),
    ],
)
def test_a_malformed_ranking_is_refused(what, value, reason):
    assert refusal(rankings_of(value))[0] == reason


@pytest.mark.parametrize(
    ("what", "value", "reason"),
    [
        ("empty grades", judgment(grades={}), "schema"),
        ("no grades", judgment(grades=...), "schema"),
        ("grades that are null", judgment(grades=None), "schema"),
        ("grade 1e9", with_grade(1e9), "limit"),
        ("a grade just above 31", with_grade(math.nextafter(31, 32)), "limit"),
        ("a string for a grade", with_grade("2"), "schema"),
        ("a bool for a grade", with_grade(True), "schema"),
        ("an overflowing grade", spliced(judgment(), "grades", b'{"a": -1e999}'), "non_finite"),
        ("1,001 grades", judgment(grades={str(k): 1 for k in range(1001)}), "limit"),
        ("an empty candidate id", judgment(grades={"": 1}), "schema"),
        ("a long judgment_id", judgment(judgment_id="j" * 257), "limit"),
        ("a long source", judgment(source="ä" * 128 + "x"), "limit"),
        ("a long subtopic", judgment(subtopics={"a": ["x" * 257]}), "limit"),
        ("a number for a source", judgment(source=3), "schema"),
    ],
)
def test_a_malformed_judgment_is_refused(what, value, reason):
    assert refusal(judgments_of(value))[0] == reason


def test_confluent_framing_is_named_with_a_remedy():
    reason, detail = refusal(rankings_of(b"\x00\x00\x00\x00\x2a" + as_bytes(ranking())))
    assert reason == "decode"
    assert "Confluent" in detail
    assert "schema id 42" in detail
    assert "produce plain JSON" in detail


def test_the_detail_names_the_member():
    assert "scores[1]" in refusal(rankings_of(ranking(scores=[1, "x"])))[1]
    assert "scorers.bm25[0]" in refusal(rankings_of(ranking(scorers={"bm25": ["x", 1]})))[1]
    assert "grades.weather" in refusal(judgments_of(with_grade(32)))[1]


def test_the_detail_stays_short_for_any_length_of_a_name():
    message = judgment(grades={"k" * 200_000: "x"})
    assert len(refusal(judgments_of(message))[1]) <= 300


def test_many_escaped_quotes_without_an_end_are_refused_quickly():
    value = b'{"a": [' + b"[" * 100 + b'"' + b'\\"' * 120_000
    assert refusal(rankings_of(value))[0] in {"decode", "limit"}


def test_a_dead_letter_keeps_key_value_and_offset():
    columns = rankings_of(ranking(), b"\xff", ranking(node_id="2"), first_offset=70)
    assert columns.offsets.tolist() == [70, 72]
    (letter,) = columns.malformed
    assert (letter.log, letter.offset, letter.key, letter.value) == (
        "rankings",
        71,
        b"key-1",
        b"\xff",
    )
    assert columns.next_offset == 73
    assert columns.n_read == 3


# --- accepted by rule ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("unknown members", ranking(note={"deep": [1, [2, {"three": None}]]})),
        ("an overflow in an unknown member", spliced(ranking(), "note", b"1e999")),
        ("no candidates", ranking(candidate_ids=[], scores=[])),
        ("no candidates, with empty features", ranking(candidate_ids=[], scores=[], features=[])),
        ("repeated candidate ids", ranking(candidate_ids=["a", "a"])),
        (
            "nulls for optional members",
            ranking(model=None, scorers=None, features=None, ranks=None),
        ),
        ("1,000 candidates", ranking(candidate_ids=["a"] * 1000, scores=[1] * 1000)),
        ("256 features", ranking(features=[[1] * 256] * 2)),
        ("8 scorers", ranking(scorers={f"s{k}": [1, 2] for k in range(8)})),
        (
            "8 scorers and a null one",
            ranking(scorers={f"s{k}": [1, 2] for k in range(8)} | {"n": None}),
        ),
        ("64 levels", spliced(ranking(), "note", b"[" * 63 + b"]" * 63)),
        ("262,144 bytes", as_bytes(ranking()).ljust(262_144)),
        ("an id of 256 bytes", ranking(node_id="ä" * 128)),
        (
            "names of 256 bytes",
            ranking(
                model="ä" * 128,
                variant="ä" * 128,
                scorers={"ä" * 128: [1, 2]},
                feature_names=["ä" * 128],
                features=[[1]] * 2,
                segments={"ä" * 128: "ö" * 128},
                subtopics={"a": ["ä" * 128]},
            ),
        ),
        ("ids of 256 characters", ranking(candidate_ids=["a" * 256, "b" * 256])),
        ("timestamp 0", ranking(timestamp_ms=0)),
        ("as far ahead as allowed", ranking(timestamp_ms=NOW_MS + SKEW_MS)),
        ("other languages", ranking(query="nach München ✈ 𝄞")),
        ("a surrogate pair", spliced(ranking(), "query", b'"\\ud834\\udd1e"')),
        ("features without names", ranking(features=[[1, 2], [3, 4]])),
        (
            "the last of a repeated member",
            as_bytes(ranking(scores="x"))[:-1] + b', "scores": [1, 2]}',
        ),
    ],
)
def test_a_ranking_is_accepted(what, value):
    columns = rankings_of(value)
    assert (len(columns), columns.malformed) == (1, [])


def test_a_message_without_a_timestamp_has_that_of_its_record():
    columns = rankings_of(ranking(timestamp_ms=...), timestamps_ms=NOW_MS - 7)
    assert columns.timestamps_ms.tolist() == [NOW_MS - 7]


@pytest.mark.parametrize("timestamps_ms", [None, -1])
def test_without_any_timestamp_a_message_is_malformed(timestamps_ms):
    columns = rankings_of(ranking(timestamp_ms=...), timestamps_ms=timestamps_ms)
    assert refusal(columns)[0] == "schema"


@pytest.mark.parametrize("timestamps_ms", [None, -1])
def test_the_future_is_not_checked_where_the_record_has_no_timestamp(timestamps_ms):
    assert len(rankings_of(ranking(timestamp_ms=2**63 - 1), timestamps_ms=timestamps_ms)) == 1


def test_the_largest_skew_allows_every_timestamp():
    batch = codec.Records.of("rankings", 0, [0], [None], [as_bytes(ranking())], [0], 1)
    assert len(codec.decode_rankings(batch, max_future_skew_ms=2**80)) == 1


def test_a_record_without_a_value_is_a_heartbeat():
    columns = rankings_of(ranking(), None, ranking(node_id="2"), timestamps_ms=[5, 6, 7])
    assert columns.heartbeat_offsets.tolist() == [1]
    assert columns.heartbeat_timestamps_ms.tolist() == [6]
    assert len(columns) + len(columns.malformed) == 2


def test_a_heartbeat_without_a_timestamp_is_malformed():
    assert refusal(judgments_of(None, timestamps_ms=-1))[0] == "schema"


# --- columns ---------------------------------------------------------------------------------


def test_scores_are_by_row_and_then_by_ranker():
    columns = rankings_of(
        ranking(scores=[1, 2], scorers={"b": [3, 4], "a": [5, 6]}),
        ranking(candidate_ids=["x"], scores=[7]),
        ranking(candidate_ids=[], scores=[], scorers={"a": []}),
        ranking(scores=..., ranks=[2, 1], scorers={"a": [8, 9]}),
        ranking(scores=[10, -0.0], ranks=[1, 1]),
    )
    nan = math.nan
    assert [stratum.rankers for stratum in columns.strata.values()] == [
        ("served", "a", "b"),
        ("served",),
        ("served", "a"),
        ("served", "a"),
        ("served",),
    ]
    assert columns.candidate_counts.tolist() == [2, 1, 0, 2, 2]
    expected = [1, 2, 5, 6, 3, 4, 7, nan, nan, 8, 9, 10, 0]
    np.testing.assert_array_equal(columns.scores, expected)
    assert not np.signbit(columns.scores[-1])
    assert columns.explicit_ranks == {3: [2, 1], 4: [1, 1]}
    assert columns.candidate_ids.values() == [
        "search_flights",
        "weather",
        "x",
        *["search_flights", "weather"] * 2,
    ]


def test_the_row_form_means_the_same_as_the_columns():
    rows = [{"id": "search_flights", "score": 1.7}, {"id": "weather", "score": 0.2}]
    columns = rankings_of(ranking(candidate_ids=..., scores=..., candidates=rows), ranking())
    assert columns.candidate_ids.values(0, 2) == columns.candidate_ids.values(2)
    assert columns.scores.tolist() == [1.7, 0.2] * 2


@pytest.mark.parametrize("half", ["score", "features"])
def test_a_member_is_in_all_rows_of_a_row_form_or_in_none(half):
    rows = [{"id": "a", "score": 1, "features": [1]}, {"id": "b", "score": 2, "features": [2]}]
    del rows[1][half]
    assert (
        refusal(rankings_of(ranking(candidate_ids=..., scores=..., candidates=rows)))[0] == "schema"
    )


def test_a_grade_is_withdrawn_by_null_or_a_negative_number():
    (grades,) = judgments_of(judgment(grades={"a": None, "b": -1, "c": -0.0, "d": 1.5})).grades
    assert grades == {"a": None, "b": None, "c": 0.0, "d": 1.5}
    assert math.copysign(1, grades["c"]) == 1
    assert list(grades) == ["a", "b", "c", "d"]


def test_integers_are_converted_to_float64_first():
    columns = rankings_of(ranking(scores=[2**53 + 1, 2**70]))
    assert columns.scores.tolist() == [float(2**53), float(2**70)]


def test_equal_bytes_have_equal_hashes():
    first, second, other = rankings_of(ranking(), ranking(), ranking(query="x")).hashes.tolist()
    assert first == second != other
    assert first == xxhash.xxh3_128_digest(as_bytes(ranking()))


def test_missing_texts_are_empty():
    columns = rankings_of(ranking(model=..., variant=None, query=...))
    assert columns.strata.values() == [Stratum("", "", ("served",))]
    assert columns.queries == [""]
    judged = judgments_of(judgment(source=..., judgment_id=...))
    assert (judged.sources, judged.judgment_ids) == ([""], [None])


def test_no_records_give_empty_columns():
    assert len(rankings_of()) == len(judgments_of()) == 0


# --- use of the fast path --------------------------------------------------------------------


@pytest.fixture
def no_models(monkeypatch):
    """Fails the test when a value is read by the models."""

    def refuse(value, model):
        raise AssertionError(f"left to the models: {value!r}")

    monkeypatch.setattr(reference_rows, "read_message", refuse)


ORDINARY = [
    ranking(),
    ranking(
        scorers={"bm25": [0.9, 1.1]},
        feature_names=["a", "b"],
        features=[[0.8, 0.5], [0.4, 1e-7]],
        segments={"locale": "de", "device": "mobile"},
    ),
    ranking(query="Flug nach München, größer 'als' \"alles\"\n"),
    ranking(scores=..., ranks=[2, 1]),
    ranking(features=[[1], [2]]),
    ranking(candidate_ids=[], scores=[]),
    ranking(propensities=[0.5, 1], published_ms=None, subtopics=None),
    ranking(candidate_kind=None, descriptions=None, graphs=None),
    ranking(
        model=None, timestamp_ms=None, features=None, producer={"host": "a", "tags": ["ä", "\n"]}
    ),
]


def test_ordinary_rankings_take_the_fast_path(no_models):
    columns = rankings_of(*ORDINARY * 50)
    assert len(columns) == 50 * len(ORDINARY)


def test_ordinary_judgments_take_the_fast_path(no_models):
    messages = [
        judgment(),
        judgment(judgment_id=..., source="größer"),
        judgment(grades={"a": None, "b": -1, "c": 0.5}),
        judgment(producer={"host": "ä"}, source=None, subtopics=None),
    ]
    assert len(judgments_of(*messages * 50)) == 200


def test_only_malformed_messages_are_read_by_the_models(monkeypatch):
    left = []

    def read(value, model):
        left.append(value)
        return read_message(value, model)

    monkeypatch.setattr(reference_rows, "read_message", read)
    odd = [b"hello", as_bytes(ranking(features=[[1, 2], [3]])), as_bytes(ranking(scores=[1]))]
    columns = rankings_of(*[ranking()] * 60, *odd, *[ranking()] * 60)
    assert left == odd
    assert (len(columns), len(columns.malformed)) == (120, 3)


def test_refused_timestamps_do_not_affect_other_rows(no_models):
    late = NOW_MS + SKEW_MS + 1
    for odd in ({0}, {59}, {3, 4, 40}, {0, 59}, set(range(60))):
        times = [late if row in odd else NOW_MS - row for row in range(60)]
        columns = rankings_of(*(ranking(trace_id=f"t{t}", timestamp_ms=t) for t in times))
        assert columns.timestamps_ms.tolist() == [t for t in times if t != late]
        assert columns.trace_ids == [f"t{t}" for t in times if t != late]
        assert [letter.offset for letter in columns.malformed] == sorted(odd)
        assert {letter.reason for letter in columns.malformed} == {"future"}


def test_truncated_values_are_oversize_by_their_whole_length():
    """A valid message and many spaces; its beginning alone is also valid."""
    padded = as_bytes(ranking()).ljust(300_000)
    whole = records("rankings", [ranking(), padded, None, padded, ranking(node_id="b")])
    cut = replace(
        whole,
        values=ByteStrings.of([value and value[:KEPT_BYTES] for value in whole.values]),
        oversize={1: len(padded), 3: len(padded), 99: 1 << 40},
    )
    of_whole, of_cut = (decode_rankings(each, max_future_skew_ms=SKEW_MS) for each in (whole, cut))
    assert of_cut.malformed == of_whole.malformed
    assert of_cut.offsets.tolist() == of_whole.offsets.tolist() == [0, 4]
    assert of_cut.heartbeat_offsets.tolist() == [2]
    assert [(letter.offset, letter.reason, letter.cut_from) for letter in of_cut.malformed] == [
        (1, "oversize", 300_000),
        (3, "oversize", 300_000),
    ]
    assert of_cut.malformed[0].value == padded[:KEPT_BYTES]
    assert "300000 bytes" in of_cut.malformed[0].detail


@pytest.mark.parametrize("name", ["", *sorted(RESERVED_RANKERS)])
def test_a_scorer_with_a_reserved_name_is_refused_by_both_paths(name):
    value = as_bytes(ranking(scorers={name: [1, 2]}))
    assert ranking_by_the_models(value) == "schema"
    assert refusal(rankings_of(value))[0] == "schema"
