"""A strict reader of OpenMetrics files with timestamps, which refuses data that loaders drop."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from evaluator.exposition.series import END, LABEL_NAME

SUFFIXES: Final = {"counter": "_total", "unknown": ""}
"""Suffixes of the names of samples beyond the names of their families."""

_LABEL = rf'{LABEL_NAME.pattern}="(?:[^"\\\n]|\\["\\n])*"'
_HEAD: Final = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{(?P<labels>{_LABEL}(?:,{_LABEL})*)?\}})?"
)
_PAIR: Final = re.compile(rf'({LABEL_NAME.pattern})="((?:[^"\\\n]|\\["\\n])*)"')
_TYPE: Final = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|unknown)")
_HELP: Final = re.compile(r"# HELP [a-zA-Z_:][a-zA-Z0-9_:]* [^\n]+")
_NUMBER: Final = re.compile(rb"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")


class ExpositionError(Exception):
    """A text is not strict OpenMetrics."""


class Checked:
    """Lines of a file, which must be strict OpenMetrics.

    Beyond the syntax, families and series must be contiguous, times must be whole seconds that grow
    within a series, sums must never fall, and `# EOF` must be at the end. `last` has the last value
    of each series, `n_samples` is the number of samples, and `first_time` and `last_time` are their
    range.
    """

    def __init__(self) -> None:
        self.last: dict[bytes, bytes] = {}
        self.n_samples = 0
        self.first_time: int | None = None
        self.last_time: int | None = None
        self._families: set[str] = set()
        self._name = ""  # of the samples of this family
        self._series = self._value = b""
        self._time = -1
        self._ended = False

    def lines(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the lines. Raises ExpositionError at the first invalid line, or at the end."""
        for line in lines:
            if self._ended:
                raise ExpositionError(f"a line after the end: {line!r}")
            if line.startswith(b"#"):
                self._comment(line)
            else:
                self._sample(line)
            yield line
        if not self._ended:
            raise ExpositionError("the end is missing")

    def _comment(self, line: bytes) -> None:
        self._end_series()
        text = line.decode()
        if line == END:
            self._ended = True
        elif found := _TYPE.fullmatch(text):
            if found[1] in self._families:
                raise ExpositionError(f"a family in two pieces: {text}")
            self._families.add(found[1])
            self._name = found[1] + SUFFIXES[found[2]]
        elif not _HELP.fullmatch(text):
            raise ExpositionError(f"not understood: {text}")

    def _sample(self, line: bytes) -> None:
        try:
            series, value, stamp = line.rsplit(b" ", 2)
            time = int(stamp)
        except ValueError:
            raise ExpositionError(f"no sample with a time: {line!r}") from None
        if series != self._series:
            self._end_series()
            self._begin(series)
        if time <= self._time:
            raise ExpositionError(f"back in time: {line!r}")
        if value != self._value:
            if not _NUMBER.fullmatch(value):
                raise ExpositionError(f"no number: {line!r}")
            if self._value and float(value) < float(self._value):
                raise ExpositionError(f"a sum falls: {line!r}")
            self._value = value
        if self.first_time is None or time < self.first_time:
            self.first_time = time
        self._time = time
        self.n_samples += 1

    def _begin(self, series: bytes) -> None:
        """The first sample of a series."""
        found = _HEAD.fullmatch(series.decode())
        if found is None or found["name"] != self._name:
            raise ExpositionError(f"no series of {self._name or 'any family'}: {series!r}")
        labels = [label for label, _ in _PAIR.findall(found["labels"] or "")]
        if len(set(labels)) != len(labels):
            raise ExpositionError(f"a label twice: {series!r}")
        if series in self.last:
            raise ExpositionError(f"a series in two pieces: {series!r}")
        self._series = series

    def _end_series(self) -> None:
        if self._series:
            self.last[self._series] = self._value
            self.last_time = max(self._time, self.last_time or 0)
        self._series, self._value, self._time = b"", b"", -1
