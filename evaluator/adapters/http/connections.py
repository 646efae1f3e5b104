"""Limits the connections of the HTTP server in number and time."""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Struct

BACKLOG: Final = 128
ACCEPTS_PER_TURN: Final = 8
"""Connections accepted in one turn of the event loop. Far below the limit, so that an arrived
request is served before later connections can replace its connection."""
ROOM_SECONDS: Final = 0.01
"""Pause after a failed accept, until the dropped connection is closed."""
ACCEPT_PAUSE_SECONDS: Final = 0.5
"""Pause if the process has no file for a connection, and no connection can be dropped."""
REPORT_INTERVAL_SECONDS: Final = 60.0

PARTS: Final = 10
"""More than the turns of the event loop between an accepted connection and its handler."""

_BAD_REQUEST: Final = (HttpProcessingError, web.RequestPayloadError, UnicodeError)
"""Errors that aiohttp logs for unreadable requests: HTTP, compressed body, text."""

State = Literal["head", "busy", "idle"]

log = structlog.get_logger(__name__)


class Timeouts(Struct, frozen=True):
    """Seconds until a connection is closed, by state."""

    head: float = 5.0
    """Until the TLS handshake is done, or the head of a request is complete."""
    busy: float = 30.0
    """Until the response is computed."""
    idle: float = 30.0
    """Until the response is sent and the next request begins."""


class Connection(asyncio.Protocol):
    """Wraps the protocol of one connection and enforces its deadlines.

    A timeout is divided into PARTS. A stall of the event loop, however long, takes one of them, so
    that a request that has arrived meanwhile is read first.
    """

    def __init__(
        self, inner: asyncio.Protocol, timeouts: Timeouts, expire: Callable[["Connection"], None]
    ) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner = inner
        self._timeouts = timeouts
        self._expire = expire
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.enter("head")

    def enter(self, state: State) -> None:
        """Enters a state and starts its deadline."""
        self.state, self.since = state, asyncio.get_running_loop().time()
        if self._timer is not None:
            self._timer.cancel()
        self._wait(PARTS)

    def _wait(self, n_parts: int) -> None:
        """Waits for the last parts of the timeout."""
        if not n_parts:
            self._expire(self)
            return
        seconds = getattr(self._timeouts, self.state) / PARTS
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._wait, n_parts - 1)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """The state from the end of a request's head to its response."""
        self.enter("busy")
        try:
            yield
        finally:
            if not self.closed.done():
                self.enter("idle")

    def end(self) -> None:
        """Aborts the connection and discards unsent data."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.state == "idle":
            self.enter("head")
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def busy_during_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: a connection is busy until the response is computed."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    if not isinstance(protocol, Connection):
        return await handler(request)
    with protocol.busy():
        return await handler(request)


class Connections:
    """Listens, and serves a limited number of connections.

    At the limit a new connection replaces the one with the oldest incomplete request, else the one
    that has been idle longest. If all are busy, the new one is closed.
    """

    def __init__(self, *, most: int, timeouts: Timeouts) -> None:
        self._most = most
        self._timeouts = timeouts
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._closed: Counter[str] = Counter()
        self._next_report = 0.0

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each listening socket."""
        return [listener.getsockname()[:2] for listener in self._listeners]

    async def start(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        context: ssl.SSLContext | None,
    ) -> None:
        """Binds and serves. Raises OSError, OverflowError."""
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        self._listeners = [each.dup() for each in bound.sockets]
        bound.close()
        for listener in self._listeners:
            listener.setblocking(False)
            listener.listen(BACKLOG)
            accepting = self._accept(listener, make_protocol, context)
            self._accepting.append(asyncio.create_task(accepting, name="http-accept"))
        logging.getLogger("aiohttp.server").addFilter(self._log_filter)

    async def stop_listening(self) -> None:
        """Closes the listening sockets; connections remain."""
        logging.getLogger("aiohttp.server").removeFilter(self._log_filter)
        await _cancelled(self._accepting)
        self._accepting = []
        while self._listeners:
            self._listeners.pop().close()

    async def close(self) -> None:
        """Drops every connection."""
        await _cancelled(list(self._open.values()))

    def report(self) -> None:
        """Logs counts of closed connections by reason, at most once a minute."""
        now = asyncio.get_running_loop().time()
        if self._closed and now >= self._next_report:
            log.warning("http_connections_closed", **self._closed)
            self._closed.clear()
            self._next_report = now + REPORT_INTERVAL_SECONDS

    async def _accept(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        n_accepted = 0
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                no_files = error.errno in {errno.EMFILE, errno.ENFILE}
                self._closed["no_files" if no_files else "unreadable"] += 1
                stuck = no_files and not self._drop_waiting()
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS if stuck else ROOM_SECONDS)
                continue
            if self._has_room():
                connection = Connection(make_protocol(), self._timeouts, self._expired)
                serving = asyncio.create_task(self._serve(connection, accepted, context))
                self._open[connection] = serving
                serving.add_done_callback(partial(self._ended, connection, accepted))
            else:
                accepted.close()
            n_accepted += 1
            if n_accepted % min(ACCEPTS_PER_TURN, self._most) == 0:
                await asyncio.sleep(0)  # an immediate accept does not yield

    def _has_room(self) -> bool:
        if len(self._open) < self._most:
            return True
        self._closed["too_many"] += 1
        return self._drop_waiting()

    def _drop_waiting(self) -> bool:
        """Closes the connection that a new one replaces, if any."""
        waiting = [each for each in self._open if each.state != "busy"]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: (each.state == "idle", each.since))
        self._open.pop(oldest).cancel()
        return True

    async def _serve(
        self, connection: Connection, accepted: socket.socket, context: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: connection, accepted, ssl=context)
        except OSError:  # the TLS handshake failed
            self._closed["unreadable"] += 1
            return
        await connection.closed

    def _ended(
        self, connection: Connection, accepted: socket.socket, serving: "asyncio.Task[None]"
    ) -> None:
        self._open.pop(connection, None)
        connection.end()
        accepted.close()
        if not serving.cancelled():
            serving.result()

    def _expired(self, connection: Connection) -> None:
        if connection in self._open:
            if connection.state != "idle":
                self._closed["slow"] += 1
            self._open.pop(connection).cancel()

    def _log_filter(self, record: logging.LogRecord) -> bool:
        """Filters log lines about unreadable requests, and counts them."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, _BAD_REQUEST):
            self._closed["unreadable"] += 1
            return False
        return True


async def _cancelled(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
