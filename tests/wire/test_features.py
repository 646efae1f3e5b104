"""Features of rankings, if they are decoded: their content, and no other change."""

import random

import numpy as np
import pytest

from evaluator.core.types.candidates import Described, Graph
from evaluator.core.types.records import plain_feature_names
from evaluator.wire.messages import codec
from evaluator.wire.messages.decoders import RankingDecoder
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.models import Ranking
from evaluator.wire.messages.samples import Samples, feature_columns
from evaluator.wire.messages.strict import read_message
from evaluator.wire.native import library
from tests.repeats import repeated, sized
from tests.wire import messages, mutations
from tests.wire.messages import NOW_MS, SKEW_MS, ranking

TWO = [[0.5, -0.0, 3.0], [1.0, 2.5, 1e-300]]
NAMED = ["near", "new", "liked"]


def decoded(*values, features=True):
    batch = messages.records("rankings", values)
    return codec.decode_rankings(batch, max_future_skew_ms=SKEW_MS, features=features)


def rows_of(columns):
    """Names, values and propensities of each row."""
    features = columns.features
    rows = features.of_rows(columns.candidate_counts)
    return [
        (names, None if row is None else repr(row.tolist()), features.propensities.get(place))
        for place, (names, row) in enumerate(zip(features.names, rows, strict=True))
    ]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, (None, None, None)),
        ({"features": None, "feature_names": NAMED}, (None, None, None)),
        ({"features": TWO}, (("f0", "f1", "f2"), TWO, None)),
        ({"features": TWO, "feature_names": NAMED}, (tuple(NAMED), TWO, None)),
        ({"features": TWO, "propensities": [0.5, 1]}, (("f0", "f1", "f2"), TWO, [0.5, 1.0])),
        ({"features": [[], []]}, (None, None, None)),
        (
            {"candidate_ids": [], "scores": [], "features": [], "feature_names": NAMED},
            (tuple(NAMED), [], None),
        ),
        (
            {
                "candidate_ids": ...,
                "scores": ...,
                "candidates": [{"id": "a", "score": 1, "features": [2]}],
            },
            (("f0",), [[2.0]], None),
        ),
        (
            {"features": [[1.0, None, None], [None, None, 4.0]]},
            (("f0", "f1", "f2"), [[1.0, 0.0, 4.0], [1.0, 0.0, 4.0]], None),
        ),
        (
            {
                "candidate_ids": ...,
                "scores": ...,
                "candidates": [
                    {"id": name, "score": 1, "features": [feature]}
                    for name, feature in zip("abc", (2, None, 5), strict=True)
                ],
            },
            (("f0",), [[2.0], [3.5], [5.0]], None),
        ),
    ],
)
def test_features_are_kept_as_written(members, expected):
    plain = ranking(features=[[9.0], [8.0]])
    names, values, propensities = expected
    values = None if values is None else repr([[one + 0.0 for one in row] for row in values])
    assert rows_of(decoded(plain, ranking(**members), plain)) == [
        (("f0",), "[[9.0], [8.0]]", None),
        (names, values, propensities),
        (("f0",), "[[9.0], [8.0]]", None),
    ]


@pytest.mark.parametrize("name", ["", "\x1f", "\x1e", "a\x1eb", '"', "\u00e4\U0001f600", "x" * 256])
def test_names_of_features_may_be_any_text(name):
    named = ranking(features=TWO, feature_names=[name, "b", name])
    other = ranking(features=TWO, feature_names=["b", name, name])
    found = decoded(named, named, other, ranking(features=TWO), named).features.names
    first, second = (name, "b", name), ("b", name, name)
    assert found == [first, first, second, ("f0", "f1", "f2"), first]


def test_ordinary_messages_with_features_take_the_fast_path():
    value = ranking(features=TWO, feature_names=NAMED, propensities=[0.5, 1])
    texts = messages.texts_of(*[messages.as_bytes(value)] * 3)
    part = RankingDecoder().rows(texts, 0, 3, features=True)
    assert len(part) == 3


def test_ordinary_messages_with_exposure_and_levels_take_the_fast_path():
    values = [
        ranking(exposed=[True, False], segments={"locale": "de", "x": None}, propensities=[0.5, 1]),
        ranking(exposed_top=3, segments={"x": "y"}),
        ranking(),
    ]
    texts = messages.texts_of(*map(messages.as_bytes, values))
    part = RankingDecoder().rows(texts, 0, 3, segments=("device", "locale"))
    assert part.levels.values() == [(("locale", "de"),), (), ()]
    assert part.exposed == {0: b"\x01\x00", 1: 3}
    assert part.propensities == {0: [0.5, 1.0]}


def test_a_decoder_reads_other_segments_from_one_call_to_the_next():
    decoder, texts = (
        RankingDecoder(),
        messages.texts_of(messages.as_bytes(ranking(segments={"locale": "de", "device": "tv"}))),
    )
    found = [
        part.levels and part.levels.values()
        for segments in (("locale",), ("device", "locale"), (), ("device",))
        if (part := decoder.rows(texts, 0, 1, segments=segments))
    ]
    assert found == [
        [(("locale", "de"),)], [(("device", "tv"), ("locale", "de"))], None, [(("device", "tv"),)],
    ]  # fmt: skip


def test_features_are_decoded_only_on_request():
    assert decoded(ranking(features=TWO), features=False).features is None


@pytest.mark.parametrize("built", [True, False])
def test_descriptions_of_candidates_are_kept_without_features(monkeypatch, built):
    if not built:
        monkeypatch.setattr(library, "BUILT", None)
    plain = ranking(features=[[9.0], [8.0]])
    tools = ranking(descriptions=["Finds flights.", None], propensities=[0.5, 1])
    graphs = ranking(
        graphs=[{"type": "a", "nodes": [1, {}], "edges": [[1, 2]]}, {"text": "b"}], query=...
    )
    found = decoded(
        *(plain, tools, ranking(candidate_kind="graph"), graphs),
        *(ranking(candidate_kind="tool", features=TWO), ranking(candidate_kind="tool"), plain),
    ).features
    ids = ("search_flights", "weather")
    assert found.described == {
        1: Described("tool", "book a flight", ids, ("Finds flights.", "")),
        3: Described("graph", "", ids, graphs=(Graph("a", "", 2, 1), Graph("", "b"))),
        5: Described("tool", "book a flight", ids),
    }
    plain_names = ("f0", "f1", "f2")
    assert found.names == [("f0",), None, None, None, plain_names, None, ("f0",)]
    assert found.propensities == {1: [0.5, 1.0]}


def random_ranking(rng):
    n, n_features = rng.randint(0, 4), rng.randint(0, 3)
    members = {"candidate_ids": [f"c{i}" for i in range(n)], "scores": [rng.random()] * n}
    if rng.random() < 0.8:
        members["features"] = [
            [rng.choice((0, -0.0, 1.5, -2e-9)) for _ in range(n_features)] for _ in range(n)
        ]
        if rng.random() < 0.5:
            members["feature_names"] = NAMED[:n_features]
    if rng.random() < 0.3:
        members["propensities"] = [rng.choice((0.25, 1))] * n
    if rng.random() < 0.2:
        members["timestamp_ms"] = NOW_MS + SKEW_MS + 1
    return ranking(**members)


def by_the_models(value):
    """The expected features of a well-formed ranking; None for any other value."""
    message = read_message(value, Ranking)
    if isinstance(message, Malformed) or (message.timestamp_ms or 0) > NOW_MS + SKEW_MS:
        return None
    rows = message.all_features()
    names = message.feature_names
    if rows and names is None:
        names = plain_feature_names(len(rows[0]))
    if rows is None or not names:
        return None, None, None
    rows = [[float(one) + 0.0 for one in row] for row in rows]
    return tuple(names), repr(rows), message.propensities


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("part", repeated(5, quick=1))
def test_features_equal_the_models_and_do_not_change_other_columns(monkeypatch, part, built):
    if not built:
        monkeypatch.setattr(library, "BUILT", None)
    rng = random.Random(part)
    values = [messages.as_bytes(random_ranking(rng)) for _ in range(sized(600, quick=200))]
    values = [mutations.mutant(value, rng) if rng.random() < 0.3 else value for value in values]
    found, plain = decoded(*values), decoded(*values, features=False)
    expected = [kept for kept in map(by_the_models, values) if kept is not None]
    assert rows_of(found) == expected
    assert len(expected) > len(values) / 2
    for name in plain.__struct_fields__:
        if name != "features":
            one, other = getattr(found, name), getattr(plain, name)
            if name in ("candidate_ids", "strata"):
                one, other = one.values(), other.values()
            if name == "texts":
                one, other = list(one), list(other)
            np.testing.assert_equal(one, other, err_msg=name)


def test_features_and_propensities_of_samples_are_kept_on_request():
    lines = [
        b'{"trace_id":"t","node_id":"n","tool":"a","features":[1,2],"propensity":0.5}',
        b'{"trace_id":"u","node_id":"n","tool":"a"}',
        b'{"trace_id":"t","node_id":"n","tool":"b","features":[3,-0.0],"label":1}',
        b'{"trace_id":"v","node_id":"n","tool":"a","features":[7],"feature_names":["near"]}',
    ]
    names = [("f0", "f1"), None, ("near",)]
    for asked, expected in (
        (True, (names, [1.0, 2.0, 3.0, 0.0, 7.0], {0: [0.5, 1.0]})),
        (False, ([None] * 3, [], {})),
    ):
        samples = Samples(features=asked)
        for line in lines:
            samples.add(line)
        found = feature_columns(samples.features())
        assert (found.names, found.values.tolist(), found.propensities) == expected
        assert decoded(*samples.rankings()).features.names == [None] * 3


def test_missing_features_of_samples_equal_those_of_the_same_ranking():
    """Every kind of gap, with numbers whose sum would overflow."""
    rng = random.Random(1)
    for _ in range(50):
        n, width = rng.randint(1, 6), rng.randint(1, 4)
        numbers = (None, 1e308, 1.7e308, 0.1, -3.0)
        rows = [[rng.choice(numbers) for _ in range(width)] for _ in range(n)]
        samples = Samples(features=True)
        for place, row in enumerate(rows):
            line = {"trace_id": "t", "node_id": "n", "candidate_id": f"c{place}", "features": row}
            samples.add(messages.as_bytes(line))
        ids = [f"c{place}" for place in range(n)]
        columns = decoded(ranking(candidate_ids=ids, scores=[0] * n, features=rows))
        found = feature_columns(samples.features())
        assert repr(found.values.tolist()) == repr(columns.features.values.tolist())
        for feature in range(width):
            given = [row[feature] for row in rows if row[feature] is not None]
            for place, row in enumerate(rows):
                value = found.values.reshape(n, width)[place, feature]
                if row[feature] is not None:
                    assert value == row[feature]
                else:
                    mean = sum(one / len(given) for one in given) if given else 0.0
                    assert value == pytest.approx(mean)


def test_a_feature_that_is_neither_a_number_nor_null_is_refused():
    for odd in ("1", True, [], {}, "NaN"):
        batch = messages.records("rankings", [ranking(features=[[1.0], [odd]])])
        columns = codec.decode_rankings(batch, max_future_skew_ms=SKEW_MS, features=True)
        assert len(columns) == 0
