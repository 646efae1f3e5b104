"""The largest HTTP responses: the longest names, most escapes, most series."""

import itertools
import re
from types import SimpleNamespace

import aiohttp
import pytest
from msgspec.structs import replace

from evaluator.adapters.http import HttpServer, limited
from evaluator.adapters.http.history import HOURS_POINTS
from evaluator.cli.views import ProcessViews
from evaluator.config import Settings
from evaluator.core.alarms.alarm import Alarm, Carrier, Context
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.online.events import Version
from evaluator.core.online.views import MAX_NAMED, AlarmsView, AlarmView, ModelView
from evaluator.core.online.watched import COVERAGE, SeriesName
from evaluator.core.types.records import LOGS, SERVED, VALUE_BOUNDS
from evaluator.core.types.tally import GroupedTally, Tally
from evaluator.exposition.snapshot import Exemplar, Snapshot
from evaluator.ports import Place
from evaluator.wire.messages.limits import MAX_NAME_BYTES
from tests.adapters.synthetic import NOW_MS, learned, quality, queries, task_view
from tests.tidy.tree import ROOT

N_TASKS = 64
N_PAIRS = 320
N_MODELS = 16
N_ALARMS = 100
N_LEVELS = 160
SEGMENT = "s" * MAX_NAME_BYTES
QUERIES = 10**12
PAGE = (ROOT / "docs" / "capacity.md").read_text("utf-8")
BOUND = r"^\| `(/\w+)` \| ([\d.]+) MB \+ ([\d.]+) kB x T \+ ([\d.]+) kB x A \|"
BOUNDS = {
    path: float(mb) * 1e6 + float(task_kb) * 1e3 * N_TASKS + float(alarm_kb) * 1e3 * N_ALARMS
    for path, mb, task_kb, alarm_kb in re.findall(BOUND, PAGE, re.MULTILINE)
}


def longest(kind, number):
    """A name of which every byte takes six in JSON, and three in the text of Prometheus."""
    return f"{kind}{number}".ljust(MAX_NAME_BYTES, "\0")


def worst_tally(measures):
    pairs = [(longest("m", n), longest("v", n)) for n in range(N_PAIRS)]
    rankers = (SERVED, *(longest("r", n) for n in range(8)))
    without_value = [(longest("m", n), longest("v", n)) for n in range(N_PAIRS, 10 * N_PAIRS)]
    tally = queries(pairs + without_value, settled_each=QUERIES)
    for pair, ranker in itertools.product(pairs, rankers):
        tally |= quality(pair, ranker, queries=QUERIES, value=0.71234567, measures=measures)
    return tally | worst_levels(pairs[0], rankers, measures), pairs, rankers


def worst_levels(pair, rankers, measures):
    tally: Tally = {}
    for number in range(N_LEVELS):
        of = (*pair, SEGMENT, longest("l", number))
        tally |= {("segment_settled_queries", *of, kind): QUERIES for kind in ("yes", "no")}
        for kind, *rest in itertools.product(("running", "settled"), rankers, measures):
            path = (f"segment_{kind}", *of, *rest)
            tally |= {(*path, "queries"): QUERIES, (*path, "sum_units"): QUERIES << 39}
    return tally


def worst_snapshot(settings):
    tally, pairs, rankers = worst_tally(settings.measures)
    counters, exemplars = dict(tally), {}
    blocks = itertools.product(pairs[:20], rankers, settings.histogram_measures)
    for (pair, ranker, measure), bucket in itertools.product(blocks, range(len(VALUE_BOUNDS))):
        path = ("bucket", *pair, ranker, measure, str(bucket))
        counters[path] = QUERIES
        exemplars[path] = Exemplar("\U0001f600" * 64, UNITS_PER_ONE // 3)
    positions = dict.fromkeys(LOGS, 2**62)
    facts = {"positions": positions, "end_offsets": dict.fromkeys(LOGS, 2**63 - 1)}
    facts |= {
        "n_open": 2**40,
        "memory_tier_bytes": 2**40,
        "state_bytes": 2**50,
        "restore_left": 2**62,
    }
    tasks = tuple(task_view(task, tally if task == 0 else {}, **facts) for task in range(N_TASKS))
    made = {("quarantined_stores", str(task)): 1 for task in range(N_TASKS)}
    return Snapshot(
        tasks,
        GroupedTally.of(counters),
        last_commit_ms=NOW_MS,
        process_counts=made,
        exemplars=exemplars,
    )


def worst_leader(measures):
    features = tuple(longest("f", n) for n in range(256))
    names = [longest("l", n) for n in range(N_MODELS)]
    figures = {"queries": QUERIES, "sum_units": QUERIES << 40}
    counts: dict[tuple[str, ...], int] = {
        ("values", *path, kind): figure
        for path in itertools.product(names, ("champion", "challenger"), measures)
        for kind, figure in figures.items()
    }
    version = Version(2**62, NOW_MS, (0.1234567890123456789,) * 256, features)
    model_learners = tuple(
        ModelView(
            *(name, 2**31, 2**31, version, version, 2**62, "a reason " * 30),
            *(1 / 3, 1 / 3, 2**40, 100.0),
            loss=1 / 3,
        )
        for name in names
    )
    awaited = tuple(range(N_TASKS))
    counts |= learned().counts
    alarms = worst_alarms(measures)
    facts = {"n_tasks": N_TASKS, "awaited": awaited, "models": model_learners, "counts": counts}
    return learned(**facts, alarms=alarms)


def worst_alarms(measures):
    """Alarms of which all names are as long as they can be, with the most carriers."""
    carried = tuple(Carrier(longest("s", n), longest("l", n), *[1 / 3] * 3) for n in range(10))
    pair = f"{longest('r', 1)}-{longest('r', 2)}"
    context = Context(1 / 3, 1 / 3, pair, 1 / 3, 1 / 3, (NOW_MS,) * 4)
    alarm = Alarm(
        *(NOW_MS, NOW_MS, 168, *[1 / 3] * 4, 1e6 / 3, QUERIES),
        carried_by=carried,
        context=context,
    )
    kinds = [(kind, measures[0]) for kind in ("own", "pair", "constant", "variants")]
    labels = itertools.cycle([*kinds, ("own", COVERAGE)])
    series = [
        SeriesName(
            *(longest(of, n) for of in ("m", "v", "r")), measure, SEGMENT, longest("l", n), kind
        )
        for n, (kind, measure) in zip(range(N_ALARMS), labels, strict=False)
    ]
    weeks = tuple(range(2_900, 2_908))
    return AlarmsView(
        tuple(
            AlarmView(
                name, 1e6 / 3, alarm, weeks, COVERAGE, 2**31, NOW_MS, (1 / 3,) * 4, (1 / 3,) * 3
            )
            for name in series
        ),
        *(1_000, NOW_MS, tuple(series[:MAX_NAMED])),
    )


def views_of(**settings):
    made = Settings(learning="propose", segments=(SEGMENT,), alarm_max_series=N_ALARMS, **settings)
    longest = dict.fromkeys(LOGS, "t" * 249)
    worker = SimpleNamespace(
        place=Place("c" * 36, longest, dict.fromkeys(LOGS, "i" * 22), N_TASKS),
        snapshot=worst_snapshot(made),
        readiness=lambda: [f"restoring tasks {list(range(N_TASKS))}"],
        alive=lambda: True,
    )
    leadership = SimpleNamespace(view=worst_leader(made.measures), live={})
    return ProcessViews(worker, made, leader=leadership)


def histories(snapshot):
    """More points than the last hours have, with the most digits."""
    one_task = replace(snapshot, tasks=snapshot.tasks[:1])
    more = GroupedTally.of({path: 3 * n + 1_234_567 for path, n in snapshot.counters.items()})
    return [one_task, replace(one_task, counters=more)] * (HOURS_POINTS // 2 + 1)


async def responses(views, *paths, sampled=False, **headers):
    server = HttpServer(views, host="127.0.0.1", port=0)
    await server.start()
    try:
        for turn, snapshot in enumerate(histories(views.snapshot()) if sampled else ()):
            server.hours.sample(snapshot, now_ms=NOW_MS + 60_000 * turn)
        async with aiohttp.ClientSession(headers={"Accept-Encoding": "identity"}) as session:
            for path in paths:
                url = f"http://127.0.0.1:{server.port}{path}"
                async with session.get(url, headers=headers) as response:
                    yield path, await response.read()
    finally:
        await server.stop()


@pytest.mark.slow
async def test_the_largest_responses_have_the_sizes_of_the_page():
    measured = {}
    views, paths = views_of(), ("/metrics", "/totals", "/history?window=hours", "/status")
    async for path, body in responses(views, *paths, sampled=True):
        measured[path.partition("?")[0]] = len(body)
    assert set(measured) == set(BOUNDS)
    for path, size in measured.items():
        assert BOUNDS[path] / 2 < size <= BOUNDS[path], (path, size)


@pytest.mark.slow
async def test_exemplars_and_buckets_stay_within_the_bounds():
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    views = views_of(histogram_measures=("top1", "top3", "mrr", "ndcg@10", "map@10"))
    async for path, body in responses(views, "/metrics", **accept):
        assert b"# {trace_id=" in body
        assert len(body) <= BOUNDS[path]


# Which pairs are kept


def test_the_pairs_with_the_most_queries_are_kept_first():
    tally = {("extra", "out_of_order"): 1}
    for number in range(10):
        tally |= quality((f"m{number}", ""), SERVED, queries=100 * number, value=0.5)
    for level, n in (("de", 7), ("fr", 9)):
        path = ("segment_settled", "m9", "", "locale", level, SERVED, "mrr")
        tally |= {(*path, "queries"): n, (*path, "sum_units"): 0}
    pairs, one_level = 3 * 2 * 5 * 300, 29_000
    shown, *n_left_out = limited(tally, rows_per_ranker=5, max_bytes=pairs)
    assert n_left_out == [7, 2]
    assert not [path for path in shown if path[0] == "segment_settled"]
    shown, *n_left_out = limited(tally, rows_per_ranker=5, max_bytes=one_level)
    assert n_left_out == [0, 1]
    assert {path[4] for path in shown if path[0] == "segment_settled"} == {"fr"}
    shown, *_ = limited(tally, rows_per_ranker=5, max_bytes=pairs)
    assert {path[1] for path in shown if path[0] == "settled"} == {"m7", "m8", "m9"}
    assert shown["extra", "out_of_order"] == 1


def test_a_tally_within_the_limit_is_returned_unchanged():
    tally = quality(("m", ""), SERVED, queries=1, value=0.5)
    assert limited(tally, rows_per_ranker=5) == (tally, 0, 0)


@pytest.mark.parametrize("n_pairs", [1, 3])
def test_totals_have_the_number_of_omitted_pairs(monkeypatch, n_pairs):
    tally = {}
    for number in range(n_pairs):
        tally |= quality((f"m{number}", ""), SERVED, queries=1 + number, value=0.5)
    worker = SimpleNamespace(snapshot=Snapshot((task_view(0, tally),)))
    monkeypatch.setattr(limited, "__kwdefaults__", {"max_bytes": 2 * 5 * 300})
    document = ProcessViews(worker, Settings()).totals()
    assert document.get("pairs_left_out") == {1: None, 3: 2}[n_pairs]
    assert {row["model"] for row in document["totals"]} == {f"m{n_pairs - 1}"}
