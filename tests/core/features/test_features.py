"""The arithmetic of each feature, and the data that no feature uses."""

import doctest
import importlib
import pkgutil
from math import isclose, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evaluator.core import features
from evaluator.core.features import (
    FEATURE_NAMES,
    Described,
    Graph,
    HashedNgrams,
    Success,
    SuccessTable,
    features_of,
)
from evaluator.core.features.matrix import coop_of_graphs, coop_of_tools, struct_of_graphs
from tests.repeats import examples

MODULES = [f"{features.__name__}.{each.name}" for each in pkgutil.iter_modules(features.__path__)]


class Directions:
    """An embedder with a given vector for each text."""

    name = "told"

    def __init__(self, **vectors):
        self.vectors = vectors

    def embed(self, texts):
        return np.array([self.vectors[text.replace(" ", "_")] for text in texts], float)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_correct(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def matrix(described, embedder=None, history=None):
    return features_of(
        described, embedder=embedder or HashedNgrams(), history=history or SuccessTable()
    )


def column(described, name, **how):
    return matrix(described, **how)[:, FEATURE_NAMES.index(name)].tolist()


def test_relevance_is_the_cosine_scaled_to_0_to_1():
    embedder = Directions(
        q=[3, 4], same=[6, 8], across=[-4, 3], against=[-3, -4], half=[0, 1], no=[0, 0]
    )
    tools = Described("tool", "q", ["same", "across", "against", "half", "no"])
    expected = [(1 + 1) / 2, (1 + 0) / 2, (1 - 1) / 2, (1 + 4 / 5) / 2, (1 + 0) / 2]
    assert column(tools, "phi_rel", embedder=embedder) == pytest.approx(expected)


def test_an_empty_query_has_relevance_one_half_to_all():
    assert column(Described("tool", "", ["a_tool", "b"]), "phi_rel") == [0.5, 0.5]


def test_relevance_sees_a_tools_name_and_its_description():
    query = "the forecast for tomorrow"
    bare = Described("tool", query, ["weather", "forecast_weather", "weather"])
    described_tools = replace(bare, descriptions=["", "", "Gives the forecast."])
    without, named, _ = column(described_tools, "phi_rel")
    assert column(bare, "phi_rel") == pytest.approx([without, named, without])
    assert column(described_tools, "phi_rel")[2] > without
    assert named > without


def test_relevance_of_a_graph_is_that_of_its_text():
    graphs = [Graph("plan", "book a flight"), Graph("plan", "water the plants")]
    near, far = column(
        Described("graph", "a flight to book", ["g1", "g2"], graphs=graphs), "phi_rel"
    )
    assert near > 0.8
    assert far < 0.6


def test_history_is_by_name_of_a_tool_and_by_type_of_a_graph():
    one = 2**40
    history = SuccessTable(
        {
            ("tool", "plan"): Success(20 * one, 30),
            ("graph", "plan"): Success(3 * one, 10),
        }
    )
    of_tool, of_graph = (20 + 0.5 * 10) / (30 + 10), (3 + 0.5 * 10) / (10 + 10)
    tools = Described("tool", "q", ["plan", "unknown"])
    graphs = Described("graph", "q", ["unknown", "plan"], graphs=[Graph("plan"), Graph("other")])
    assert column(tools, "phi_hist", history=history) == [of_tool, 0.5]
    assert column(graphs, "phi_hist", history=history) == [of_graph, 0.5]


@pytest.mark.parametrize(
    ("query", "name", "expected"),
    [
        ("use search_flights now", "search_flights", 1.0),
        ("use SEARCH_flights now", "Search_Flights", 1.0),
        ("Straße", "STRASSE", 1.0),  # casefold, not lower
        ("a flight to book", "book_hotel", 0.7),
        ("a HOTEL", "book_hotel", 0.7),
        ("no part of it", "weather_forecast", 0.3),
        ("a trailing line adds no part", "weather_", 0.3),
        ("nor does one alone", "_", 0.3),
        ("", "weather", 0.3),
    ],
)
def test_cooperation_of_a_tool(query, name, expected):
    assert coop_of_tools(query, [name]) == [expected]


@pytest.mark.parametrize(
    ("query", "n", "size"),
    [
        ("one two three four", 0, 1.0),
        ("one two three four", 7, 1 / (1 + log(8))),
        ("", 3, 1 / (1 + log(4))),
        ("one two three four five", 0, 0.0),
        ("one two three four five", 7, log(8) / 5),
        ("one two three four five", 147, log(148) / 5),
        ("one two three four five", 148, 1.0),  # ln(149) is above 5
        ("one  two\tthree\nfour five six", 1_000, 1.0),
    ],
)
def test_cooperation_of_a_graph(query, n, size):
    assert coop_of_graphs(query, [Graph(n_nodes=n)]) == pytest.approx([0.8 * size + 0.2])


def test_structure_of_a_tool_comes_from_its_relevance():
    embedder = Directions(q=[1, 0], same=[1, 0], across=[0, 1], against=[-1, 0])
    tools = Described("tool", "q", ["same", "across", "against"])
    expected = [1.0, sqrt(0.5 + 0.1), sqrt(0.1)]
    assert column(tools, "phi_struct", embedder=embedder) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("nodes", "edges", "expected"),
    [
        ([4], [3], [0.6 * 3 / 4 + 0.4 * 0.5]),
        ([0], [0], [0.6 * 0 + 0.4 * 0.5]),
        ([0], [5], [0.6 * 0 + 0.4 * 0.5]),  # edges without nodes are no density
        ([2], [9], [0.6 * 1 + 0.4 * 0.5]),
        (
            [4, 2, 6],
            [4, 0, 3],
            [0.6 * 1 + 0.4 * 0, 0.6 * 0 + 0.4 * 3 / 5 / 2, 0.6 * 0.5 + 0.4 * 3 / 3 / 2],
        ),
        ([1, 0], [0, 0], [0.4 * 1 / 1 / 2, 0.4 * 1 / 1 / 2]),  # a mean below 1 counts as 1
        ([100, 1], [0, 0], [0.4 * 1, 0.4 * 99 / 100 / 2]),
    ],
)
def test_structure_of_graphs(nodes, edges, expected):
    graphs = [Graph(n_nodes=n, n_edges=m) for n, m in zip(nodes, edges, strict=True)]
    assert struct_of_graphs(graphs) == pytest.approx(expected)


def test_a_query_without_candidates_has_no_rows():
    assert matrix(Described("tool", "q", [])).shape == (0, 4)
    assert matrix(Described("graph", "q", [])).shape == (0, 4)


words = st.text(st.sampled_from("abc_ ÄßE天"), max_size=12)
graphs = st.builds(Graph, words, words, st.integers(0, 1_000), st.integers(0, 10_000))
tools = st.tuples(words.filter(bool), words)


@settings(max_examples=examples(100))
@given(words, st.lists(graphs, max_size=6), st.data())
def test_renaming_graphs_does_not_change_features(query, some, data):
    ids = data.draw(st.lists(words, min_size=len(some), max_size=len(some)))
    plain = Described("graph", query, [str(n) for n in range(len(some))], graphs=some)
    renamed = replace(plain, candidate_ids=ids)
    assert matrix(renamed).tobytes() == matrix(plain).tobytes()


@pytest.mark.parametrize("kind", ["tool", "graph"])
@settings(max_examples=examples(100))
@given(query=words, data=st.data())
def test_features_are_between_0_and_1_and_follow_the_order_of_candidates(kind, query, data):
    rows = data.draw(st.lists(graphs if kind == "graph" else tools, max_size=6))
    order = data.draw(st.permutations(range(len(rows))))
    plain, moved = (described(kind, query, some) for some in (rows, [rows[i] for i in order]))
    values = matrix(plain)
    assert values.shape == (len(rows), 4)
    assert ((values >= 0) & (values <= 1)).all()
    assert matrix(moved).tobytes() == values[order].tobytes()


def described(kind, query, rows):
    if kind == "graph":
        return Described("graph", query, [f"g{n}" for n in range(len(rows))], graphs=rows)
    return Described("tool", query, [name for name, _ in rows], [text for _, text in rows])


@settings(max_examples=examples(100))
@given(st.lists(tools, min_size=2, max_size=6), words)
def test_features_of_a_tool_do_not_depend_on_other_tools(some, query):
    whole = matrix(described("tool", query, some))
    alone = [matrix(described("tool", query, [row]))[0] for row in some]
    assert whole.tobytes() == np.array(alone).tobytes()


def test_lists_that_are_not_parallel_are_refused():
    with pytest.raises(ValueError, match="1 descriptions or graphs for 2"):
        Described("tool", "q", ["a", "b"], ["only one"])
    with pytest.raises(ValueError, match="0 descriptions or graphs for 1"):
        Described("graph", "q", ["a"])


@pytest.mark.parametrize("vector", [[np.nan, 0], [np.inf, 0]])
def test_an_embedder_that_gives_no_finite_numbers_is_refused(vector):
    with pytest.raises(ValueError, match="embedder told must give one row of finite numbers"):
        matrix(Described("tool", "q", ["a"]), embedder=Directions(q=[1, 0], a=vector))


def test_an_embedder_that_loses_a_text_is_refused():
    class Loses(HashedNgrams):
        def embed(self, texts):
            return super().embed(texts[1:])

    with pytest.raises(ValueError, match="2 texts"):
        matrix(Described("tool", "q", ["a"]), embedder=Loses())


def test_a_logarithm_is_the_nearest_double():
    # 1/(1 + ln(1 + n)) of n = 0 is 1; of others the libraries agree to the last digits or so
    assert coop_of_graphs("", [Graph(n_nodes=0)]) == [1.0]
    assert all(
        isclose(
            coop_of_graphs("", [Graph(n_nodes=n)])[0], 0.8 / (1 + log(1 + n)) + 0.2, rel_tol=1e-15
        )
        for n in range(examples(2_000))
    )
