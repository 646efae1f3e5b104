"""Samples with their times as OpenMetrics, and a strict reader that believes nothing of it.

The text of a file is made of families, a family of metrics (one set of labels), a metric of points
in the order of time: https://prometheus.io/docs/specs/om/open_metrics_spec. Programs that load such
files drop what is out of order without a word, so a file is read back before anybody gets it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from evaluator.wire.metrics import Spec

END: Final = b"# EOF"

SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
}
LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

_LABEL = rf'{LABEL_NAME.pattern}="(?:[^"\\\n]|\\["\\n])*"'
_HEAD: Final = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{(?P<labels>{_LABEL}(?:,{_LABEL})*)?\}})?"
)
_PAIR: Final = re.compile(rf'({LABEL_NAME.pattern})="((?:[^"\\\n]|\\["\\n])*)"')
_TYPE: Final = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|histogram)")
_NUMBER: Final = re.compile(rb"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")


class ExpositionError(Exception):
    """A text is no OpenMetrics, or does not say what it should."""


def family_of(spec: Spec) -> str:
    """The name of the family of a metric: without the suffix of its samples."""
    return spec.name.removesuffix("_total")


def header(spec: Spec) -> list[bytes]:
    """The lines before the samples of a family."""
    name = family_of(spec)
    meaning = spec.meaning.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return [f"# HELP {name} {meaning}".encode(), f"# TYPE {name} {spec.kind}".encode()]


def head(name: str, labels: Mapping[str, str]) -> bytes:
    r"""Name and labels of a sample, as they stand before its value.

    >>> head("up", {"job": 'a"b', "path": "c\\d"})
    b'up{job="a\\"b",path="c\\\\d"}'
    """
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}".encode() if pairs else name.encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Checked:
    """Lines on their way into a file, refused where they are no strict OpenMetrics.

    Beyond the form: families and metrics in one piece, times in whole seconds that grow within a
    series and never fall within a metric, counters that never fall, `# EOF` at the end.
    `last` has the value that each series ends with, `n_samples` is their number.
    """

    def __init__(self) -> None:
        self.last: dict[bytes, bytes] = {}
        self.n_samples = 0
        self._times: dict[bytes, int] = {}
        self._metric_of: dict[bytes, tuple[str, str]] = {}
        self._metrics: set[tuple[str, str]] = set()
        self._families: dict[str, str] = {}
        self._family = self._kind = ""
        self._metric: tuple[str, str] | None = None
        self._metric_time = -1
        self._ended = False

    def lines(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The same lines. Raises ExpositionError at the first that is wrong, or at the end."""
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
        text = line.decode()
        if line == END:
            self._ended = True
        elif found := _TYPE.fullmatch(text):
            self._family, self._kind = found[1], found[2]
            if self._family in self._families:
                raise ExpositionError(f"a family in two pieces: {text}")
            self._families[self._family] = self._kind
        elif not re.fullmatch(r"# HELP [a-zA-Z_:][a-zA-Z0-9_:]* [^\n]+", text):
            raise ExpositionError(f"not understood: {text}")

    def _sample(self, line: bytes) -> None:
        try:
            series, value, stamp = line.rsplit(b" ", 2)
            time = int(stamp)
        except ValueError:
            raise ExpositionError(f"no sample with a time: {line!r}") from None
        before = self._times.get(series)
        metric = self._begin(series) if before is None else self._metric_of[series]
        if metric != self._metric:
            if before is not None:
                raise ExpositionError(f"a metric in two pieces: {line!r}")
            self._metric, self._metric_time = metric, -1
        if time < self._metric_time or (before is not None and time <= before):
            raise ExpositionError(f"back in time: {line!r}")
        if value != self.last.get(series):
            self._value(series, value, line)
        self._times[series] = self._metric_time = time
        self.n_samples += 1

    def _begin(self, series: bytes) -> tuple[str, str]:
        """Takes in a series that was not there before: the metric that it belongs to."""
        found = _HEAD.fullmatch(series.decode())
        names = [self._family + suffix for suffix in SUFFIXES.get(self._kind, ())]
        if found is None or found["name"] not in names:
            raise ExpositionError(f"no series of the family {self._family!r}: {series!r}")
        pairs = _PAIR.findall(found["labels"] or "")
        labels = [label for label, _ in pairs]
        if len(set(labels)) != len(labels):
            raise ExpositionError(f"a label twice: {series!r}")
        of_bucket = found["name"].endswith("_bucket") and self._kind == "histogram"
        if of_bucket != ("le" in labels and self._kind == "histogram"):
            raise ExpositionError(f"a bucket without its bound, or a bound without: {series!r}")
        metric = (self._family, repr(sorted(pair for pair in pairs if pair[0] != "le")))
        if metric != self._metric and metric in self._metrics:
            raise ExpositionError(f"a metric in two pieces: {series!r}")
        self._metrics.add(metric)
        self._metric_of[series] = metric
        return metric

    def _value(self, series: bytes, value: bytes, line: bytes) -> None:
        if not _NUMBER.fullmatch(value):
            raise ExpositionError(f"no number: {line!r}")
        if float(value) < float(self.last.get(series, 0)):
            raise ExpositionError(f"a counter falls: {line!r}")
        self.last[series] = value


def points(heads: Sequence[bytes], values: Sequence[bytes], times: range) -> Iterator[bytes]:
    """The samples of one metric, unchanged through some times."""
    before = [head + b" " + value + b" " for head, value in zip(heads, values, strict=True)]
    for time in times:
        stamp = b"%d" % time
        for text in before:
            yield text + stamp
