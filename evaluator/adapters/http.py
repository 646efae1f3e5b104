"""The HTTP surface of a running worker: figures for programs, and one live page for people.

Reads only. Everything it says comes from the callables of `Views`; nothing on the page or in
an answer is taken from the request, apart from `/history?after=`.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple, Protocol

import structlog
from aiohttp import web

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types import LOGS, SERVED, Snapshot, TaskView

MAX_REQUEST_BYTES = 64 * 1024
SHUTDOWN_TIMEOUT_SECONDS = 0.5
HISTORY_POINTS = 150
HISTORY_SERIES = 300
SAMPLE_INTERVAL_SECONDS = 2.0

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "evaluator",
}
PAGE_FILES: Mapping[str, tuple[str, str]] = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpUnusable(Exception):
    """The address cannot be served; the message says what to do."""


class Views(Protocol):
    """What a worker shows. Every call is quick, does not block and does not raise."""

    def snapshot(self) -> Snapshot:
        """Every task as of its last commit."""

    def readiness(self) -> list[str]:
        """Reasons why the worker is not ready; empty if it is."""

    def alive(self) -> bool:
        """Whether the loop makes progress; the broker's absence does not matter."""

    def status(self) -> Mapping[str, Any]:
        """The document of `/status`, see `status_document`."""

    def totals(self) -> Mapping[str, Any]:
        """The document of `/totals`."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of a scrape."""


def status_document(
    snapshot: Snapshot,
    *,
    version: str,
    reasons: list[str],
    now_ms: int,
    settings: Mapping[str, Any],
    store: str = "memory",
) -> dict[str, Any]:
    """The document of `/status`; *settings* are shown as given, so without secrets."""
    return {
        "version": version,
        "ready": not reasons,
        "reasons": reasons,
        "now_ms": now_ms,
        "last_commit_ms": snapshot.last_commit_ms,
        "tasks_owned": [view.task for view in snapshot],
        "tasks": [_task_document(view, store) for view in snapshot],
        "settings": dict(settings),
    }


def _task_document(view: TaskView, store: str) -> dict[str, Any]:
    lags = {log: _lag(view.end_offsets.get(log), view.positions.get(log)) for log in LOGS}
    return {
        "task": view.task,
        "positions": dict(view.positions),
        "end_offsets": dict(view.end_offsets),
        "lag": lags,
        "clocks_ms": dict(view.clocks_ms),
        "watermark_ms": view.watermark_ms,
        "held": view.held,
        "waiting": view.waiting,
        "restoring": view.restoring,
        "store": store,
        "last_checkpoint_ms": None,
    }


def _lag(end: int | None, position: int | None) -> int | None:
    return None if end is None or position is None else max(0, end - position)


class Series(NamedTuple):
    """One line of the page's charts."""

    model: str
    variant: str
    ranker: str
    measure: str


class Point(NamedTuple):
    """What settled since the point before, and the running mean at the time (None: no value)."""

    queries: int
    score: float
    running_mean: float | None


@dataclass(slots=True)
class Line:
    """The points of one series and where its settled sums stood at the last of them."""

    queries: int
    sum_units: int
    points: deque[Point]


@dataclass(slots=True)
class History:
    """The last HISTORY_POINTS samples of at most HISTORY_SERIES series, for the page alone.

    First come, first served, but rankers other than the served order take a third at most.
    Settled figures are those of this process, so a task that comes or goes leaves no step.
    """

    max_points: int = HISTORY_POINTS
    max_series: int = HISTORY_SERIES
    _times_ms: deque[int] = field(default_factory=deque)
    _lines: dict[Series, Line] = field(default_factory=dict)
    _n_keys_seen: int = 0

    def sample(self, snapshot: Snapshot, *, now_ms: int) -> None:
        """Adds one point to every line; a line that is new begins here."""
        self._discover(snapshot)
        self._times_ms.append(now_ms)
        for series, line in self._lines.items():
            line.points.append(self._point(series, line, snapshot))
        if len(self._times_ms) > self.max_points:
            self._times_ms.popleft()
        for line in self._lines.values():
            if len(line.points) > self.max_points:
                line.points.popleft()

    def document(self, snapshot: Snapshot, *, after_ms: int) -> dict[str, Any]:
        """The points later than *after_ms*, and the judged share of every pair."""
        times_ms = [t for t in self._times_ms if t > after_ms]
        return {
            "times_ms": times_ms,
            "series": [
                {**series._asdict(), "points": _last(line.points, len(times_ms))}
                for series, line in self._lines.items()
            ],
            "coverage": _coverage(snapshot),
        }

    def _discover(self, snapshot: Snapshot) -> None:
        n_keys = len(snapshot.counters) + sum(len(view.tally) for view in snapshot)
        if n_keys == self._n_keys_seen:
            return
        self._n_keys_seen = n_keys
        for tally in (snapshot.counters, *(view.tally for view in snapshot)):
            for key in tally:
                if key[0] in ("settled", "running"):
                    self._begin(Series(*key[1:5]), snapshot)

    def _begin(self, series: Series, snapshot: Snapshot) -> None:
        room = self.max_series if series.ranker == SERVED else self.max_series // 3
        if series not in self._lines and len(self._lines) < room:
            queries, sum_units = _settled(series, snapshot)
            self._lines[series] = Line(queries, sum_units, deque())

    def _point(self, series: Series, line: Line, snapshot: Snapshot) -> Point:
        queries, sum_units = _settled(series, snapshot)
        new_queries = queries - line.queries
        new_score = (sum_units - line.sum_units) / UNITS_PER_ONE
        line.queries, line.sum_units = queries, sum_units
        return Point(new_queries, round(new_score, 5), _running_mean(series, snapshot))


def _last(points: deque[Point], n: int) -> list[Point]:
    return list(points)[-n:] if n else []


def _settled(series: Series, snapshot: Snapshot) -> tuple[int, int]:
    path = ("settled", *series)
    counters = snapshot.counters
    return counters.get((*path, "queries"), 0), counters.get((*path, "sum_units"), 0)


def _running_mean(series: Series, snapshot: Snapshot) -> float | None:
    path = ("running", *series)
    queries = sum(view.tally.get((*path, "queries"), 0) for view in snapshot)
    sum_units = sum(view.tally.get((*path, "sum_units"), 0) for view in snapshot)
    return round(sum_units / (queries * UNITS_PER_ONE), 5) if queries else None


def _coverage(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Settled queries of every (model, variant) by whether they were judged, over all tasks."""
    pairs: dict[tuple[str, str], dict[str, int]] = {}
    for view in snapshot:
        for key, value in view.tally.items():
            if key[0] == "settled_queries":
                counts = pairs.setdefault((key[1], key[2]), {"yes": 0, "no": 0})
                counts[key[3]] += value
    return [
        {"model": model, "variant": variant, "judged": n["yes"], "unjudged": n["no"]}
        for (model, variant), n in pairs.items()
    ]


class HttpServer:
    """Serves `Views` until stopped. `start` and `stop` take less than a second each."""

    def __init__(self, views: Views, *, host: str, port: int) -> None:
        self._views = views
        self._host = host
        self._port = port
        self.history = History()
        self._runner: web.AppRunner | None = None
        self._sampler: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is bound; with port 0, the one that was free. After `start`."""
        if self._runner is None or not self._runner.addresses:
            return self._port
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Binds and serves. Raises HttpUnusable."""
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_TIMEOUT_SECONDS,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            raise HttpUnusable(_why_not(self._host, self._port, error)) from error
        self._runner = runner
        self._sampler = asyncio.create_task(self._sample(), name="http-history")

    async def stop(self) -> None:
        """Closes every connection; safe to call at any moment, also twice."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.cancel()
            with suppress(asyncio.CancelledError):
                await sampler
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def application(self) -> web.Application:
        """The routes and their middleware, without a socket."""
        app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[_guard])
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/status", self._status),
                web.get("/totals", self._totals),
                web.get("/history", self._history_since),
                *(web.get(path, _static(*file)) for path, file in PAGE_FILES.items()),
            ]
        )
        return app

    async def _sample(self) -> None:
        while True:
            self.history.sample(self._views.snapshot(), now_ms=_now_ms())
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = ",".join(request.headers.getall("Accept", []))
        body, content_type = self._views.metrics(accept)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def _livez(self, _request: web.Request) -> web.Response:
        alive = self._views.alive()
        return _json({"alive": alive}, status=200 if alive else 503)

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self._views.readiness()
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def _status(self, _request: web.Request) -> web.Response:
        return _json(self._views.status())

    async def _totals(self, _request: web.Request) -> web.Response:
        return _json(self._views.totals())

    async def _history_since(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= 19):
            return _json({"error": "after is a time in epoch milliseconds."}, status=400)
        return _json(self.history.document(self._views.snapshot(), after_ms=int(after)))


def _why_not(host: str, port: int, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return (
        f"http://{host}:{port} cannot be served ({reason.lower()}). Stop the program that uses "
        "the port, or set http_port (0 takes any free one) or http_host."
    )


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives every answer its security headers, and every error a readable JSON body."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        response = _json({"error": error.reason}, status=error.status, headers=headers)
    except Exception:
        log.exception("http_request_failed", path=request.path)
        response = _json({"error": "This is a defect; the log has the details."}, status=500)
    response.headers.update(SECURITY_HEADERS)
    return response


def _static(name: str, content_type: str) -> Handler:
    text = resources.files("evaluator.adapters").joinpath("page", name).read_text("utf-8")

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type, charset="utf-8")

    return serve


def _json(
    document: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    response = web.Response(
        text=json.dumps(document, separators=(",", ":")),
        status=status,
        content_type="application/json",
        headers=headers,
    )
    response.enable_compression()
    return response


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
