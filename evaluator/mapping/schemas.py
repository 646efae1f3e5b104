"""Schemas of a registry: the first answer on each id, which is recorded before its first use."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog

from evaluator.mapping.framing import frame_of, ids_in
from evaluator.mapping.record import Record
from evaluator.ports import RegistryUnavailable, RequestRefused, SourceUnusable
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.records import Records

MAX_SCHEMA_BYTES: Final = 256 << 10
"""Limit of a schema with all that it refers to."""
MAX_SCHEMAS: Final = 10_000
MAX_TOTAL_BYTES: Final = 64 << 20
"""Limits of the answers that are used; ids beyond them are refused."""
AT_ONCE: Final = 4
"""Ids that are requested at the same time."""
ASKING_SECONDS: Final = 20.0
"""Time of one attempt; answers by then are kept."""


log = structlog.get_logger(__name__)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The answer of a registry on an id.

    `kind` is AVRO, PROTOBUF or JSON. `references` are the schemas that `schema` refers to, by
    name, each after those that it refers to itself. With `refused` there is no schema.
    """

    kind: str = ""
    schema: str = ""
    references: tuple[tuple[str, str], ...] = ()
    refused: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(len(text.encode()) for _, text in (("", self.schema), *self.references))


class _SavedAnswer(msgspec.Struct, forbid_unknown_fields=True):
    registry: str
    id: str
    answer: Answer


_Saved = list[_SavedAnswer]


class Registry(Protocol):
    """A schema registry."""

    url: str

    async def answer(self, schema_id: str) -> Answer:
        """The answer on an id. Raises RegistryUnavailable."""

    async def latest(self, subject: str) -> Answer | None:
        """The latest schema of a subject; None if there is none. Raises RegistryUnavailable."""


class AnswerLog(Protocol):
    """The recorded answers of one registry, in one order for all processes."""

    async def read(self) -> Sequence[tuple[str, Answer]]:
        """The records since the last call, up to the end. Raises SourceUnavailable."""

    async def append(self, answers: Mapping[str, Answer]) -> None:
        """Records answers; returns when they are acknowledged. Raises SourceUnavailable."""


class Schemas:
    """The answers of a registry by id; of several recorded ones the first counts.

    Args:
        registry: gets requests for ids without an answer.
        log: has the recorded answers; None: none are recorded.
        writes: whether new answers are recorded, before they are used.
    """

    def __init__(
        self, registry: Registry, log: AnswerLog | None = None, *, writes: bool = True
    ) -> None:
        self.answers: dict[str, Answer] = {}
        self.is_full = False
        self._registry = registry
        self._log = log
        self._writes = writes
        self._n_bytes = 0
        self._is_read = False
        self._used: set[str] = set()

    def adopt(self, schema_id: str, answer: Answer) -> None:
        """Uses an answer, unless there is an earlier one or no room."""
        if schema_id in self.answers or self.is_full:
            return
        self._n_bytes += answer.size_bytes
        self.is_full = len(self.answers) >= MAX_SCHEMAS or self._n_bytes > MAX_TOTAL_BYTES
        if not self.is_full:
            self.answers[schema_id] = answer

    async def prepare(self, batches: Collection[Records]) -> None:
        """Asks for the schemas of records that have no answer yet.

        Raises RegistryUnavailable, SourceUnavailable, SourceUnusable.
        """
        ids = ids_in(batches)
        await self._require(ids)
        self._used |= ids & self.answers.keys()

    async def _require(self, ids: Collection[str]) -> None:
        if not self._is_read:
            await self._read()
            self._is_read = True
        if self.answers.keys() >= set(ids) or self.is_full:
            return
        await self._read()  # of other processes
        begun_at = time.monotonic()
        while (left := sorted(set(ids) - self.answers.keys())) and not self.is_full:
            if time.monotonic() - begun_at > ASKING_SECONDS:
                raise RegistryUnavailable(
                    f"{self._registry.url} is slow: {len(left)} schemas are not answered yet."
                )
            await self._ask(left[:AT_ONCE])

    async def _ask(self, ids: Sequence[str]) -> None:
        answers = await asyncio.gather(*map(self._registry.answer, ids), return_exceptions=True)
        found = {
            schema_id: answer
            for schema_id, answer in zip(ids, answers, strict=True)
            if isinstance(answer, Answer)
        }
        if self._log is None or not self._writes:
            for schema_id, answer in found.items():
                self.adopt(schema_id, answer)
        elif found:
            await self._log.append(found)
            await self._read()
        for failure in answers:
            if isinstance(failure, BaseException):
                raise failure

    def saved(self) -> bytes:
        """The document schemas.json of a replay: the answers that it has used."""
        url = self._registry.url
        return _document(_SavedAnswer(url, each, self.answers[each]) for each in self._used)

    def adopt_saved(self, document: bytes, name: str) -> None:
        """Uses the answers of a schemas.json before all others. Raises SourceUnusable."""
        for row in _rows_in(document, name):
            if row.registry == self._registry.url:
                self.adopt(row.id, row.answer)

    async def _read(self) -> None:
        for schema_id, answer in () if self._log is None else await self._log.read():
            self.adopt(schema_id, answer)


def _document(rows: Iterable[_SavedAnswer]) -> bytes:
    return msgspec.json.encode(sorted(rows, key=lambda row: (row.registry, row.id)))


def _rows_in(document: bytes, name: str) -> _Saved:
    try:
        return msgspec.json.decode(document, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceUnusable(
            f"{name} is not the schemas.json of a replay: {error}. Name the file of an earlier one."
        ) from None


def merged(documents: Mapping[str, bytes]) -> bytes:
    """The schemas.json of several replays, by their names.

    Raises SourceUnusable, and RequestRefused if they have different answers on an id.
    """
    found: dict[tuple[str, str], _SavedAnswer] = {}
    for name, document in documents.items():
        for row in _rows_in(document, name):
            if found.setdefault((row.registry, row.id), row) != row:
                raise RequestRefused(
                    f"{name} and the others have different answers of {row.registry} on schema "
                    f"{row.id}. Replay one of them again with --schemas of the other."
                )
    return _document(found.values())


class SchemaUnusable(Exception):
    """A schema that cannot be used; the text has the reason."""


class FramedDecoder:
    """Decodes framed records with the schemas of their ids.

    Args:
        answers: by id, of `Schemas`.
        compiled: the decoder that an answer describes: bytes to plain objects, or the reason of a
            dead letter. Raises SchemaUnusable.
        unfit: why no record of a schema can give a message, if it is known; it is logged once.
        has_indexes: whether frames have those of a message, as in Protobuf.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        compiled: Callable[[Answer], Callable[[bytes], Any]],
        unfit: Callable[[Answer], str | None],
        *,
        has_indexes: bool = False,
    ) -> None:
        self._has_indexes = has_indexes
        self._unfit = unfit
        self._verdicts = answers
        self._compiled = compiled
        self._decoders: dict[str, Callable[[bytes], Any]] = {}

    def __call__(self, record: Record) -> Any:
        """The decoded record, or Malformed."""
        frame = frame_of(record, has_indexes=self._has_indexes)
        if isinstance(frame, Malformed):
            return frame
        decode = self._decoders.get(frame.schema_id) or self._decoder(frame.schema_id)
        found = decode(frame.payload)
        if isinstance(found, Malformed):
            return found._replace(detail=f"schema {frame.schema_id}: {found.detail}")
        return found

    def _decoder(self, schema_id: str) -> Callable[[bytes], Any]:
        answer = self._verdicts.get(schema_id)
        if answer is None:
            return _refusing(f"not used, because {MAX_SCHEMAS} ids or {MAX_TOTAL_BYTES} bytes are")
        try:
            if answer.refused:
                raise SchemaUnusable(answer.refused)
            decode = self._compiled(answer)
            why = self._unfit(answer)
            if why is not None:
                log.error("schema_does_not_fit", schema_id=schema_id, error=why)
        except SchemaUnusable as unusable:
            decode = _refusing(str(unusable))
        self._decoders[schema_id] = decode
        return decode


def _refusing(why: str) -> Callable[[bytes], Malformed]:
    letter = Malformed("registry", why[:200])
    return lambda _: letter
