"""Fetch responses, received into the buffer of the decoder; depends on internals of aiokafka.

aiokafka receives chunks of at most 256 KiB, pauses and resumes the socket for each of them, and
copies an answer four times. Here the rest of a long answer is received into the array that keeps
it, and its record sets are views of that array.
"""

import asyncio
import time
from typing import Any, Final

import numpy as np
from aiokafka import conn
from aiokafka.protocol.fetch import FetchRequest

MIN_FRAME_BYTES: Final = 64 << 10
"""Shorter answers are read as aiokafka reads them."""
MAX_FRAME_BYTES: Final = 64 << 20
"""Longer answers likewise, so that memory is taken only for what has been received."""
_CHUNK_BYTES: Final = 64 << 10
_VIEW_BYTES: Final = 4 << 10

Frame = memoryview
"""A long answer; other answers are bytes."""


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/conn.py#L93
class FrameProtocol(conn.AIOKafkaProtocol, asyncio.BufferedProtocol):  # type: ignore[misc] # untyped in the library
    """Reads long answers in place, and gives everything else to the stream reader."""

    def __init__(
        self, closed: Any, reader: asyncio.StreamReader, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(closed, reader, loop=loop)
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._rest: Frame = self._chunk[:0]  # bytes of a frame that are not received yet
        self._n_unread = 0  # bytes in the reader
        self._received: asyncio.Future[None] = loop.create_future()
        self._read_short = reader.readexactly
        reader.readexactly = self._read  # type: ignore[assignment,method-assign] # what it returns is read only

    def get_buffer(self, sizehint: int) -> Frame:  # noqa: ARG002  # of asyncio
        """Where the next bytes are received."""
        return self._rest or self._chunk

    def buffer_updated(self, n_bytes: int) -> None:
        """Called when *n_bytes* bytes were received."""
        if not self._rest:
            self._n_unread += n_bytes
            self.data_received(bytes(self._chunk[:n_bytes]))
            return
        self._rest = self._rest[n_bytes:] or self._chunk[:0]  # an empty view would keep the frame
        if not self._rest and not self._received.done():
            self._received.set_result(None)

    def eof_received(self) -> bool | None:
        """Called when the broker has closed its side."""
        self._fail(None)
        stays_open: bool | None = super().eof_received()
        return stays_open

    def connection_lost(self, error: Exception | None) -> None:
        """Called at the end of the connection."""
        self._fail(error)
        super().connection_lost(error)

    def _fail(self, error: Exception | None) -> None:
        if self._rest and not self._received.done():
            n_left = len(self._rest)
            self._received.set_exception(error or asyncio.IncompleteReadError(b"", n_left))

    async def _read(self, n_bytes: int) -> bytes | Frame:
        """The next bytes, as `StreamReader.readexactly`."""
        if not MIN_FRAME_BYTES <= n_bytes <= MAX_FRAME_BYTES:
            found = await self._read_short(n_bytes)
            self._n_unread -= n_bytes
            return found
        frame = np.empty(n_bytes, np.uint8).data
        n_unread = min(self._n_unread, n_bytes)
        frame[:n_unread] = await self._read_short(n_unread)  # without a wait
        self._n_unread -= n_unread
        self._rest = frame[n_unread:] or self._chunk[:0]
        if self._rest:
            self._received = asyncio.get_running_loop().create_future()
            await self._received
        return frame


class _Stream:
    """A frame as the decoders of aiokafka read it: record sets are views, short parts are bytes."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._at = frame, 0

    def read(self, n_bytes: int) -> bytes | Frame:
        part = self._frame[self._at : self._at + n_bytes]
        self._at += len(part)
        return part if n_bytes >= max(_VIEW_BYTES, len(self._frame) >> 3) else bytes(part)


class FrameConnection(conn.AIOKafkaConnection):  # type: ignore[misc] # untyped in the library
    """Decodes answers to fetches from frames."""

    # https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/conn.py#L537
    def _handle_frame(self, answer: bytes | Frame) -> None:
        correlation_id, request, future = self._requests[0]
        if isinstance(answer, bytes) or request.API_KEY != FetchRequest.API_KEY:
            super()._handle_frame(bytes(answer))
            return
        stream = _Stream(answer)
        header = request.parse_response_header(stream)
        if future.done() or header.correlation_id != correlation_id:
            super()._handle_frame(bytes(answer))
            return
        future.set_result(request.RESPONSE_TYPE.decode(stream))
        self._last_action = time.monotonic()
        self._requests.popleft()
