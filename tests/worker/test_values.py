"""The distribution of settled values: counts by bucket, with a trace for low values."""

import numpy as np
import pytest

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.texts import TextRows
from evaluator.core.measures import MISSING, UNITS_PER_ONE
from evaluator.core.types.records import SERVED, LoggedQuery, SettledColumns, Stratum
from evaluator.core.types.tally import GroupedTally
from evaluator.exposition.snapshot import Exemplar, WorstQuery
from evaluator.worker.monitoring import ValueHistograms
from evaluator.worker.worst_queries import MAX_WORST, MAX_WORST_SERIES, WorstQueries
from tests.worker.harness import WorkerHarness
from tests.worker.traffic import traffic

STRATUM = Stratum("ranker", "prod", ("served", "bm25"))


def settled(values: list[list[float]]) -> SettledColumns:
    """Queries with these values: of served in mrr and top1, then of bm25."""
    n = len(values)
    return SettledColumns(
        strata=DictionaryColumn.of([STRATUM] * n),
        ns=np.arange(n),
        texts=TextRows.of([(f"t-{i}", "", "") for i in range(n)]),
        event_times_ms=np.zeros(n, np.int64),
        offsets=np.arange(n),
        grades=GradeColumns.of([{"a": 1.0}] * n),
        units=np.array([round(value * UNITS_PER_ONE) for row in values for value in row], np.int64),
    )


def test_a_value_is_counted_in_the_first_bucket_with_an_upper_bound_not_below_it():
    histograms = ValueHistograms(["mrr", "top1"], counted=["mrr"], warned=set())
    histograms.add([settled([[v, 1, 0.95, 1] for v in (0, 0.1, 0.3, 0.3000001, 1)])])
    served = ("bucket", "ranker", "prod", "served", "mrr")
    bm25 = ("bucket", "ranker", "prod", "bm25", "mrr")
    assert histograms.added_to(GroupedTally()) == {
        (*served, "0"): 1,
        (*served, "1"): 1,
        (*served, "3"): 1,
        (*served, "4"): 1,
        (*served, "10"): 1,
        (*bm25, "10"): 5,
    }


def test_low_buckets_have_the_latest_query_as_exemplar_and_high_ones_none():
    histograms = ValueHistograms(["mrr", "top1"], counted=["mrr"], warned=set())
    histograms.add([settled([[v, 1, 1, 1] for v in (0.04, 0.05, 0.9)])])
    key = ("bucket", "ranker", "prod", "served", "mrr", "1")
    assert histograms.take_exemplars() == {key: Exemplar("t-1", round(0.05 * UNITS_PER_ONE))}


def test_the_strata_of_a_part_have_their_own_buckets_and_exemplars():
    part = settled([[v, 1, 1, 1] for v in (0.05, 0.04, 0.03, 0.9)])
    part.strata = DictionaryColumn(
        [STRATUM, STRATUM._replace(variant="new")], np.array([1, 0, 1, 0])
    )
    histograms = ValueHistograms(["mrr", "top1"], counted=["mrr"], warned=set())
    histograms.add([part, part])
    new, prod = (("bucket", "ranker", variant, "served", "mrr") for variant in ("new", "prod"))
    counted = histograms.added_to(GroupedTally())
    of_served = {key: n for key, n in counted.items() if key[3] == "served"}
    assert of_served == {(*new, "1"): 4, (*prod, "1"): 2, (*prod, "9"): 2}
    assert histograms.take_exemplars() == {
        (*new, "1"): Exemplar("t-2", round(0.03 * UNITS_PER_ONE)),
        (*prod, "1"): Exemplar("t-1", round(0.04 * UNITS_PER_ONE)),
    }


def test_positions_are_counted_by_stratum_where_a_candidate_was_exposed():
    part = settled([[1, 1, 1, 1]] * 3)
    names = [STRATUM._replace(variant=variant) for variant in ("a", "b", "c")]
    part.strata = DictionaryColumn(names, np.array([1, 0, 2], np.int32))
    part.logged = [LoggedQuery(0b10, {}), LoggedQuery(1, {"a": (1, None)}), LoggedQuery(0, {})]
    histograms = ValueHistograms(["mrr", "top1"], counted=[], warned=set(), positions=True)
    histograms.add([part])
    counted = histograms.added_to(GroupedTally())
    assert {path[2] for path in counted} == {"a", "b"}
    assert {path[2:]: n for path, n in counted.items() if n} == {
        ("b", "exposures", "2"): 1,
        ("a", "exposures", "1"): 1,
        ("a", "clicks", "1"): 1,
    }


def test_unjudged_queries_are_not_counted():
    histograms = ValueHistograms(["mrr", "top1"], counted=["mrr"], warned=set())
    part = settled([])
    part.units = None
    histograms.add([part])
    assert histograms.added_to(GroupedTally()) == {}


def test_a_value_that_a_query_lacks_is_in_no_bucket():
    histograms = ValueHistograms(["mrr", "top1"], counted=["mrr"], warned=set())
    part = settled([[0.2, 1, 1, 1], [0.2, 1, 1, 1]])
    assert part.units is not None
    part.units[4] = MISSING  # mrr of served, of the second query
    histograms.add([part])
    served = ("bucket", "ranker", "prod", "served", "mrr")
    counted = histograms.added_to(GroupedTally())
    assert {key: n for key, n in counted.items() if key[:5] == served} == {(*served, "2"): 1}
    assert histograms.take_exemplars() == {
        (*served, "2"): Exemplar("t-0", round(0.2 * UNITS_PER_ONE))
    }


def worst(values: list[float], *, hours: float = 0, model: str = "ranker") -> SettledColumns:
    """A part with these values of served in mrr, 1 in top1, at these hours of event time."""
    part = settled([[value, 1, 0, 0] for value in values])
    part.strata = DictionaryColumn([STRATUM._replace(model=model)], np.zeros(len(values), np.int32))
    part.event_times_ms = np.full(len(values), round(hours * 3_600_000))
    return part


def test_the_lowest_queries_of_a_batch_are_kept_for_an_hour_of_event_time():
    queries = WorstQueries(["mrr", "top1"])
    queries.add([worst([0.5, 0.25, 0.75, 0.25]), worst([0.5], model="new")])
    lowest = WorstQuery(UNITS_PER_ONE // 4, 0, "t-3", "")
    first = tuple(queries.found["ranker", "prod", "mrr"])
    assert [each.trace_id for each in first] == ["t-3", "t-1", "t-0", "t-2"]  # of equals the last
    assert first[0] == lowest
    assert queries.found["new", "prod", "mrr"] == (WorstQuery(UNITS_PER_ONE // 2, 0, "t-0", ""),)
    queries.add([worst([0.125], hours=1)])
    second = WorstQuery(UNITS_PER_ONE // 8, 3_600_000, "t-0", "")
    assert queries.found["ranker", "prod", "mrr"] == (second, *first)
    for _ in range(2):  # the second time after a refused commit
        queries.add([worst([0.125], hours=1.001)])
        third = WorstQuery(UNITS_PER_ONE // 8, 3_603_600, "t-0", "")
        assert queries.found["ranker", "prod", "mrr"] == (third, second)


def test_after_a_start_a_batch_fills_the_list_with_the_queries_of_its_last_hour():
    queries = WorstQueries(["mrr", "top1"])
    part = worst([n / 64 for n in range(2 * MAX_WORST)])
    part.event_times_ms[:5] = -3_600_001
    queries.add([part])
    found = queries.found["ranker", "prod", "mrr"]
    assert [each.trace_id for each in found] == [f"t-{n}" for n in range(5, 5 + MAX_WORST)]
    queries.add([worst([0, 0, 0])])  # then only the lowest one
    assert [each.value_units > 0 for each in queries.found["ranker", "prod", "mrr"]].count(
        False
    ) == 1


def test_queries_without_a_value_are_never_the_worst():
    part, unjudged = worst([0.5, 0.25]), settled([])
    assert part.units is not None
    part.units[4:6] = MISSING  # both measures of served, of the second query
    unjudged.units = None
    queries = WorstQueries(["mrr", "top1"])
    queries.add([part, unjudged])
    assert [each.trace_id for each in queries.found["ranker", "prod", "mrr"]] == ["t-0"]
    part.units[:2] = MISSING
    queries = WorstQueries(["mrr", "top1"])
    queries.add([part])
    assert queries.found == {}


def test_the_worst_queries_are_limited_in_queries_series_and_pairs_of_a_batch():
    queries = WorstQueries(["mrr", "top1"])
    for n in range(MAX_WORST + 1):
        queries.add([worst([0.5], hours=n / 100)])
    times_ms = [each.event_time_ms for each in queries.found["ranker", "prod", "mrr"]]
    assert times_ms == [36_000 * n for n in range(MAX_WORST, 0, -1)]  # 0.01 hours apart
    for n in range(MAX_WORST_SERIES // 2):  # of two measures each
        queries.add([worst([0.5], model=f"m{n}")])
    assert len(queries.found) == MAX_WORST_SERIES
    assert ("ranker", "prod", "mrr") not in queries.found
    queries.add([worst([0.5], model=f"n{n}") for n in range(9)])
    newest = {series[0] for series in queries.found if series[0].startswith("n")}
    assert newest == {"n5", "n6", "n7", "n8"}


async def test_the_buckets_of_a_worker_add_up_to_its_settled_queries():
    harness = WorkerHarness()
    harness.append({task: traffic(task) for task in (0, 1)})
    worker = await harness.until_end(measures=("mrr", "top1"), histogram_measures=("mrr",))
    counters = worker.snapshot.counters
    counted: dict[tuple[str, ...], int] = {}
    for key, n in counters.items():
        if key[0] == "bucket":
            counted[key[1:5]] = counted.get(key[1:5], 0) + n
    queries = {k[1:5]: n for k, n in counters.items() if k[0] == "settled" and k[5] == "queries"}
    assert counted == {key: n for key, n in queries.items() if key[3] == "mrr" and n}
    assert sum(counted.values()) > 0
    with_worst = {key for key, n in queries.items() if key[2] == SERVED and n}
    listed = worker.snapshot.worst.keys()  # the pairs depend on the size of the polls
    assert listed
    assert listed <= {(*key[:2], key[3]) for key in with_worst}
    assert min(found[0].value_units for found in worker.snapshot.worst.values()) == 0


@pytest.mark.slow(alone=False)
async def test_values_counted_before_a_restart_are_not_counted_again():
    harness = WorkerHarness()
    harness.append({task: traffic(task) for task in (0, 1)})
    await harness.until_end(measures=("mrr",), histogram_measures=("mrr",))
    again = await harness.until_end(measures=("mrr",), histogram_measures=("mrr",))
    assert not [n for key, n in again.snapshot.counters.items() if key[0] == "bucket" and n]
    assert not again.snapshot.exemplars


def test_exposed_and_clicked_candidates_are_counted_by_position():
    # The first query: ranks 2 and 3 were exposed; 2 was clicked, and so was 1, which was not
    # exposed. The second one: ranks 1 and 11 were seen, and 11 was clicked. The others state
    # nothing.
    part = settled([[1, 1, 1, 1]] * 4)
    part.grades = GradeColumns.of([{"b": 1.0, "a": 2.0, "c": 0.0}, {"k": 1.0}, {"a": 1.0}, {}])
    part.logged = [
        LoggedQuery(0b110, {"b": (2, None), "a": (1, None)}),
        LoggedQuery(1 | 1 << 10, {"k": (11, None)}),
        LoggedQuery(None, {"a": (1, 0.5)}),
        None,
    ]
    histograms = ValueHistograms(["mrr", "top1"], counted=[], warned=set(), positions=True)
    for _ in range(2):
        histograms.add([part])
    counted = histograms.added_to(GroupedTally())
    assert len(counted) == 2 * 10
    assert {path: n for path, n in counted.items() if n} == {
        ("position", "ranker", "prod", "exposures", "1"): 2,
        ("position", "ranker", "prod", "exposures", "2"): 2,
        ("position", "ranker", "prod", "exposures", "3"): 2,
        ("position", "ranker", "prod", "clicks", "2"): 2,
    }
    assert counted["position", "ranker", "prod", "clicks", "2"] == 2
    without = ValueHistograms(["mrr", "top1"], counted=[], warned=set())
    without.add([part])
    assert without.added_to(GroupedTally()) == {}
