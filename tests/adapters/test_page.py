"""The live page in a real Chromium."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode, urlsplit

import aiohttp
import pytest
from msgspec.structs import replace

from evaluator.adapters.http import HttpServer
from evaluator.adapters.http.server import PAGE_FILES
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types.records import SERVED
from evaluator.exposition.colours import colours
from evaluator.exposition.snapshot import Snapshot, WorstQuery
from evaluator.wire.outputs.output_models import Reason
from tests.adapters.synthetic import (
    HOSTILE,
    MEASURES,
    NOW_MS,
    FixedViews,
    alarmed,
    learned,
    ledger,
    one_task,
    quality,
    queries,
    task_view,
)
from tests.deploy.rules import rules_of
from tests.waiting import finished

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--enable-logging=stderr"),
    *("--virtual-time-budget=5000", "--window-size=1400,900"),
)
VOID = {"meta", "link", "img", "input", "br", "hr"}
PAIRS = [("tool-ranker", "prod"), ("graph-ranker", "canary"), (HOSTILE, HOSTILE)]


@dataclass
class Node:
    """An element of a dumped page."""

    tag: str
    attributes: dict[str, str | None]
    children: "list[Node | str]" = field(default_factory=list)

    def walk(self) -> "Iterator[Node]":
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text() for c in self.children)

    def all(self, tag: str, **attributes: str) -> "list[Node]":
        wanted = attributes.items()
        return [
            node
            for node in self.walk()
            if node.tag == tag and all(node.attributes.get(k) == v for k, v in wanted)
        ]

    def by_id(self, name: str) -> "Node":
        (found,) = (node for node in self.walk() if node.attributes.get("id") == name)
        return found


class PageParser(HTMLParser):
    """Builds the tree of a dumped page."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self._open[-1].children.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        while len(self._open) > 1 and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


@dataclass(frozen=True)
class Visit:
    """The results of a visit to the page."""

    page: Node
    log: str
    requested: set[str]  # host and port of everything the page asked for
    home: str

    @property
    def complaints(self) -> list[str]:
        """The messages on the console of the browser."""
        return [line for line in self.log.splitlines() if "CONSOLE" in line]


def visit(
    views: FixedViews, profile: Path, *, at: str = "/", before: Sequence[Snapshot] = ()
) -> Visit:
    """Opens the page of *views*, which has sampled the snapshots *before* into its history."""
    return asyncio.run(finished(_visit(views, profile, at, before)))


async def _visit(views: FixedViews, profile: Path, at: str, before: Sequence[Snapshot]) -> Visit:
    server = HttpServer(views, host="127.0.0.1", port=0)
    for time_ms, snapshot in enumerate(before, start=1):
        server.history.sample(snapshot, now_ms=time_ms)
    await server.start()
    home = f"127.0.0.1:{server.port}"
    net_log = profile / "net.json"
    assert CHROMIUM is not None, "chromium is missing; `make system` installs it"
    browser = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *QUIET,
        f"--user-data-dir={profile / 'profile'}",
        f"--log-net-log={net_log}",
        "--dump-dom",
        f"http://{home}{at}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        dom, log = await browser.communicate()
    finally:
        if browser.returncode is None:
            browser.kill()
            await browser.wait()
        await server.stop()
    parser = PageParser()
    parser.feed(dom.decode())
    return Visit(parser.root, log.decode(), _requested(net_log, home), home)


def _requested(net_log: Path, home: str) -> set[str]:
    """Hosts of requests to the page or initiated by it, without those of the browser."""
    kept = json.loads(net_log.read_text("utf-8"))
    begin = kept["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    hosts = set()
    for event in kept["events"]:
        parameters: dict[str, Any] = event.get("params", {})
        if event["type"] == begin and "url" in parameters:
            host = urlsplit(parameters["url"]).netloc
            if home in (host, urlsplit(parameters.get("initiator", "")).netloc):
                hosts.add(host)
    return hosts


def settled_world() -> Snapshot:
    tally = ledger(9_000_000) | queries(PAIRS, settled_each=1_234_567)
    for p, pair in enumerate(PAIRS):
        for r, ranker in enumerate((SERVED, "bm25")):
            tally |= quality(pair, ranker, queries=1_234_567, value=0.9 - 0.1 * p - 0.05 * r)
    return one_task(tally, watermark_ms=None)


@pytest.fixture(scope="module")
def settled_visit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Visit, FixedViews]:
    views = FixedViews(settled_world())
    return visit(views, tmp_path_factory.mktemp("page")), views


def cards(page: Node) -> dict[tuple[str, str, str], Node]:
    found = {}
    for card in page.by_id("cards").all("article"):
        a = card.attributes
        found[a["data-model"] or "", a["data-variant"] or "", a["data-ranker"] or ""] = card
    return found


@pytest.mark.browser
def test_all_numbers_of_measures_equal_those_of_totals(
    settled_visit: tuple[Visit, FixedViews],
) -> None:
    seen, views = settled_visit
    shown = {}
    for name, card in cards(seen.page).items():
        for row in card.all("tr"):
            if measure := row.attributes.get("data-measure"):
                for kind in ("settled", "running"):
                    (cell,) = row.all("td", **{"class": f"n {kind}"})
                    value, count = cell.all("span")[0], cell.all("small")[0]
                    n_queries = int(count.text().replace(",", ""))
                    shown[kind, *name, measure] = (float(value.text()), n_queries)
    totals = views.totals()["totals"]
    assert len(totals) == 2 * len(PAIRS) * 2 * len(MEASURES)
    for row in totals:
        path = (row["kind"], row["model"], row["variant"], row["ranker"], row["measure"])
        mean, n_queries = shown.pop(path)
        # Both sides round the same double; a tie in the fifth place may go either way.
        assert mean == pytest.approx(row["mean"], abs=0.000051)
        assert n_queries == row["queries"]
    assert not shown


@pytest.mark.browser
def test_the_ledger_of_the_page_equals_that_of_totals(
    settled_visit: tuple[Visit, FixedViews],
) -> None:
    seen, views = settled_visit
    for log, expected in views.totals()["ledger"].items():
        table = seen.page.by_id(f"ledger-{log}")
        shown = {}
        for row in table.all("tbody")[0].all("tr"):
            tips = "".join(tip.text() for tip in row.all("span", role="tooltip"))
            outcome = row.all("th")[0].text().removesuffix(tips)
            assert tips or outcome == "read", f"{outcome} is not explained"
            shown[outcome] = int(row.all("td")[0].text().replace(",", ""))
        assert shown == expected


@pytest.mark.browser
def test_the_page_logs_no_error_and_requests_no_other_host(
    settled_visit: tuple[Visit, FixedViews],
) -> None:
    seen, _ = settled_visit
    assert seen.complaints == []
    assert seen.requested == {seen.home}


@pytest.mark.browser
def test_an_error_of_the_page_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGE_FILES, "/page.js", ("page.css", "text/javascript"))
    (complaint,) = visit(FixedViews(settled_world()), tmp_path).complaints
    assert "SyntaxError" in complaint


@pytest.mark.browser
def test_a_hostile_name_is_shown_as_plain_text(
    settled_visit: tuple[Visit, FixedViews],
) -> None:
    seen, _ = settled_visit
    assert seen.page.all("img") == []
    assert seen.page.all("head")[0].all("title")[0].text() == "evaluator"
    card = cards(seen.page)[HOSTILE, HOSTILE, SERVED]
    assert card.all("h3")[0].text() == f"{HOSTILE} · {HOSTILE}"


@pytest.mark.browser
def test_a_worker_that_settled_is_shown_as_ready(settled_visit: tuple[Visit, FixedViews]) -> None:
    seen, _ = settled_visit
    assert seen.page.by_id("state").text() == "Ready"
    assert "hidden" in seen.page.by_id("empty").attributes
    assert "hidden" in seen.page.by_id("notice").attributes
    assert "not yet" in seen.page.by_id("tasks").text()  # the watermark is unknown


@pytest.mark.browser
def test_an_empty_worker_shows_when_the_first_value_is_due(tmp_path: Path) -> None:
    page = visit(FixedViews(Snapshot((task_view(0, {}, watermark_ms=None),))), tmp_path).page
    notice = page.by_id("empty")
    assert "hidden" not in notice.attributes
    # maturity_ms 3,600,000 + out_of_orderness_ms 300,000 = 65 minutes
    assert "No ranking has been read yet." in notice.text()
    assert "1 h 5 min after the first ranking" in notice.text().replace("\xa0", " ")


@pytest.mark.browser
def test_an_unavailable_broker_is_named_and_the_values_stay(tmp_path: Path) -> None:
    reason = "The broker at b:9092 cannot be reached; trying again."
    page = visit(FixedViews(settled_world(), reasons=[reason]), tmp_path).page
    assert page.by_id("state").text() == "Not ready"
    (problem,) = page.by_id("problem-list").all("li")
    assert problem.text() == f"critical{reason}docs/runbooks.md#evaluatornotready"
    assert page.by_id("notice").text().startswith("The figures are those of the last commit")
    assert len(cards(page)) == len(PAIRS) * 2


@pytest.mark.browser
def test_wrong_clocks_are_a_problem_of_a_worker_that_is_ready(tmp_path: Path) -> None:
    ahead = replace(settled_world(), skew_ms=95_000)
    page = visit(FixedViews(ahead, now_ms=NOW_MS), tmp_path).page
    assert page.by_id("state").text() == "1 problem"
    assert "hidden" in page.by_id("notice").attributes
    text = page.by_id("problem-list").text()
    assert text.startswith("warningThe clock of this machine is 95 s ahead of the broker's, so")
    assert tile(page, "Watermark age").attributes["data-state"] == "warning"


def tile(page: Node, name: str) -> Node:
    (found,) = (each for each in page.by_id("tiles").all("div") if each.all("dt")[0].text() == name)
    return found


@pytest.mark.browser
def test_problems_are_first_with_their_runbooks_and_colour_the_tiles(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "bad").mkdir()
    counts = {("judgments", "read"): 1000, ("judgments", "orphan"): 650}
    clocks_ms = {"rankings": NOW_MS + 10**6, "judgments": NOW_MS}
    bad = one_task({**counts, ("judgments", "applied"): 350}, clocks_ms=clocks_ms)
    views = FixedViews(bad, settings={"runbook_url": "https://docs.example.com/runbooks.md"})
    page = visit(views, tmp_path / "bad").page
    assert page.by_id("state").text() == "2 problems"
    ahead, orphans = page.by_id("problem-list").all("li")
    assert ahead.attributes["data-state"] == "critical"
    assert "65 % of the judgments of the last hour have no ranking" in orphans.text()
    (link,) = orphans.all("a")
    assert link.attributes["href"] == "https://docs.example.com/runbooks.md#evaluatororphans"
    assert tile(page, "Orphans").attributes["data-state"] == "warning"
    assert tile(page, "Watermark age").attributes["data-state"] == "critical"
    assert tile(page, "Lag").attributes["data-state"] == ""
    calm = visit(FixedViews(settled_world()), tmp_path / "calm").page
    assert "hidden" in calm.by_id("problems").attributes
    assert {each.attributes["data-state"] for each in calm.by_id("tiles").all("div")} == {""}


def test_alerts_named_by_the_tiles_exist() -> None:
    named = set(re.findall(r"\bEvaluator\w+", page_file("page.js")))
    assert named
    assert named <= rules_of("alert").keys()


@pytest.mark.browser
def test_fifty_pairs_of_nine_rankers_start_with_the_served_order(tmp_path: Path) -> None:
    pairs = [(f"model-{i}", "") for i in range(50)]
    tally = ledger(900) | queries(pairs, settled_each=9)
    for pair in pairs:
        for ranker in (SERVED, *(f"scorer-{i}" for i in range(8))):
            tally |= quality(pair, ranker, queries=9, value=0.5)
    seen = visit(FixedViews(one_task(tally)), tmp_path)
    shown = cards(seen.page)
    assert list(shown) == [(f"model-{i}", "", SERVED) for i in range(24)]
    assert seen.page.by_id("more").text() == "Show 24 more of 26"
    assert len(seen.page.by_id("filter-model").all("option")) == 1 + 50
    assert len(seen.page.by_id("filter-ranker").all("option")) == 1 + 9
    assert seen.complaints == []


@pytest.mark.browser
def test_a_fresh_page_draws_the_chart_at_once(tmp_path: Path) -> None:
    pair = ("ranker", "")
    unsettled = {"queries": 4, "sum_units": 4 * UNITS_PER_ONE}  # running, nothing of it has settled
    running = {("running", *pair, "bm25", "mrr", name): n for name, n in unsettled.items()}
    steps = [
        one_task(running | quality(pair, SERVED, queries=n, value=value / 0.8, measures=["mrr"]))
        for n, value in ((0, 0.0), (10, 0.5), (20, 0.375))
    ]
    views = FixedViews(steps[-1], measures=["mrr"])
    (tmp_path / "settled").mkdir()
    seen = visit(views, tmp_path / "settled", before=steps)
    chart = seen.page.by_id("chart")
    # 10 queries of 0.5, then 20 whose mean is 0.375; nothing settles while the page is open.
    assert chart.attributes["aria-label"] == (
        "mrr. served, settled: from 0.5000 to 0.3750, lowest 0.3750, highest 0.5000."
        " bm25: no trend yet"  # its running mean of 1 is not drawn beside settled values
    )
    assert seen.page.by_id("chart-note").text().startswith("Settled values as a mean over ")
    assert len(chart.all("canvas")) == 1
    assert "served" in chart.text()
    assert seen.complaints == []

    views = FixedViews(steps[0], measures=["mrr"], settings={"silence": "zero"})
    page = visit(views, tmp_path, before=[steps[0]] * 2).page
    assert "bm25, running: from 1.0000 to 1.0000" in page.by_id("chart").attributes["aria-label"]
    assert (
        page.by_id("chart-note")
        .text()
        .startswith(
            "Nothing has settled in this time: running means, without the zeros of silent queries."
        )
    )


@pytest.mark.browser
def test_a_measure_is_drawn_by_any_of_its_spellings(tmp_path: Path) -> None:
    steps = [
        one_task(quality(("ranker", ""), SERVED, queries=n, value=0.5, measures=["rbp[0.8]"]))
        for n in (0, 10, 20)
    ]
    page = visit(FixedViews(steps[-1], measures=["rbp[0.80]"]), tmp_path, before=steps).page
    assert "rbp[0.80]. served, settled: from" in page.by_id("chart").attributes["aria-label"]


@pytest.mark.browser
async def test_values_above_one_are_inside_the_chart(tmp_path: Path) -> None:
    async def use() -> None:
        server = HttpServer(FixedViews(by_level(), measures=["mrr"]), host="127.0.0.1", port=0)
        await server.start()
        try:
            async with tab_of(f"http://127.0.0.1:{server.port}/", tmp_path) as tab:
                await tab.until("typeof calm === 'function'")
                assert await tab.value("calm(2, 3).join()") == "1.95,3.05"
                assert await tab.value("calm(0.98, 1).join()") == "0.96,1"
        finally:
            await server.stop()

    await finished(use())


def test_every_outcome_and_reason_has_its_meaning_on_the_page() -> None:
    script = page_file("page.js")
    for reason in get_args(Reason):
        assert f"\n  {reason}: " in script or f"\n    {reason}: " in script, reason


class Tab:
    """A tab of a browser that takes commands."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._n = 0

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._n += 1
        await self._socket.send_json({"id": self._n, "method": method, "params": parameters})
        while (response := await self._socket.receive_json()).get("id") != self._n:
            pass
        result: dict[str, Any] = response["result"]
        return result

    async def value(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression)
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        while not await self.value(expression):  # noqa: ASYNC110  # no event reports a change
            await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


@asynccontextmanager
async def tab_of(address: str, profile: Path) -> AsyncIterator[Tab]:
    assert CHROMIUM is not None, "chromium is missing; `make system` installs it"
    options = [each for each in QUIET if "virtual-time" not in each]
    browser = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *options, f"--user-data-dir={profile}", "--remote-debugging-port=0"),
        *("--remote-allow-origins=*", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert browser.stderr is not None
        while not (found := re.search(rb"ws://([\d.:]+)/", await browser.stderr.readline())):
            assert browser.returncode is None
        async with aiohttp.ClientSession() as session:
            new = f"http://{found[1].decode()}/json/new?{address}"
            async with session.put(new) as response:
                url = (await response.json())["webSocketDebuggerUrl"]
            async with session.ws_connect(url) as socket:
                yield Tab(socket)
    finally:
        if browser.returncode is None:
            browser.kill()
        await browser.wait()


@pytest.mark.browser
async def test_the_arrow_keys_move_over_the_points_and_a_narrow_page_fits(tmp_path: Path) -> None:
    async def use() -> None:
        server = HttpServer(FixedViews(by_level(), measures=["mrr"]), host="127.0.0.1", port=0)
        for time_ms in (10**12, 10**12 + 1000, 10**12 + 2000):
            server.history.sample(by_level(), now_ms=time_ms)
        await server.start()
        try:
            async with tab_of(f"http://127.0.0.1:{server.port}/", tmp_path) as tab:
                await tab.until("document.querySelector('#chart canvas') !== null")
                await tab.value("document.getElementById('chart').focus()")
                for key, second in (("Home", "40"), ("ArrowRight", "41"), ("ArrowLeft", "40")):
                    await tab.press(key)
                    legend = "document.querySelector('.u-legend').textContent"
                    await tab.until(f"{legend}.includes('2001-09-09 01:46:{second}')")
                narrow = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                await tab.call("Emulation.setDeviceMetricsOverride", **narrow)
                await tab.until("document.querySelector('#chart canvas').clientWidth < 400")
                assert await tab.value("document.documentElement.scrollWidth") <= 400
        finally:
            await server.stop()

    await finished(use())


def by_level() -> Snapshot:
    """40 settled queries of mrr 0.5: 10 in one level with 0.2, and 30 in another."""
    tally = quality(("ranker", ""), SERVED, queries=40, value=0.5 / 0.8, measures=["mrr"])
    for level, n, value in (("de", 10, 0.2), (HOSTILE, 30, 0.6)):
        path = ("segment_settled", "ranker", "", "locale", level, SERVED, "mrr")
        tally[*path, "queries"] = n
        tally[*path, "sum_units"] = n * round(value * UNITS_PER_ONE)
    return one_task(tally)


@pytest.mark.browser
def test_levels_of_a_segment_have_lines_and_are_sorted_worst_first(tmp_path: Path) -> None:
    empty = one_task(dict.fromkeys(by_level().counters, 0))
    views = FixedViews(by_level(), measures=["mrr"], segments=("locale",))
    at = "/?segment=locale&window=recent"
    seen = visit(views, tmp_path, at=at, before=[empty, by_level(), by_level()])
    label = seen.page.by_id("chart").attributes["aria-label"] or ""
    assert "de, settled: from 0.2000 to 0.2000" in label
    first, second = seen.page.by_id("levels").all("tbody")[0].all("tr")
    # 0.2 and 0.6 beside 0.5 of all 40
    assert [cell.text() for cell in first.all("td")] == ["0.2000", "−0.3000", "10", "25.0 %"]
    assert second.all("th")[0].text() == HOSTILE
    assert [cell.text() for cell in second.all("td")] == ["0.6000", "+0.1000", "30", "75.0 %"]
    assert seen.complaints == []


@pytest.mark.browser
def test_the_worst_queries_of_the_selected_series_are_shown_with_their_command(
    tmp_path: Path,
) -> None:
    one = WorstQuery(UNITS_PER_ONE // 4, NOW_MS, "it's 1", "plan/3")
    other = WorstQuery(0, NOW_MS, "t-2", "")
    pair = ("graph-ranker", "canary")
    worst = {(*pair, "mrr"): [one], (*pair, "top1"): [other], (*PAIRS[0], "mrr"): [other]}
    views = FixedViews(
        replace(settled_world(), worst=worst),
        source="kafka://broker:9092",
        learned=alarmed(model=pair[0], variant=pair[1], measure="mrr"),
        settings={
            "alarm_measures": ["top1"],
            "early_ms": 60_000,
            "topic_prefix": "eu-",
            "rankings_topic": "rankings",
            "mapping": "my mapping.toml",
        },
    )
    page = visit(views, tmp_path).page  # it begins with the series that has an alarm
    assert "Lowest mrr of graph-ranker · canary (served)" in page.by_id("worst-note").text()
    (row,) = page.by_id("worst").all("tbody")[0].all("tr")
    # from a minute before it, as judgments may be early by that
    command = "evaluator inspect --source kafka://broker:9092 --from 2025-11-21T01:59:00Z"
    command += r" --mapping 'my mapping.toml' --set topic_prefix=eu- -- 'it'\''s 1' plan/3"
    assert [cell.text() for cell in row.all("td")] == [
        "0.2500",
        "2025-11-21 02:00:00",
        command,
    ]


@pytest.mark.browser
def test_the_address_selects_the_model_and_no_command_is_shown_without_brokers(
    tmp_path: Path,
) -> None:
    model, variant = PAIRS[0]
    worst = {(model, variant, "mrr"): [WorstQuery(0, NOW_MS, "t-2", "plan/3")]}
    query = urlencode({"model": model, "variant": variant, "measure": "mrr"})
    page = visit(FixedViews(replace(settled_world(), worst=worst)), tmp_path, at=f"/?{query}").page
    note = page.by_id("worst-note").text()
    assert note == f"Lowest mrr of {model} · {variant} (served) within an hour."
    (row,) = page.by_id("worst").all("tbody")[0].all("tr")
    assert row.all("td")[2].text() == "t-2 plan/3"
    assert page.by_id("worst-query").text() == "Query"


@pytest.mark.browser
def test_a_build_without_the_chart_library_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PAGE_FILES, "/uPlot.iife.js", ("no-such-file", "text/javascript"))
    seen = visit(FixedViews(settled_world()), tmp_path)
    assert "make install" in seen.page.by_id("chart").text()
    assert len(cards(seen.page)) == len(PAIRS) * 2
    assert seen.complaints == []


@pytest.mark.browser
def test_active_alarms_are_first_and_the_section_is_hidden_without_series(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    view = learned()
    alarms = replace(view.alarms, series=view.alarms.series[::-1])
    views = FixedViews(settled_world(), learned=replace(view, alarms=alarms))
    page = visit(views, tmp_path / "with").page
    (body,) = page.by_id("alarms").all("tbody")
    tags = [row.all("span")[0].attributes["data-state"] for row in body.all("tr")]
    assert tags == ["warn", "none"]  # a series that is not compared is not green
    on, quiet = (row.text() for row in body.all("tr"))
    assert on.startswith("ranker prod served ndcg@10 ownacknowledged, coverage too1.700.5710.602")
    assert quiet.startswith("ranker prod served ndcg@10 locale de ownno reference until ")
    assert "0.00––" in quiet
    (acknowledged,) = page.by_id("alarm-list").all("li")
    assert "ndcg@10 of ranker/prod (served) is 0.571, expected 0.602" in acknowledged.text()
    carried = "Carried by: locale=de 82 % (-0.112 on 24 % of the queries), rest -0.008."
    assert carried in acknowledged.text()
    assert acknowledged.text().endswith("docs/runbooks.md#evaluatorqualityalarm")
    # Monday 1970-01-05 and 2,910 weeks
    assert on.endswith("13 Oct to 3 Nov (4)0.004")
    note = page.by_id("alarms-note").text()
    left_out = "2 series (ranker prod served mrr own; and so on)"
    assert note.endswith(f"Not watched, beyond alarm_max_series: {left_out}.")
    assert "hidden" not in page.by_id("alarms-section").attributes
    (tmp_path / "open").mkdir()
    (watched, _) = view.alarms.series
    assert watched.alarm is not None
    unknown = replace(watched, alarm=watched.alarm._replace(acknowledged=False))
    views = FixedViews(
        settled_world(), learned=replace(view, alarms=replace(alarms, series=(unknown,)))
    )
    page = visit(views, tmp_path / "open").page
    (problem,) = (li for li in page.by_id("problem-list").all("li") if "0.602" in li.text())
    assert "docs/runbooks.md#evaluatorqualityalarm" in problem.text()
    assert not page.by_id("alarm-list").all("li")  # its sentence is above
    (tmp_path / "without").mkdir()
    bare = visit(FixedViews(settled_world()), tmp_path / "without").page
    assert "hidden" in bare.by_id("alarms-section").attributes


@pytest.mark.browser
def test_a_restoring_worker_is_shown_as_restoring(tmp_path: Path) -> None:
    page = visit(FixedViews(Snapshot((task_view(7, {}, restoring=True),))), tmp_path).page
    assert page.by_id("state").text() == "Restoring"
    assert page.by_id("tasks").all("tbody")[0].text().startswith("7restoring")


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_can_be_chosen(theme: str, tmp_path: Path) -> None:
    seen = visit(FixedViews(), tmp_path, at=f"/?theme={theme}")
    assert seen.page.all("html")[0].attributes["data-theme"] == theme


def page_file(name: str) -> str:
    return resources.files("evaluator.adapters").joinpath("page", name).read_text("utf-8")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_contrast_of_text_meets_accessibility_level_aa(subtests):
    for theme in [0, 1]:
        for ink, ground in [
            *(
                (ink, ground)
                for ink in ("ink", "quiet", "accent")
                for ground in ("ground", "surface")
            ),
            *((tone, f"{tone}-soft") for tone in ("accent", "good", "warn", "bad")),
            ("quiet", "sunk"),
        ]:
            with subtests.test(theme=theme, ink=ink, ground=ground):
                found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", colours())
                tones = {name: luminance((light, dark)[theme]) for name, light, dark in found}
                low, high = sorted((tones[ink], tones[ground]))
                assert (high + 0.05) / (low + 0.05) >= 4.5


def test_the_contrast_of_lines_meets_the_required_minimum(subtests):
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", colours())
    lines = [name for name, *_ in found if name.startswith("line-")]
    assert len(lines) == 6
    for theme in [0, 1]:
        tones = {name: luminance((light, dark)[theme]) for name, light, dark in found}
        for name in lines:
            with subtests.test(theme=theme, name=name):
                low, high = sorted((tones[name], tones["surface"]))
                assert (high + 0.05) / (low + 0.05) >= 3


def test_colours_of_all_pages_are_declared_once() -> None:
    package = resources.files("evaluator")
    for page in ("adapters/page/page.css", "comparison/report.css", "replay/backtest.html"):
        text = package.joinpath(page).read_text("utf-8")
        assert not re.search(r"(?<!&)#[0-9a-fA-F]{3,8}\b|\brgba?\(", text)
        assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= {
            *re.findall(r"--([\w-]+):", colours() + text)
        }


def test_the_page_never_writes_markup() -> None:
    script = page_file("page.js")
    for way_in in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way_in not in script
