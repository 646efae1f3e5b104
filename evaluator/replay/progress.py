"""A bar on stderr: by bytes where the source knows them, else by records."""

import sys
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from tqdm import tqdm

from evaluator.ports import UNKNOWN_END, RangeSource
from evaluator.wire.records import Records


@runtime_checkable
class CountsBytes(Protocol):
    """A source that knows how much it has to read, if not how many records."""

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""


class Progress:
    """How far a replay has come. *shown* None: if stderr is a terminal."""

    def __init__(
        self, source: RangeSource, bounds: Iterable[tuple[int, int]], *, shown: bool | None
    ) -> None:
        self._bytes_of = source if isinstance(source, CountsBytes) else None
        bounds = list(bounds)
        if self._bytes_of is not None:
            total: int | None = self._bytes_of.size_bytes
        else:
            known = all(end != UNKNOWN_END for _, end in bounds)
            total = sum(end - first for first, end in bounds) if known else None
        shown = sys.stderr.isatty() if shown is None else shown
        self._bar = tqdm(
            total=total,
            desc="replay",
            unit="B" if self._bytes_of is not None else " records",
            unit_scale=True,
            file=sys.stderr,
            disable=not shown,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.close()

    def on_read(self, records: Records) -> None:
        """Moves the bar by what was read."""
        if self._bytes_of is None:
            self._bar.update(len(records))
        else:
            self._bar.update(self._bytes_of.bytes_read - self._bar.n)
