"""One query in full, from its messages and outputs, as text.

Outcomes follow from the outputs of the evaluator: a dead letter has the reason, and without one a
message is a repetition or counts, as far as it has been read.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

from evaluator.core.measures.order import exact_order
from evaluator.core.types.records import SERVED, Log
from evaluator.tables import format_table, printable, utc_time
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.models import Judgment, Ranking
from evaluator.wire.messages.strict import read_message

MAX_SHOWN: Final = 50
"""Rows of one table."""
MAX_QUERIES: Final = 100
MAX_KEPT: Final = 10_000
Message = Ranking | Judgment | Malformed


class MessagePosition(NamedTuple):
    """The position of a message; `message_index` is its position among several of a record."""

    log: Log
    partition: int
    offset: int
    message_index: int = 0


class Letter(NamedTuple):
    """A dead letter: its reason, and the detail for operators."""

    reason: str
    detail: str


class Found(NamedTuple):
    """A message of a trace; `timestamp_ms` is that of the record, -1 without one."""

    position: MessagePosition
    value: bytes
    timestamp_ms: int = -1


class Evidence(Struct):
    """The findings of a trace: messages, documents of outputs, dead letters by position."""

    messages: dict[MessagePosition, Found] = field(default_factory=dict)
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)
    settled: list[Mapping[str, Any]] = field(default_factory=list)
    letters: dict[MessagePosition, Letter] = field(default_factory=dict)
    cut: bool = False  # one of them has MAX_KEPT

    def is_full(self, kept: Sized) -> bool:
        """Whether *kept*, one of the collections, is full; the report then mentions it."""
        self.cut = self.cut or len(kept) >= MAX_KEPT
        return len(kept) >= MAX_KEPT


class Sought:
    """The trace, and one of its nodes or all."""

    def __init__(self, trace_id: str, node_id: str | None) -> None:
        self.trace_id, self.node_id = trace_id, node_id
        plain = trace_id.isascii() and trace_id.isprintable() and not set(trace_id) & set('"\\')
        self._needle = trace_id.encode() if plain else b""

    def document(self, value: bytes | None) -> Mapping[str, Any] | None:
        """The object in *value*, if it is of the trace and node."""
        if value is None or (self._needle not in value and b"\\" not in value):
            return None
        try:
            found = msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("trace_id") != self.trace_id:
            return None
        return found if self.node_id in {None, found.get("node_id")} else None


def letter_of(
    document: Mapping[str, Any], logs: Mapping[str, Log], *, is_message: bool
) -> tuple[MessagePosition, Letter] | None:
    """The position and reason in a row of dead-letters.ndjson, or in headers; *logs* by topic.

    A letter that *is_message*, not a foreign record, may have an index.
    """
    log = logs.get(document["topic"])
    if log is None:
        return None
    index = document.get("index", "")
    if isinstance(headers := document.get("headers"), list):  # of a row, in base64
        index = base64.b64decode(dict(headers).get("index") or b"").decode()
    position = MessagePosition(
        *(log, int(document["partition"]), int(document["offset"])),
        int(index) if is_message and index.isdecimal() else 0,
    )
    return position, Letter(document["reason"], document["detail"])


def report(sought: Sought, evidence: Evidence) -> Iterator[str]:
    """The text, query by query; a single line if nothing was found."""
    nodes: dict[str, Evidence] = {}
    for position, found in evidence.messages.items():
        document = sought.document(found.value)
        if document is not None:
            _at(nodes, document).messages[position] = found
    for name in ("evaluations", "settled"):
        for document in getattr(evidence, name):
            getattr(_at(nodes, document), name).append(document)
    for number, (node_id, of_node) in enumerate(sorted(nodes.items())):
        if number == MAX_QUERIES:
            yield f"\n{len(nodes) - MAX_QUERIES} more queries of the trace: name a node."
            break
        of_node.letters = evidence.letters
        yield from _query(sought.trace_id, node_id, of_node)
    if not nodes:
        yield (
            f"Nothing was found of trace {printable(sought.trace_id)}"
            f"{'' if sought.node_id is None else ', node ' + printable(sought.node_id)}. It may "
            "have expired, not have been read yet, or be in a message that is not valid JSON."
        )
    if evidence.cut:
        yield (
            f"\nThe trace has more than {MAX_KEPT:,} messages, evaluations, settled queries or "
            "dead letters, and only the first of them are here. Name a node."
        )


def _at(nodes: dict[str, Evidence], document: Mapping[str, Any]) -> Evidence:
    return nodes.setdefault(str(document.get("node_id")), Evidence())


class _Timeline:
    """The messages of one query in the order of the logs, rankings first, with their outcomes."""

    def __init__(self, of: Evidence) -> None:
        self.ranking: Ranking | None = None
        self.judged: dict[str, str] = {}  # grades of applied judgments, by candidate
        self.rows: list[list[str]] = []
        self._start_ms: int | None = None
        self._seen: set[bytes] = set()
        self._ids: dict[str, bytes] = {}
        by_log = sorted(
            of.messages, key=lambda position: (position.log != "rankings", *position[1:])
        )
        for found in map(of.messages.__getitem__, by_log):
            self._add(found, of.letters.get(found.position))

    def _add(self, found: Found, letter: Letter | None) -> None:
        kind: type[Ranking | Judgment] = Ranking if found.position.log == "rankings" else Judgment
        message: Message = read_message(found.value, kind)
        if isinstance(message, Malformed):
            outcome, why = "malformed", f"{message.reason}: {message.detail}"
            time_ms = None
        else:
            outcome, why = letter or self._without_letter(message, found)
            time_ms = message.timestamp_ms
        if time_ms is None and found.timestamp_ms >= 0:
            time_ms = found.timestamp_ms
        if outcome == "started" and isinstance(message, Ranking):
            self.ranking, self._start_ms = message, time_ms
        if outcome == "applied" and isinstance(message, Judgment):
            self.judged |= {name: _number(grade) for name, grade in message.grades.items()}
        self.rows.append(_row(found.position, message, time_ms, self._start_ms, outcome, why))

    def _without_letter(self, message: Ranking | Judgment, found: Found) -> tuple[str, str]:
        name = message.judgment_id if isinstance(message, Judgment) else None
        is_repeated = found.value == self._ids.get(name) if name else found.value in self._seen
        if is_repeated:
            return "duplicate", "the same judgment_id and bytes" if name else "the same bytes"
        self._seen.add(found.value)
        if name:
            self._ids[name] = found.value
        if isinstance(message, Ranking):
            if self.ranking is None:
                return "started", "started the query"
            return "unknown", "no dead letter: a later use of the key, or not read yet"
        if self.ranking is None:
            return "early", "no ranking was found: it waits up to early_ms, and is then an orphan"
        return "applied", "no dead letter: it counts once it has been read"


def _query(trace_id: str, node_id: str, of: Evidence) -> Iterator[str]:
    timeline = _Timeline(of)
    yield f"\nTrace {printable(trace_id)}, node {printable(node_id)}"
    yield from _summary(timeline.ranking, of)
    latest = max(of.evaluations, key=lambda each: each["revision"], default=None)
    if timeline.ranking is not None:
        yield from _candidates(timeline.ranking, latest, of.settled, timeline.judged)
    elif latest is not None:
        yield from _first_three(latest)
    if timeline.rows:
        header = ("message", "offset", "time (UTC)", "after", "source", "grades", "outcome", "why")
        yield "\nMessages"
        yield format_table(header, timeline.rows[:MAX_SHOWN], numbers=(1, 3))
        yield from _more(timeline.rows)
    yield from _values(latest, of.settled)


def _row(
    position: MessagePosition,
    message: Message,
    time_ms: int | None,
    start_ms: int | None,
    outcome: str,
    why: str,
) -> list[str]:
    source, after, grades = "", "", dict[str, float | None]()
    if isinstance(message, Judgment):
        source, grades = message.source or "", message.grades
        if time_ms is not None and start_ms is not None:
            after = f"{(time_ms - start_ms) / 1000:,.0f} s"
    texts = [f"{name}={_number(grade)}" for name, grade in list(grades.items())[:5]]
    texts += ["..."] if len(grades) > 5 else []
    return [
        f"{position.log}-{position.partition}",
        str(position.offset),
        "" if time_ms is None else utc_time(time_ms / 1000),
        after,
        printable(source),
        printable(" ".join(texts)),
        outcome,
        printable(why),
    ]


def _summary(ranking: Ranking | None, of: Evidence) -> Iterator[str]:
    if ranking is not None:
        model, variant, text = ranking.model, ranking.variant, ranking.query
    else:
        first = next(iter([*of.evaluations, *of.settled]), dict[str, Any]())
        model, variant, text = (first.get(name) for name in ("model", "variant", "query"))
    yield f"model {printable(model or '(unnamed)')}, variant {printable(variant or '(unnamed)')}"
    if text:
        yield f"query {printable(text[:500])}"
    if not of.settled:
        yield "Not settled, or its record was not found: values may still change."
    for row in of.settled:
        at = utc_time(row["settled_time_ms"] / 1000)
        how = "silent" if row.get("silent") else "judged" if row["grades"] else "unjudged"
        yield f"Settled as {how} at {at}, event time + maturity_ms."


def _candidates(
    ranking: Ranking,
    latest: Mapping[str, Any] | None,
    settled: Sequence[Mapping[str, Any]],
    judged: Mapping[str, str],
) -> Iterator[str]:
    """The ranking in its order, with the grades of its messages, its evaluation and settlement."""
    names, scores = ranking.all_ids(), ranking.all_scores()
    keys = scores if scores is not None else [-float(rank) for rank in ranking.ranks or ()]
    others = ranking.named_scorers()
    running = {} if latest is None else latest.get("grades", {})
    final = settled[-1].get("grades", {}) if settled else {}
    rows = []
    for rank, at in enumerate(exact_order(names, keys), start=1):
        name = names[at]
        grade = _number(running[name]) if name in running else judged.get(name, "")
        rows.append(
            [
                str(rank),
                printable(name),
                "" if scores is None else f"{scores[at]:g}",
                *(f"{of[at]:g}" for of in others.values()),
                grade,
                _number(final[name]) if name in final else "",
            ]
        )
    header = ["rank", "candidate", SERVED, *map(printable, others), "grade", "settled grade"]
    yield "\nRanking"
    yield format_table(header, rows[:MAX_SHOWN], numbers=(0, *range(2, len(header))))
    yield from _more(rows)
    outside = running.keys() - set(names)
    if outside:
        shown = ", ".join(sorted(outside)[:10])
        yield f"Graded but not ranked: {printable(shown)}"


def _first_three(latest: Mapping[str, Any]) -> Iterator[str]:
    """The beginning of the ranking, as its evaluation has it."""
    rows = [
        [
            printable(ranker),
            str(rank),
            printable(name),
            "" if score is None else f"{score:g}",
            _number(latest["grades"][name]) if name in latest["grades"] else "",
        ]
        for ranker, first in latest["top3"].items()
        for rank, (name, score) in enumerate(first, start=1)
    ]
    yield "\nThe first three (with --source: the whole ranking)"
    yield format_table(("ranker", "rank", "candidate", "score", "grade"), rows, numbers=(1, 3))


def _values(
    latest: Mapping[str, Any] | None, settled: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    running = {} if latest is None else latest["values"]
    final = settled[-1]["values"] if settled else {}
    rows = [
        [
            printable(ranker),
            measure,
            _value(running, ranker, measure),
            _value(final, ranker, measure),
        ]
        for ranker in dict.fromkeys([*running, *final])
        for measure in dict.fromkeys([*running.get(ranker, {}), *final.get(ranker, {})])
    ]
    if rows:
        yield "\nValues" + ("" if latest is None else f" (revision {latest['revision']})")
        yield format_table(("ranker", "measure", "running", "settled"), rows, numbers=(2, 3))
    else:
        yield "\nNo values: no judgment has counted, or no output was found."


def _value(values: Mapping[str, Mapping[str, float]], ranker: str, measure: str) -> str:
    value = values.get(ranker, {}).get(measure)
    return "" if value is None else f"{value:.4f}"


def _more(rows: Sequence[object]) -> Iterable[str]:
    n_more = len(rows) - MAX_SHOWN
    return [f"... and {n_more:,} more"] if n_more > 0 else []


def _number(grade: float | None) -> str:
    return "withdrawn" if grade is None or grade < 0 else f"{grade:g}"
