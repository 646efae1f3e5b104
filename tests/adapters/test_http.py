"""The HTTP surface over a real socket."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from evaluator.adapters.http import HttpServer, HttpUnusable, status_document
from evaluator.adapters.http.history import HISTORY_SERIES, LEVEL_SERIES, ChartHistory
from evaluator.adapters.http.server import SAMPLE_INTERVAL_SECONDS, SAMPLES_PER_HOURS_POINT
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import SERVED
from evaluator.core.types.tally import GroupedTally, Tally
from evaluator.exposition.snapshot import Snapshot
from tests.adapters.synthetic import (
    NOW_MS,
    FixedViews,
    learned,
    ledger,
    one_task,
    quality,
    queries,
    task_view,
)
from tests.tidy.tree import ROOT
from tests.waiting import finished

PAIR = ("ranker", "prod")
FULL = one_task(
    ledger(4000) | queries([PAIR], settled_each=120) | quality(PAIR, SERVED, queries=120, value=0.5)
)


@asynccontextmanager
async def client_of(views: FixedViews) -> AsyncIterator[TestClient[Any, Any]]:
    app = HttpServer(views, host="127.0.0.1", port=0).application()
    async with TestClient(TestServer(app)) as client:
        yield client


def run_with_client(
    views: FixedViews, check: Callable[[TestClient[Any, Any]], Awaitable[None]]
) -> None:
    async def ask() -> None:
        async with client_of(views) as client:
            await check(client)

    asyncio.run(ask())


def test_livez_follows_the_loop_and_not_the_broker() -> None:
    views = FixedViews(reasons=["The broker at b:9092 cannot be reached."])

    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/livez")
        assert (response.status, await response.json()) == (200, {"alive": True})
        views.is_alive = False
        response = await client.get("/livez")
        assert (response.status, await response.json()) == (503, {"alive": False})

    run_with_client(views, check)


def test_a_process_that_reads_no_queries_has_no_page() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        paths = ("/metrics", "/livez", "/readyz", "/status")
        assert [(await client.get(path)).status for path in paths] == [200] * 4
        for path in ("/", "/page.js", "/totals", "/weights", "/history"):
            assert (await client.get(path)).status == 404

    run_with_client(FixedViews(reads_queries=False), check)


def test_readyz_has_the_reason_for_not_being_ready() -> None:
    views = FixedViews()

    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/readyz")
        assert (response.status, await response.json()) == (200, {"ready": True, "reasons": []})
        views.reasons = ["The broker at b:9092 cannot be reached."]
        response = await client.get("/readyz")
        assert response.status == 503
        assert await response.json() == {"ready": False, "reasons": views.reasons}

    run_with_client(views, check)


def test_status_has_the_progress_of_every_task() -> None:
    view = task_view(
        3,
        {},
        positions={"rankings": 10, "judgments": 7},
        end_offsets={"rankings": 15, "judgments": None},
        clocks_ms={"rankings": 2_000, "judgments": None},
        watermark_ms=None,
        n_open=4,
        n_early=1,
        restoring=True,
        restore_left=12,
        loaded_seconds=0.25,
        memory_tier_bytes=1_024,
        state_bytes=5_000,
        checkpoint_ms=800,
        checkpoint_bytes=900,
    )
    document = status_document(
        Snapshot((view,), GroupedTally(), last_commit_ms=900),
        version="1.2.3",
        reasons=["restoring"],
        now_ms=1_000,
        settings={"maturity_ms": 5},
        identity={"meaning": "0a", "fingerprint": "0b", "place": None},
        max_future_skew_ms=300_000,
    )
    assert document == {
        "version": "1.2.3",
        "meaning": "0a",
        "fingerprint": "0b",
        "place": None,
        "ready": False,
        "reasons": ["restoring"],
        "warnings": [],
        "clock_skew_ms": None,
        "now_ms": 1_000,
        "last_commit_ms": 900,
        "tasks_owned": [3],
        "tasks": [
            {
                "task": 3,
                "positions": {"rankings": 10, "judgments": 7},
                "end_offsets": {"rankings": 15, "judgments": None},
                "lag": {"rankings": 15 - 10, "judgments": None},
                "clocks_ms": {"rankings": 2_000, "judgments": None},
                "watermark_ms": None,
                "open": 4,
                "memory_tier_bytes": 1_024,
                "early": 1,
                "restoring": True,
                "restore_left": 12,
                "restore_seconds_left": None,
                "loaded_seconds": 0.25,
                "state_bytes": 5_000,
                "last_checkpoint_ms": 800,
                "last_checkpoint_bytes": 900,
                "last_snapshot_ms": None,
                "last_snapshot_bytes": 0,
            }
        ],
        "leader": None,
        "settings": {"maturity_ms": 5},
    }


def test_status_warns_of_clocks_that_are_off_by_more_than_the_limit() -> None:
    """The machine is 61 s behind the broker, so the broker had NOW_MS + 61 s at the commit."""

    def warnings(skew_ms: int, *rankings_ms: int) -> list[str]:
        views = tuple(
            task_view(task, {}, clocks_ms={"rankings": ms, "judgments": NOW_MS})
            for task, ms in enumerate(rankings_ms)
        )
        snapshot = Snapshot(views, GroupedTally(), last_commit_ms=NOW_MS, skew_ms=skew_ms)
        return list(
            status_document(
                snapshot,
                version="1",
                reasons=[],
                now_ms=NOW_MS,
                settings={},
                max_future_skew_ms=300_000,
            )["warnings"]
        )

    assert warnings(60_000, NOW_MS + 240_000) == []
    assert warnings(-60_000, NOW_MS + 360_000) == []
    (behind,) = warnings(-61_000, NOW_MS + 361_000)
    assert behind.startswith("The clock of this machine is 61 s behind the broker's")
    (one,) = warnings(0, NOW_MS, NOW_MS + 301_000)
    assert one.startswith("The clock of rankings-1 is 301 s ahead of the broker's: a producer's")
    (two,) = warnings(0, NOW_MS + 400_000, NOW_MS + 301_000)
    assert "rankings-0 is 400 s ahead of the broker's (and of 1 more partitions by less)" in two


def test_status_has_every_member_that_benchmarks_read() -> None:
    status = FixedViews(FULL).status()
    has = {"status": {*status}, "task": {*status["tasks"][0]}}
    read = {
        each
        for path in (ROOT / "benchmarks").glob("*.py")
        for each in re.findall(r"\b(status|task)\[['\"](\w+)['\"]\]", path.read_text("utf-8"))
    }
    assert {("task", "lag"), ("status", "ready")} <= read
    assert not {(of, name) for of, name in read if name not in has[of]}


def test_status_has_every_watched_series() -> None:
    alarms = FixedViews(learned=learned()).status()["leader"]["alarms"]
    watched, quiet = alarms["series"]
    assert (alarms["watched_until_ms"], alarms["series_left_out"]) == (NOW_MS, 2)
    assert (watched["model"], watched["measure"], watched["kind"]) == ("ranker", "ndcg@10", "own")
    assert (watched["evidence"], watched["unverifiable"]) == (1.7, "coverage")
    assert watched["alarm"]["drop"] == 0.031
    assert watched["alarm"]["acknowledged"] is True
    carried = {"segment": "locale", "level": "de", "share": 0.82, "queries_share": 0.24}
    assert watched["alarm"]["carried_by"] == [{**carried, "change": -0.112}]
    week_ms = 7 * 86_400_000
    # weeks begin on Monday: the first one of 1970 on the fifth day
    assert (watched["windows"], watched["reference_from_ms"]) == (4, None)
    assert watched["reference_weeks_ms"] == [
        4 * 86_400_000 + n * week_ms for n in range(2910, 2914)
    ]
    assert list(watched["alarm"]["context"]["weeks_ms"]) == watched["reference_weeks_ms"]
    assert watched["alarm"]["context"]["pair_change"] == -0.03
    assert watched["spreads"] == {"1": 0.012, "6": 0.006, "24": 0.004, "168": 0.003}
    assert (quiet["level"], quiet["alarm"], quiet["spreads"]) == ("de", None, {})
    assert [name["measure"] for name in alarms["left_out"]] == ["mrr"]


def test_status_has_the_learning_state_of_every_model() -> None:
    leader_status = FixedViews(learned=learned()).status()["leader"]
    assert {name: of for name, of in leader_status.items() if name != "alarms"} == {
        "is_leader": True,
        "awaited": [1],
        "buffered": 7,
        "ignored": 3,
        "settled_time_ms": NOW_MS,
        "models": [
            {
                "model": "ranker",
                "epoch": 1,
                "version": 5,
                "champion_version": 4,
                "challenger_version": 5,
                "updates": 250,
                "loss": 1.25,
                "frozen": "",
                "unusable": {"features": 4, "propensities": 0, "overflow": 1},
                "unusable_share": 0.005,
                "unknown_transforms": ["prise"],
                "evidence_for": 12.5,
                "evidence_against": 0.25,
                "traces": 900,
                "last_experiment": {"version": 3, "status": "rejected", "reason": "undecided"},
            },
            {
                "model": "other",
                "epoch": 0,
                "version": 0,
                "champion_version": None,
                "challenger_version": None,
                "updates": 0,
                "loss": None,
                "frozen": "features changed",
                "unusable": {},
                "unusable_share": 0.0,
                "unknown_transforms": [],
                "evidence_for": 1.0,
                "evidence_against": 1.0,
                "traces": 0,
                "last_experiment": None,
            },
        ],
    }


def test_status_and_totals_are_served_as_given() -> None:
    views = FixedViews(FULL)

    async def check(client: TestClient[Any, Any]) -> None:
        status = {**views.status(), "problems": []}
        for path, expected in (("/status", status), ("/totals", views.totals())):
            response = await client.get(path)
            assert (response.status, response.content_type) == (200, "application/json")
            assert await response.json() == expected

    run_with_client(views, check)


def test_integers_beyond_the_float_range_are_served_exactly() -> None:
    class Huge(FixedViews):
        def totals(self) -> Mapping[str, Any]:
            return {"sum_units": 2**100 + 1}

    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/totals")
        assert await response.text() == '{"sum_units":1267650600228229401496703205377}'

    run_with_client(Huge(), check)


def test_metrics_are_served_as_text_or_openmetrics() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        plain = await client.get("/metrics")
        assert plain.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "# TYPE evaluator_quality_value_total counter" in await plain.text()
        accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        modern = await client.get("/metrics", headers=accept)
        assert modern.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await modern.text()).endswith("# EOF\n")

    run_with_client(FixedViews(FULL), check)


def test_the_headers_of_every_response_forbid_what_the_page_does_not_need() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        for path in ("/", "/page.js", "/page.css", "/metrics", "/totals", "/nothing-here"):
            headers = (await client.get(path)).headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Server"] == "evaluator"
            assert "Access-Control-Allow-Origin" not in headers

    run_with_client(FixedViews(FULL), check)


@pytest.mark.parametrize(
    "path", ["/nothing-here", "/page/", "/../http.py", "/%2e%2e/http.py", "/page.html", "/page.js/"]
)
def test_only_the_known_paths_are_served(path: str) -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get(path)
        assert (response.status, await response.json()) == (404, {"error": "Not Found"})

    run_with_client(FixedViews(), check)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_methods_that_change_state_are_not_allowed(method: str) -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.request(method, "/totals", data=b"x" * 1000)
        assert response.status == 405
        assert set(response.headers["Allow"].split(",")) == {"GET", "HEAD"}

    run_with_client(FixedViews(), check)


def test_an_endless_header_is_refused() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/totals", headers={"X-Long": "x" * 100_000})
        assert response.status == 400

    run_with_client(FixedViews(), check)


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "٣", "9" * 20, ""])
def test_history_refuses_an_invalid_time(after: str) -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        assert (await client.get("/history", params={"after": after})).status == 400

    run_with_client(FixedViews(), check)


def test_an_internal_error_is_a_500_and_the_next_request_is_served() -> None:
    class Broken(FixedViews):
        def totals(self) -> Mapping[str, Any]:
            raise RuntimeError("secret detail")

    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/totals")
        assert response.status == 500
        assert "secret" not in await response.text()
        assert (await client.get("/livez")).status == 200

    run_with_client(Broken(), check)


def test_port_0_binds_a_free_port_and_stop_releases_it() -> None:
    async def run() -> None:
        server = HttpServer(FixedViews(FULL), host="127.0.0.1", port=0)
        await server.start()
        port = server.port
        assert port > 0
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/history") as response:
                document = await response.json()
            assert len(document["times_ms"]) == 1  # a fresh page has a first point
            await server.stop()  # the session still holds its connection
        await server.stop()
        again = HttpServer(FixedViews(), host="127.0.0.1", port=port)
        await again.start()
        await again.stop()

    asyncio.run(finished(run()))


def test_a_port_in_use_is_reported_in_one_sentence() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            server = HttpServer(FixedViews(), host="127.0.0.1", port=port)
            with pytest.raises(
                HttpUnusable, match=r"cannot be served \(.*in use.*http_port"
            ) as raised:
                await server.start()
            assert f"http://127.0.0.1:{port}" in str(raised.value)
            assert "\n" not in str(raised.value)
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70_000)])
def test_an_invalid_address_is_reported_in_one_sentence(host: str, port: int) -> None:
    server = HttpServer(FixedViews(), host=host, port=port)
    with pytest.raises(HttpUnusable, match="cannot be served"):
        asyncio.run(server.start())


def settled(queries_so_far: int, value: float) -> Snapshot:
    tally: Tally = {
        ("settled", *PAIR, SERVED, "mrr", "queries"): queries_so_far,
        ("settled", *PAIR, SERVED, "mrr", "sum_units"): round(
            queries_so_far * value * UNITS_PER_ONE
        ),
    }
    return one_task(tally)


def test_history_has_the_queries_settled_between_samples() -> None:
    history = ChartHistory()
    for second, snapshot in enumerate((settled(0, 0.0), settled(4, 0.5), settled(5, 0.6))):
        history.sample(snapshot, now_ms=second)
    document = history.document(Snapshot(), after_ms=-1)
    assert document["times_ms"] == [0, 1, 2]
    (series,) = document["series"]
    assert series["measure"] == "mrr"
    # 4 queries with sum 2.0, then 1 more with sum 5 x 0.6 - 4 x 0.5 = 1.0
    assert series["points"] == [(0, 0.0, None), (4, 2.0, None), (1, 1.0, None)]


def test_history_has_levels_of_the_served_order_and_returns_the_selected_ones() -> None:
    tally: Tally = dict(quality(PAIR, SERVED, queries=4, value=0.5, measures=["mrr"]))
    for n in range(LEVEL_SERIES + 9):
        for ranker in (SERVED, "bm25"):
            path = ("segment_settled", *PAIR, "locale", f"l{n}", ranker, "mrr")
            tally |= {(*path, "queries"): 2, (*path, "sum_units"): UNITS_PER_ONE}
    history = ChartHistory()
    history.sample(one_task(dict.fromkeys(tally, 0)), now_ms=1)
    history.sample(one_task(tally), now_ms=2)
    found = history.document(Snapshot(), after_ms=1, segment="locale")["series"]
    assert len(found) == LEVEL_SERIES
    assert {series["ranker"] for series in found} == {SERVED}
    # two queries with the sum 1
    assert {tuple(series["points"]) for series in found} == {((2, 1.0, None),)}
    (one,) = history.document(Snapshot(), after_ms=1, segment="", ranker=SERVED)["series"]
    assert (one["level"], one["points"][0][:2]) == ("", (4, 1.6))


def test_a_series_that_begins_later_has_its_points_at_their_times() -> None:
    history = ChartHistory(max_points=3)
    for time_ms in (1, 2):
        history.sample(Snapshot(), now_ms=time_ms)
    history.sample(settled(4, 0.5), now_ms=3)
    history.sample(settled(5, 0.6), now_ms=4)
    document = history.document(Snapshot(), after_ms=0)
    assert document["times_ms"] == [2, 3, 4]
    assert document["series"][0]["points"] == [(0, 0.0, None), (4, 2.0, None), (1, 1.0, None)]


def test_the_last_hours_have_a_point_each_minute() -> None:
    async def ask(client: TestClient[Any, Any]) -> None:
        for window, n in (("hours", 1), ("recent", 0), ("", 0)):
            response = await client.get("/history", params={"window": window, "measure": "mrr"})
            document = await response.json()
            assert len(document["times_ms"]) == n
            assert {series["measure"] for series in document["series"]} == ({"mrr"} if n else set())

    async def run() -> None:
        server = HttpServer(FixedViews(FULL), host="127.0.0.1", port=0)
        server.hours.sample(FULL, now_ms=1)
        async with TestClient(TestServer(server.application())) as client:
            await ask(client)

    asyncio.run(run())
    assert SAMPLES_PER_HOURS_POINT * SAMPLE_INTERVAL_SECONDS == 60


def test_history_returns_only_points_after_the_requested_time() -> None:
    history = ChartHistory()
    for time_ms in (1, 2, 3):
        history.sample(settled(time_ms, 1.0), now_ms=time_ms)
    document = history.document(Snapshot(), after_ms=2)
    assert document["times_ms"] == [3]
    assert [series["points"] for series in document["series"]] == [[(1, 1.0, None)]]
    assert history.document(Snapshot(), after_ms=3)["series"][0]["points"] == []


def test_history_is_bounded_in_points_and_series_and_prefers_the_served_order() -> None:
    tally: Tally = {}
    for i in range(20):
        for ranker in (*(f"scorer{n}" for n in range(8)), SERVED):
            tally |= quality((f"m{i}", ""), ranker, queries=1, value=0.5)
    history = ChartHistory(max_points=3)
    for time_ms in range(5):
        history.sample(one_task(tally), now_ms=time_ms)
    document = history.document(Snapshot(), after_ms=-1)
    assert document["times_ms"] == [2, 3, 4]
    assert {len(series["points"]) for series in document["series"]} == {3}
    rankers = [series["ranker"] for series in document["series"]]
    assert len(rankers) <= HISTORY_SERIES
    assert rankers.count(SERVED) == 20 * 5


def test_a_revoked_task_causes_no_step_in_the_history() -> None:
    history = ChartHistory()
    before = settled(100, 0.9)
    history.sample(before, now_ms=1)
    history.sample(Snapshot((), before.counters), now_ms=2)
    points = history.document(Snapshot(), after_ms=1)["series"][0]["points"]
    assert points == [(0, 0.0, None)]


def test_coverage_is_over_all_tasks() -> None:
    one: Tally = {("settled_queries", *PAIR, "yes"): 3, ("settled_queries", *PAIR, "no"): 1}
    snapshot = Snapshot((task_view(0, one), task_view(1, add_tally(dict(one), one))))
    document = ChartHistory().document(snapshot, after_ms=0)
    expected = {"model": "ranker", "variant": "prod", "judged": 3 + 6, "unjudged": 1 + 2}
    assert document["coverage"] == [expected]


def test_coverage_covers_the_pairs_with_the_most_queries() -> None:
    tally: Tally = {
        ("settled_queries", f"m{n}", "", "no"): n for n in range(1, HISTORY_SERIES + 11)
    }
    document = ChartHistory().document(one_task(tally), after_ms=0)
    shown = [pair["unjudged"] for pair in document["coverage"]]
    assert shown == list(range(HISTORY_SERIES + 10, 10, -1))
