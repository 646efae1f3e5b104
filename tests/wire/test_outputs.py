"""Output records, read back with the standard library."""

import base64
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn, Values
from evaluator.core.columns.texts import TextRows
from evaluator.core.measures import MISSING, MeasureSet
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.core.types.candidates import Described, Graph
from evaluator.core.types.records import (
    DeadLetter,
    EvaluationColumns,
    FinalWindow,
    LoggedQuery,
    OfferedColumns,
    SettledColumns,
    Stratum,
    WatermarkRecord,
)
from evaluator.wire.canonical import encode_document
from evaluator.wire.native import library
from evaluator.wire.outputs.encoding import (
    dead_letter_row,
    encode_dead_letters,
    encode_evaluations,
    encode_settled,
    encode_watermark,
    encode_windows,
    mean_of,
    totals_document,
    window_row,
)
from evaluator.wire.outputs.output_models import Settled
from evaluator.wire.outputs.settled import (
    WatchedReader,
    decode_settled,
    watched_of,
)
from evaluator.wire.outputs.sizes import MAX_OFFERED_BYTES
from evaluator.wire.records import OutputRecord
from tests.repeats import examples
from tests.wire.test_watched_decoder import as_list

ONE = 1 << 40


@pytest.fixture(autouse=True, params=["compiled", "in Python"])
def way(request, monkeypatch):
    """Every test here, with the compiled part and without it."""
    if request.param == "in Python":
        monkeypatch.setattr(library, "BUILT", None)


DEFAULT = MeasureSet.parse(["top1", "top3", "mrr", "ndcg@10", "map@10"])


def evaluations(*rows):
    """Rows as the engine groups them: alike in rankers, length of tops, and having a value."""
    groups = {}
    for changes in rows:
        row = {**ROW, **changes}
        groups.setdefault(group_of(row), []).append(row)
    return [columns_of(*alike[1:], members) for alike, members in groups.items()]


def columns_of(n_top, have_values, rows):
    tops = [pair for row in rows for top in row["top"] for pair in top]
    return EvaluationColumns(
        strata=DictionaryColumn.of([row["strata"] for row in rows]),
        n_top=n_top,
        texts=TextRows.of([row["texts"] for row in rows]),
        event_times_ms=np.array([row["event_times_ms"] for row in rows]),
        revisions=np.array([row["revisions"] for row in rows]),
        grades=GradeColumns.of([row["grades"] for row in rows]),
        first_ranks=np.array([rank for row in rows for rank in row["first_ranks"]]),
        top_ids=DictionaryColumn.of([candidate_id for candidate_id, _ in tops]),
        top_scores=np.array([score for _, score in tops], np.float64),
        units=np.array([row["units"] for row in rows]).reshape(-1) if have_values else None,
    )


ROW = {
    "texts": ("t-81", "plan/3", "book a flight"),
    "event_times_ms": 1763690000000,
    "strata": Stratum("tool-ranker", "prod", ("served",)),
    "revisions": 2,
    "grades": {"weather": 0.0, "search_flights": 2.0},
    "first_ranks": [1],
    "top": [[("search_flights", 1.7), ("weather", 0.2)]],
    "units": [ONE] * 5,
}


def values_of(columns, measures=DEFAULT, **options):
    records = encode_evaluations(columns, measures, **{"emit_query": True, **options})
    return [json.loads(record.value) for record in records]


def test_an_evaluation_has_exactly_the_documented_bytes():
    [record] = encode_evaluations(evaluations({}), DEFAULT, emit_query=True)
    assert record.key == b'["t-81","plan/3"]'
    assert record.value == (
        b'{"trace_id":"t-81","node_id":"plan/3","event_time_ms":1763690000000,'
        b'"model":"tool-ranker","variant":"prod","query":"book a flight","revision":2,'
        b'"grades":{"weather":0,"search_flights":2},"rank":{"served":1},'
        b'"top3":{"served":[["search_flights",1.7],["weather",0.2]]},'
        b'"values":{"served":{"top1":1.0,"top3":1.0,"mrr":1.0,"ndcg@10":1.0,"map@10":1.0}}}'
    )
    assert record.headers == ()


def test_only_the_query_is_omitted_on_request():
    [with_query] = values_of(evaluations({}))
    [without] = values_of(evaluations({}), emit_query=False)
    del with_query["query"]
    assert without == with_query
    assert list(without) == list(with_query)


def test_a_query_without_a_value_has_null_ranks_and_no_values():
    no_value = {"units": None, "grades": {}, "first_ranks": [0]}
    [value] = values_of(evaluations(no_value))
    assert (value["grades"], value["rank"], value["values"]) == ({}, {"served": None}, {})
    assert value["top3"] == {"served": [["search_flights", 1.7], ["weather", 0.2]]}


def test_without_a_ranked_relevant_candidate_the_rank_is_null():
    [value] = values_of(evaluations({"first_ranks": [0]}))
    assert value["rank"] == {"served": None}


def test_a_missing_score_is_null_in_the_top_three():
    [value] = values_of(evaluations({"top": [[("a", None)]]}))
    assert value["top3"] == {"served": [["a", None]]}


def test_a_measure_has_every_requested_spelling_in_that_order():
    measures = MeasureSet.parse(["hit@1", "mrr", "top1"])
    columns = evaluations({"units": [ONE, ONE // 2]})
    [value] = values_of(columns, measures)
    assert list(value["values"]["served"].items()) == [("hit@1", 1.0), ("mrr", 0.5), ("top1", 1.0)]


def test_a_value_that_a_query_lacks_has_no_member():
    measures = MeasureSet.parse(["alpha_ndcg@5", "mrr", "subtopic_recall@5"])
    columns = evaluations({"units": [MISSING, ONE // 2, MISSING]}, {"units": [0, ONE, ONE]})
    found = [value["values"]["served"] for value in values_of(columns, measures)]
    assert found == [
        {"mrr": 0.5},
        {"alpha_ndcg@5": 0.0, "mrr": 1.0, "subtopic_recall@5": 1.0},
    ]


def test_the_ceiling_of_map_graded_follows_it():
    measures = MeasureSet.parse(["map_graded@5"])
    [value] = values_of(evaluations({"units": [ONE // 4, ONE // 2]}), measures)
    assert value["values"]["served"] == {"map_graded@5": 0.25, "map_graded_ceiling@5": 0.5}


def test_every_ranker_gets_its_own_numbers():
    stratum = Stratum("m", "", ("served", "bm25"))
    columns = evaluations(
        {
            "strata": stratum,
            "first_ranks": [1, 2],
            "top": [[("a", 1.0)], [("b", 3.0)]],
            "units": [ONE, ONE, ONE, ONE, ONE, 0, ONE, ONE // 2, ONE // 4, ONE // 8],
        }
    )
    [value] = values_of(columns)
    assert value["rank"] == {"served": 1, "bm25": 2}
    assert value["top3"] == {"served": [["a", 1.0]], "bm25": [["b", 3.0]]}
    assert value["values"]["bm25"] == {
        "top1": 0.0,
        "top3": 1.0,
        "mrr": 0.5,
        "ndcg@10": 0.25,
        "map@10": 0.125,
    }


def test_rows_of_several_strata_have_their_own_labels_also_of_later_ones():
    shared = Values([Stratum("m", "a", ("served",)), Stratum('"m"', "b", ("served",))])
    for new in ([], [Stratum("n", "c", ("served",))]):
        shared += new
        (part,) = evaluations(*[{}] * 3)
        part.strata = DictionaryColumn(shared, np.array([1, len(shared) - 1, 0], np.int32))
        found = [(value["model"], value["variant"]) for value in values_of([part])]
        assert found == [('"m"', "b"), shared[-1][:2], ("m", "a")]


def test_fractional_grades_are_floats_and_whole_ones_integers():
    grades = {"a": 0.05, "b": 10.0, "c": 31.0, "d": 1e-9, "e": 2.0}
    [record] = encode_evaluations(evaluations({"grades": grades}), DEFAULT, emit_query=False)
    assert b'"grades":{"a":0.05,"b":10,"c":31,"d":1e-9,"e":2}' in record.value


def test_ids_that_look_like_numbers_are_unchanged():
    odd = ["x.0,", "1.0}", '2.0,"', ":2.0,", "3.0}\n", ".0", ""]
    grades = {name: float(n) for n, name in enumerate(odd)}
    [value] = values_of(evaluations({"grades": grades}))
    assert value["grades"] == dict(zip(odd, range(7), strict=True))


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
queries = st.text(st.characters(exclude_categories=["Cs"]))
units = st.one_of(st.sampled_from([0, ONE, ONE // 3]), st.integers(0, ONE))


@st.composite
def any_rows(draw):
    rows = []
    strata = draw(st.lists(st.tuples(texts, texts, st.lists(texts, max_size=2, unique=True))))
    for model, variant, scorers in strata:
        rankers = ("served", *(f"+{name}" for name in scorers))
        n, n_top = len(rankers), draw(st.integers(0, 3))
        score = st.none() | st.floats(allow_nan=False, allow_infinity=False)
        tops = st.lists(st.tuples(texts, score), min_size=n_top, max_size=n_top)
        rows.append(
            {
                "texts": (draw(texts), draw(texts), draw(queries)),
                "event_times_ms": draw(st.integers(0, 2**63 - 1)),
                "strata": Stratum(model, variant, rankers),
                "revisions": draw(st.integers(0, 1000)),
                "grades": draw(st.dictionaries(texts, st.floats(0, 31) | st.just(2.0), max_size=4)),
                "first_ranks": draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)),
                "top": draw(st.lists(tops, min_size=n, max_size=n)),
                "units": draw(st.none() | st.lists(units, min_size=5 * n, max_size=5 * n)),
            }
        )
    # Equal rows are adjacent, as in the output of the engine.
    alike = itertools.groupby(sorted(draw(st.permutations(rows * 2)), key=group_of), key=group_of)
    return [row for _, members in alike for row in members]


def group_of(row):
    return row["strata"].rankers, len(row["top"][0]), row["units"] is not None


def expected_evaluation(row):
    stratum, names = row["strata"], DEFAULT.spellings
    rankers, numbers = stratum.rankers, row["units"]
    known = numbers is not None
    return {
        "trace_id": row["texts"][0],
        "node_id": row["texts"][1],
        "event_time_ms": row["event_times_ms"],
        "model": stratum.model,
        "variant": stratum.variant,
        "query": row["texts"][2],
        "revision": row["revisions"],
        "grades": row["grades"],
        "rank": {
            ranker: (rank or None) if known else None
            for ranker, rank in zip(rankers, row["first_ranks"], strict=True)
        },
        "top3": {
            ranker: [list(pair) for pair in top]
            for ranker, top in zip(rankers, row["top"], strict=True)
        },
        "values": {
            ranker: {name: numbers[r * len(names) + i] / ONE for i, name in enumerate(names)}
            for r, ranker in enumerate(rankers)
        }
        if known
        else {},
    }


@settings(max_examples=examples(16), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_rows())
def test_any_batch_reads_back_row_by_row_in_order(rows):
    records = encode_evaluations(evaluations(*rows), DEFAULT, emit_query=True)
    assert [json.loads(record.value) for record in records] == list(map(expected_evaluation, rows))
    assert [json.loads(r.key) for r in records] == [list(r["texts"][:2]) for r in rows]
    assert not any(b"\n" in record.value for record in records)


@settings(max_examples=examples(16), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_rows())
def test_the_bytes_of_a_row_do_not_depend_on_other_rows(rows):
    together = encode_evaluations(evaluations(*rows), DEFAULT, emit_query=True)
    alone = [encode_evaluations(evaluations(row), DEFAULT, emit_query=True)[0] for row in rows]
    assert together == alone


@given(units)
def test_a_value_reads_back_to_the_same_double_and_no_shorter_text_does(unit):
    [record] = encode_evaluations(evaluations({"units": [unit] * 5}), DEFAULT, emit_query=False)
    text = record.value.rpartition(b":")[2].rstrip(b"}").decode()
    assert float(text) == unit / ONE
    digits = text.partition("e")[0].replace(".", "").strip("0")
    assert all(float(f"{unit / ONE:.{n}e}") != unit / ONE for n in range(len(digits) - 1))


# --- settled -----------------------------------------------------------------------------------


def settled():
    """Two queries of a stratum, of which the first is unjudged, and therefore separate."""
    stratum = Stratum("m", "v", ("served",))
    judged = SettledColumns(
        strata=DictionaryColumn.of([stratum] * 2),
        ns=np.array([7, 9]),
        texts=TextRows.of([("t-1", "", "q"), ("t-3", "n", "")]),
        event_times_ms=np.array([1000, 3000]),
        offsets=np.array([3, 5]),
        grades=GradeColumns.of([{"a": 1.0}, {"a": 0.5}]),
        units=np.array([ONE, ONE, ONE // 2, 0, 0, *[0] * 5]),
    )
    unjudged = SettledColumns(
        strata=DictionaryColumn.of([stratum]),
        ns=np.array([8]),
        texts=TextRows.of([("t-2", "n", "")]),
        event_times_ms=np.array([2000]),
        offsets=np.array([4]),
        grades=GradeColumns.of([{}]),
        units=None,
    )
    return [unjudged, judged]


def test_settled_records_have_a_number_and_their_settled_time():
    judged, unjudged, last = encode_settled(settled(), DEFAULT, task=3, maturity_ms=500)
    assert json.loads(last.value)["n"] == 9
    assert judged.key == b'["t-1",""]'
    assert judged.value == (
        b'{"n":7,"task":3,"trace_id":"t-1","node_id":"","event_time_ms":1000,'
        b'"settled_time_ms":1500,"offset":3,"model":"m","variant":"v","grades":{"a":1},'
        b'"values":{"served":{"top1":1.0,"top3":1.0,"mrr":0.5,"ndcg@10":0.0,"map@10":0.0}}}'
    )
    assert json.loads(unjudged.value) == {
        "n": 8,
        "task": 3,
        "trace_id": "t-2",
        "node_id": "n",
        "event_time_ms": 2000,
        "settled_time_ms": 2500,
        "offset": 4,
        "model": "m",
        "variant": "v",
        "grades": {},
        "values": {},
    }


def test_a_maturity_past_64_bits_is_written():
    first, *_ = encode_settled(settled(), DEFAULT, task=0, maturity_ms=10**30)
    assert json.loads(first.value)["settled_time_ms"] == 10**30 + 1000


def test_no_settled_queries_give_no_records():
    assert encode_settled([], DEFAULT, task=0, maturity_ms=0) == []


OFFERED = OfferedColumns(
    names=[("phi_rel", "phi_hist"), None],
    candidate_ids=[["a", "b"], []],
    features=[np.array([[0.5, 1.0], [0.0, -2.5]]), np.zeros((0, 0))],
    propensities=[[1.0, 0.25], None],
    described=[None, None],
    sources=[{"click": 2, "human": 1}, {}],
)


def test_training_data_of_a_query_are_the_last_members():
    _, judged = settled()
    judged.offered = OFFERED
    plain = encode_settled([replace(judged, offered=None)], DEFAULT, task=3, maturity_ms=500)
    first, second = encode_settled([judged], DEFAULT, task=3, maturity_ms=500)
    assert first.value == plain[0].value[:-1] + (
        b',"sources":{"click":2,"human":1},"candidate_ids":["a","b"],'
        b'"feature_names":["phi_rel","phi_hist"],"features":[[0.5,1.0],[0.0,-2.5]],'
        b'"propensities":[1.0,0.25]}'
    )
    assert second.value == plain[1].value[:-1] + b',"sources":{}}'
    for record in (first, second):
        Settled.model_validate({**json.loads(record.value), "node_id": "n"})


def test_levels_follow_the_variant_and_exposure_follows_the_values():
    unjudged, judged = settled()
    levels = DictionaryColumn.of([(("locale", "de"), ("device", "\u00e4")), ()])
    judged.levels, unjudged.levels = levels, DictionaryColumn.of([(("locale", "de"),)])
    judged.logged = [LoggedQuery(0b101, {"a": (3, 0.5)}), None]
    unjudged.logged = [LoggedQuery(0, {})]
    first, second, third = encode_settled([unjudged, judged], DEFAULT, task=3, maturity_ms=500)
    assert first.value == (
        b'{"n":7,"task":3,"trace_id":"t-1","node_id":"","event_time_ms":1000,'
        b'"settled_time_ms":1500,"offset":3,"model":"m","variant":"v",'
        b'"segments":{"locale":"de","device":"\xc3\xa4"},"grades":{"a":1},'
        b'"values":{"served":{"top1":1.0,"top3":1.0,"mrr":0.5,"ndcg@10":0.0,"map@10":0.0}},'
        b'"exposed":"5","logged":{"a":[3,0.5]}}'
    )
    assert second.value.endswith(
        b',"segments":{"locale":"de"},"grades":{},"values":{},"exposed":"0"}'
    )
    assert b',"segments":{},"grades":{"a":0.5},' in third.value
    assert third.value.endswith(b'"map@10":0.0}}}')
    judged.silent = np.array([False, True])
    plain, silent = encode_settled([judged], DEFAULT, task=3, maturity_ms=500)
    assert plain == first
    assert silent.value == third.value.replace(b',"grades"', b',"silent":true,"grades"')
    assert decode_settled(silent.value[:-1] + b',"sources":{}}', DEFAULT).silent
    for record in (first, second, third, silent):
        Settled.model_validate_json(record.value.replace(b'"node_id":""', b'"node_id":"n"'))
    query = decode_settled(first.value[:-1] + b',"sources":{}}', DEFAULT)
    assert (query.variant, query.segments) == ("v", {"locale": "de", "device": "\u00e4"})
    assert query.logged == LoggedQuery(0b101, {"a": (3, 0.5)})
    assert decode_settled(second.value[:-1] + b',"sources":{}}', DEFAULT).logged.exposed == 0
    assert decode_settled(third.value[:-1] + b',"sources":{}}', DEFAULT).logged is None


def listed(watched):
    """Columns as lists, watermark records as they are."""
    return [
        [as_list(column) for column in each] if isinstance(each, WatchedQueries) else each
        for each in watched
    ]


COLUMNS = [("served", "top1"), ("bm25", "top1"), ("absent", "top1")]
WATCHED = WatchedReader({"top1": "top1", "hit@1": "top1"}, COLUMNS)
SETTLED = (
    '{"n":%d,"task":3,"trace_id":"t-%d","node_id":"","event_time_ms":5,"settled_time_ms":%d,'
    '"offset":1,"model":"m","variant":"v","segments":{"locale":"de"},"grades":{"a":1},'
    '"values":{"served":{"hit@1":1.0,"mrr":0.5},"bm25":{"top1":0.25,"hit@1":0.25}}}'
)
WATCHED_VALUES = [
    (SETTLED % (0, 0, 8)).encode(),
    encode_watermark(WatermarkRecord(9, 1), task=3).value,
    (SETTLED % (1, 1, 9)).encode(),
]


def test_alarms_read_columns_equal_to_those_of_whole_queries():
    offsets = np.array([4, 5, 7])
    found, refused = WATCHED(ByteStrings.of(WATCHED_VALUES), offsets, 3)
    assert refused == []
    measures = MeasureSet.parse(["top1", "hit@1", "mrr"])
    whole = [
        decode_settled(value, measures, task=3, offset=at)
        for value, at in zip(WATCHED_VALUES, offsets.tolist(), strict=True)
    ]
    assert listed(found) == listed(watched_of(whole, offsets.tolist(), COLUMNS))
    first, watermark, second = found
    assert watermark == (5, WatermarkRecord(9, 1))
    assert (first.offsets.tolist(), second.ns.tolist()) == ([4], [1])
    assert first.has_value.tolist() == [[True, True, False]]
    assert first.units.tolist() == [[1 << 40, 1 << 38, 0]]
    assert list(first.rows(slice(1, None)).trace_ids) == []


@pytest.mark.parametrize(
    "odd",
    [
        b'{"n":2,\n"task":3}\n{"n":1,"task":3,"watermark_ms":1}',  # two records in one value
        b'{"n":2,\0"task":3,"watermark_ms":1}',
        b'{"n":2,"task":2,"watermark_ms":1}',
        b'{"n":2,"task":3}',
        b'{"n":1}',
        b"",
        None,
        b'{"n":1,"task":3,',
        b"\xff",
        b'{"n":2,"task":3,"watermark_ms":1,"x":' + 65 * b"[" + 65 * b"]" + b"}",
        b'{"n":2,"task":3,"settled_time_ms":1,"values":{"served":{"top1":null}}}',
    ],
)
def test_alarms_skip_an_unreadable_record_and_keep_the_others(odd):
    values = [WATCHED_VALUES[0], odd, *WATCHED_VALUES[1:]]
    found, [(offset, error)] = WATCHED(ByteStrings.of(values), np.arange(4), 3)
    assert offset == 1
    assert str(error)
    kept, _ = WATCHED(ByteStrings.of(WATCHED_VALUES), np.array([0, 2, 3]), 3)
    assert listed(found) == listed(kept)


def test_a_document_split_over_two_values_is_refused():
    halves = [b'{"n":2,"task":3,"x":{}', b'{},"watermark_ms":1}']
    _, refused = WATCHED(ByteStrings.of([*halves, WATCHED_VALUES[0]]), np.arange(3), 3)
    assert [offset for offset, _ in refused] == [0, 1]


def test_an_evaluation_has_its_levels_before_its_revision():
    (plain,) = evaluations({}, {"texts": ("t-82", "n", "")})
    levels = DictionaryColumn.of([(("locale", "de"), ("device", "tv")), ()])
    first, second = values_of([replace(plain, levels=levels)])
    assert first["segments"] == {"locale": "de", "device": "tv"}
    assert second["segments"] == {}
    names = list(first)
    assert names[names.index("segments") :][:2] == ["segments", "revision"]
    assert [{**each, "segments": {}} for each in values_of([plain])] == [
        {**each, "segments": {}} for each in (first, second)
    ]


TOOLS = Described("tool", "book \u00e4", ("a", "b"), ("", "Finds flights."))
GRAPHS = Described("graph", "", ("g", "g"), graphs=(Graph("plan", "do", 2, 1), Graph()))


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (
            TOOLS,
            (
                '"candidate_ids":["a","b"],"candidate_kind":"tool","query":"book \u00e4",'
                '"descriptions":["","Finds flights."]'
            ),
        ),
        (replace(TOOLS, descriptions=()), None),
        (
            GRAPHS,
            (
                '"candidate_ids":["g","g"],"candidate_kind":"graph","query":"","graphs":['
                '{"type":"plan","text":"do","n_nodes":2,"n_edges":1},'
                '{"type":"","text":"","n_nodes":0,"n_edges":0}]'
            ),
        ),
        (Described("tool", "q", ()), None),
    ],
)
@pytest.mark.parametrize("propensities", [None, [0.5, 1.0]])
def test_described_candidates_are_written_and_read_back(described, expected, propensities):
    unjudged, _ = settled()
    unjudged.offered = OfferedColumns(
        [None], [[]], [np.zeros((0, 0))], [propensities], [described], [{"human": 1}]
    )
    [record] = encode_settled([unjudged], DEFAULT, task=0, maturity_ms=0)
    assert expected is None or expected.encode() in record.value
    Settled.model_validate_json(record.value)
    query = decode_settled(record.value, DEFAULT)
    assert (query.described, query.feature_names) == (described, None)
    assert query.candidate_ids == list(described.candidate_ids)
    assert query.propensities == propensities


def test_an_incomplete_description_is_dropped():
    unjudged, _ = settled()
    unjudged.offered = OfferedColumns([None], [[]], [np.zeros((0, 0))], [None], [TOOLS], [{}])
    [record] = encode_settled([unjudged], DEFAULT, task=0, maturity_ms=0)
    for changed in (record.value.replace(b'"",', b""), record.value.replace(b'"tool"', b'"page"')):
        query = decode_settled(changed, DEFAULT)
        assert query.invalid_training_data
        assert (query.described, query.candidate_ids) == (None, ())


def test_training_data_too_large_for_a_topic_are_omitted_and_marked():
    unjudged, _ = settled()
    names = tuple(f"f{i}" for i in range(256))
    for n, fits in ((100, True), (110, False)):
        wide = np.full((n, 256), 1 / 3)  # 18 characters and a comma each
        unjudged.offered = OfferedColumns(
            [names], [["a"] * n], [wide], [None], [None], [{"human": 1}]
        )
        [record] = encode_settled([unjudged], DEFAULT, task=0, maturity_ms=0)
        document = json.loads(record.value)
        assert document["sources"] == {"human": 1}
        assert ("features" in document) == fits
        assert document.get("too_large", 0) > MAX_OFFERED_BYTES or fits
        Settled.model_validate_json(record.value)


def test_a_watermark_record_has_no_key():
    record = encode_watermark(WatermarkRecord(1_500, 7), task=3)
    assert record == OutputRecord(None, b'{"task":3,"watermark_ms":1500,"n":7}')


# --- windows and dead letters ------------------------------------------------------------------


def test_a_window_is_written_under_each_spelling_with_sums_of_any_size():
    measures = MeasureSet.parse(["hit@1", "top1", "mrr"])
    window = FinalWindow(60_000, "m", "v", "served", "top1", 3, 1 << 70)
    records = encode_windows([window], measures, window_ms=60_000, task=2)
    assert [record.key for record in records] == [
        b'[2,"m","v","served","hit@1",60000]',
        b'[2,"m","v","served","top1",60000]',
    ]
    assert json.loads(records[0].value) == {
        "start_ms": 60_000,
        "end_ms": 120_000,
        "model": "m",
        "variant": "v",
        "ranker": "served",
        "measure": "hit@1",
        "queries": 3,
        "sum_units": 1 << 70,
        "final": True,
    }


def test_a_row_of_the_windows_file_has_the_documented_members():
    window = FinalWindow(0, "m", "", "served", "mrr", 1, 5)
    assert list(window_row(window, window_ms=1)) == (
        "start_ms end_ms model variant ranker measure queries sum_units".split()
    )


LETTER = DeadLetter("judgments", 12, "decode", "not JSON: ü \udcff", None, b"\x00\xff")


def test_a_dead_letter_keeps_its_bytes_and_names_its_origin():
    [record] = encode_dead_letters([LETTER], {"judgments": "prod.judgments"}, partition=4)
    assert (record.key, record.value) == (None, b"\x00\xff")
    assert dict(record.headers) == {
        "topic": b"prod.judgments",
        "partition": b"4",
        "offset": b"12",
        "reason": b"decode",
        "detail": "not JSON: ü \\udcff".encode(),
    }


def test_a_row_of_the_dead_letters_file_has_bytes_in_base64():
    row = dead_letter_row(LETTER._replace(key=b"k"), "judgments", partition=0)
    assert list(row) == "topic partition offset reason detail key value".split()
    assert base64.b64decode(row["key"]) == b"k"
    assert base64.b64decode(row["value"]) == b"\x00\xff"
    assert dead_letter_row(LETTER, "judgments", partition=0)["key"] is None


# --- totals ------------------------------------------------------------------------------------


def test_totals_have_exactly_the_documented_members_when_nothing_was_read():
    document = totals_document({}, DEFAULT)
    assert list(document) == "format ledger dead_letters queries extra totals".split()
    assert document["ledger"]["rankings"] == dict.fromkeys(
        "read malformed heartbeat duplicate conflicting left_out open expired".split(), 0
    )
    assert document["ledger"]["judgments"] == dict.fromkeys(
        "read malformed heartbeat duplicate conflicting late orphan over_limit left_out early "
        "applied".split(),
        0,
    )
    assert document["queries"] == dict.fromkeys(
        "started with_value settled settled_judged settled_silent settled_unjudged".split(), 0
    )
    assert document["totals"] == []


def test_totals_rows_are_exact_and_have_the_requested_spellings():
    path = ("running", "m", "v", "served", "top1")
    tally = {
        ("rankings", "read"): 5,
        ("dead_letters", "late"): 2,
        ("extra", "out_of_order"): 1,
        (*path, "queries"): 3,
        (*path, "sum_units"): 1 << 40,
        ("settled", "m", "v", "served", "top1", "queries"): 0,
    }
    document = totals_document(tally, MeasureSet.parse(["hit@1"]))
    assert document["ledger"]["rankings"]["read"] == 5
    assert document["dead_letters"]["late"] == 2
    assert document["extra"] == {"out_of_order": 1}
    same = {"model": "m", "variant": "v", "ranker": "served", "measure": "hit@1"}
    assert document["totals"] == [
        {"kind": "running", **same, "queries": 3, "sum_units": 1 << 40, "mean": 1 / 3},
        {"kind": "settled", **same, "queries": 0, "sum_units": 0, "mean": None},
    ]


def test_a_mean_is_the_double_nearest_to_the_exact_quotient():
    big = 10**30
    assert mean_of((big << 40) // 3, big) == 1 / 3
    assert mean_of(0, 0) is None
    assert math.copysign(1, mean_of(0, 5)) == 1


def test_a_document_may_hold_integers_past_64_bits():
    assert encode_document({"sum_units": 1 << 80}) == b'{"sum_units":%d}' % (1 << 80)
