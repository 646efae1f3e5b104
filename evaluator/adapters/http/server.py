"""The HTTP server of a process: read-only documents, metrics, and the live page.

All content comes from `Views`; the only parameters are those of `/history` and `/weights?model=`.
"""

import asyncio
import errno
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, cast

import structlog
from aiohttp import web

from evaluator.adapters.http.access import Access, HttpUnusable
from evaluator.adapters.http.connections import Connections, Handler, Timeouts, busy_during_request
from evaluator.adapters.http.history import HOURS_POINTS, ChartHistory, Series
from evaluator.adapters.http.problems import Recent, problems_of
from evaluator.core.measures import UnknownMeasureError
from evaluator.core.measures.registry import parse_measure
from evaluator.core.online.views import LeaderView
from evaluator.exposition.colours import colours
from evaluator.exposition.snapshot import Resources, Snapshot
from evaluator.wire.weights.checksum import checksum_in

MAX_REQUEST_BYTES = 64 * 1024
MAX_CONNECTIONS = 64
SHUTDOWN_TIMEOUT_SECONDS = 0.5
SAMPLE_INTERVAL_SECONDS = 2.0
SAMPLES_PER_HOURS_POINT = 30
"""A minute between two points of the last hours."""

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
CHALLENGE = 'Basic realm="evaluator", charset="UTF-8"'
"""Makes a browser prompt for the token; programs send it as a Bearer token."""
MOST_NAMED: Final = 16
"""Models that an error names."""
_LEARNING_OFF: Final = (
    "This process does not learn weights. Set learning to propose or auto, and send rankings with "
    "features."
)
_NO_WEIGHTS_YET: Final = (
    "No weights are live yet. initial_weights, if set, become live with the first settled query "
    "that has features. Learned weights become live when a challenger is promoted, with learning = "
    "auto; with propose, only by `evaluator weights roll-back`. /status has the progress of "
    "learning."
)
_ETAG: Final = re.compile(r'(?:W/)?"([^"]*)"')
PROBES = ("/livez", "/readyz")
_PAGE: Final = Path(__file__).parent.parent / "page"
PAGE_FILES: Mapping[str, tuple[str, str]] = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/uPlot.iife.js": ("uPlot.iife.js", "text/javascript"),
    "/uPlot.min.css": ("uPlot.min.css", "text/css"),
}

log = structlog.get_logger(__name__)


class Views(Protocol):
    """The views of a process. Calls are fast, do not block and do not raise; `metrics` may wait.

    With `reads_queries` there are also `/totals`, `/weights`, `/history` and the page.
    """

    reads_queries: bool

    def snapshot(self) -> Snapshot:
        """All tasks as of their last commit."""

    def readiness(self) -> list[str]:
        """Reasons why the process is not ready."""

    def alive(self) -> bool:
        """Whether the loop makes progress, with or without the broker."""

    def status(self) -> Mapping[str, Any]:
        """The document of `/status`, see `status_document`."""

    def totals(self) -> Mapping[str, Any]:
        """The document of `/totals`."""

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of a scrape."""

    def weights(self) -> Mapping[str, bytes] | None:
        """The live weights record of each model, as it was published; None without learning."""

    def leader(self) -> LeaderView | None:
        """The state of learning and alarms; None without a leader."""

    def resources(self) -> Resources:
        """Use and limits of memory and disk."""


class HttpServer:
    """Serves `Views`. `start` and `stop` take less than a second each."""

    def __init__(
        self,
        views: Views,
        *,
        host: str,
        port: int,
        access: Access | None = None,
        max_connections: int = MAX_CONNECTIONS,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  # it is frozen
    ) -> None:
        self._views = views
        self._access = access or Access()
        self._host = host
        self._port = port
        self.history = ChartHistory()
        self.hours = ChartHistory(max_points=HOURS_POINTS)
        self.recent = Recent()
        self._connections = Connections(most=max_connections, timeouts=timeouts)
        self._runner: web.AppRunner | None = None
        self._sampler: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port, after `start`."""
        addresses = self._connections.addresses
        return addresses[0][1] if addresses else self._port

    async def start(self) -> None:
        """Binds and serves. Raises HttpUnusable."""
        context = await asyncio.to_thread(self._access.start)
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_TIMEOUT_SECONDS,
        )
        await runner.setup()
        serve = cast("web.Server", runner.server)
        try:
            await self._connections.start(serve, self._host, self._port, context)
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            if getattr(error, "errno", None) == errno.EMFILE:
                raise
            raise HttpUnusable(_why_not(self._host, self._port, error)) from error
        self._runner = runner
        self._sampler = asyncio.create_task(self._sample(), name="http-history")

    def reload(self) -> None:
        """Reads the files of the token and of TLS now; new connections have the certificate."""
        self._access.reload()

    async def stop(self) -> None:
        """Closes every connection; idempotent."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.cancel()
            with suppress(asyncio.CancelledError):
                await sampler
        runner, self._runner = self._runner, None
        if runner is not None:
            await self._connections.stop_listening()
            await runner.cleanup()
            await self._connections.close()

    def application(self) -> web.Application:
        """The routes and their middleware, without a socket."""
        app = web.Application(
            client_max_size=MAX_REQUEST_BYTES,
            middlewares=[busy_during_request, _guard, self._admit],
        )
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/status", _document(self._status)),
            ]
        )
        if self._views.reads_queries:
            app.add_routes(
                [
                    web.get("/totals", _document(self._views.totals)),
                    web.get("/weights", self._weights),
                    web.get("/history", self._history_since),
                    *(web.get(path, _static(*file)) for path, file in PAGE_FILES.items()),
                ]
            )
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses requests without the token, except probes."""
        given = request.headers.get("Authorization")
        if (
            not self._access.needs_token
            or request.path in PROBES
            or await asyncio.to_thread(self._access.admits, given)
        ):
            return await handler(request)
        error = "The token of http_token_file is required, as a Bearer token or as a password."
        return _json({"error": error}, status=401, headers={"WWW-Authenticate": CHALLENGE})

    async def _sample(self) -> None:
        for turn in count():
            snapshot, now_ms = self._views.snapshot(), _now_ms()
            self.history.sample(snapshot, now_ms=now_ms)
            if turn % SAMPLES_PER_HOURS_POINT == 0:
                self.hours.sample(snapshot, now_ms=now_ms)
            self.recent.sample(snapshot, now_ms=now_ms)
            self._access.renew()
            self._connections.report()
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = ",".join(request.headers.getall("Accept", []))
        body, content_type = await self._views.metrics(accept)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def _livez(self, _request: web.Request) -> web.Response:
        alive = self._views.alive()
        return _json({"alive": alive}, status=200 if alive else 503)

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self._views.readiness()
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    def _status(self) -> Mapping[str, Any]:
        document = self._views.status()
        problems = problems_of(
            self._views.snapshot(),
            self.recent,
            reasons=document["reasons"],
            resources=self._views.resources(),
            leader=self._views.leader(),
            now_ms=document["now_ms"],
            max_future_skew_ms=document["settings"]["max_future_skew_ms"],
        )
        return {**document, "problems": [problem._asdict() for problem in problems]}

    async def _weights(self, request: web.Request) -> web.Response:
        """The live record of a model, byte by byte, or an error."""
        live, model = self._views.weights(), request.query.get("model")
        if live is None:
            return _json({"error": _LEARNING_OFF}, status=404)
        if model is None and len(live) > 1:
            error = f"Several models have weights: {_named(live)}. Choose one with ?model=NAME."
            return _json({"error": error}, status=400)
        record = next(iter(live.values()), None) if model is None else live.get(model)
        if record is None:
            error = _NO_WEIGHTS_YET
            if live:
                error = f"No weights of this model are live. Models with weights: {_named(live)}."
            return _json({"error": error}, status=404)
        checksum = checksum_in(record)
        headers = {"ETag": f'"{checksum}"', "Cache-Control": "no-cache"}
        if _has(checksum, ",".join(request.headers.getall("If-None-Match", []))):
            return web.Response(status=304, headers=headers)
        return web.Response(body=record, content_type="application/json", headers=headers)

    async def _history_since(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= 19):
            return _json({"error": "after must be a time in epoch milliseconds."}, status=400)
        chosen = {name: text for name, text in request.query.items() if name in Series._fields}
        if "measure" in chosen:
            with suppress(UnknownMeasureError):  # of another package
                chosen["measure"] = parse_measure(chosen["measure"]).canonical
        history = self.hours if request.query.get("window") == "hours" else self.history
        snapshot = self._views.snapshot()
        return _json(history.document(snapshot, after_ms=int(after), **chosen))


def _has(checksum: str, if_none_match: str) -> bool:
    """Whether the client has the record; weak comparison (RFC 9110, If-None-Match)."""
    return if_none_match.strip() == "*" or checksum in _ETAG.findall(if_none_match)


def _named(live: Mapping[str, bytes]) -> str:
    names = sorted(live)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(json.dumps(name) for name in names[:MOST_NAMED]) + more


def _why_not(host: str, port: int, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return (
        f"http://{host}:{port} cannot be served ({reason.lower()}). Stop the program that uses "
        "the port, or set http_port (0 takes any free one) or http_host."
    )


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Adds security headers to responses, and a JSON body to errors."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        response = _json({"error": error.reason}, status=error.status, headers=headers)
    except Exception:
        log.exception("http_request_failed", path=request.path)
        response = _json({"error": "This is a defect; the log has the details."}, status=500)
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _document(view: Callable[[], Mapping[str, Any]]) -> Handler:
    async def serve(_request: web.Request) -> web.Response:
        return _json(view())

    return serve


def _static(name: str, content_type: str) -> Handler:
    try:
        text = (_PAGE / name).read_text("utf-8")
    except FileNotFoundError:
        text = ""  # built without the chart library: the page has no charts, and names the reason
    if name == "page.css":
        text = colours() + text

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
