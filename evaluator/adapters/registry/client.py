"""A schema registry over HTTP, with the API of Confluent, which Apicurio and Redpanda have too."""

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from evaluator.adapters.registry.protoc import NotCompiled, ProtocUnavailable, descriptors
from evaluator.mapping.schemas import MAX_SCHEMA_BYTES, Answer
from evaluator.ports import RegistryUnavailable
from evaluator.secret_files import MAX_PEM_BYTES, read_password, read_secret

TIMEOUT_SECONDS: Final = 10.0
"""Time of one request."""
MAX_ANSWER_BYTES: Final = 1 << 20
MAX_REFERENCES: Final = 100
"""Most schemas that a schema refers to, each through the others too."""
UNKNOWN: Final = (40401, 40402, 40403)
"""Error codes: no such subject, version or schema. Any other 404 may be a proxy's."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_NO_FORM: Final = frozenset({400, 405, 406, 415, 422, 500, 501})
"""Answers of registries that cannot serialize a schema which they have."""

_Document = Mapping[str, Any]


class SchemaRegistry:
    """Answers of a registry. Files are read for every request, so they may change.

    Args:
        url: of its API; that of Apicurio ends in /apis/ccompat/v7.
        username: with the password in *password_file*; None: no login.
        password_file: has the password and nothing else.
        cafile: PEM file of the trusted authorities; None: those of the system.
        decodes_protobuf: whether schemas of Protobuf are needed as serialized descriptors. Those
            that the registry has only as text are compiled by protoc.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password_file: str | None = None,
        cafile: str | None = None,
        decodes_protobuf: bool = False,
    ) -> None:
        self._decodes_protobuf = decodes_protobuf
        self.url = url
        self._username = username
        self._password_file = password_file
        self._cafile = cafile
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, schema_id: str) -> Answer:
        """The schema of an id, a number or a GUID. Raises RegistryUnavailable."""
        kind = "ids" if schema_id.isdecimal() else "guids"
        found = await self._asked(f"schemas/{kind}/{schema_id}")
        return found or Answer(refused="is unknown to the registry")

    async def latest(self, subject: str) -> Answer | None:
        """The latest schema of a subject; None if there is none. Raises RegistryUnavailable."""
        return await self._asked(f"subjects/{quote(subject, safe='')}/versions/latest")

    async def _asked(self, place: str) -> Answer | None:
        connector = aiohttp.TCPConnector(ssl=self._tls(), force_close=True)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=self._login()
        ) as session:
            try:
                registered = _Asking(session, self.url)
                serialized = _Asking(session, self.url, "?format=serialized")
                return await self._complete(registered, serialized, place)
            except (_Refused, NotCompiled) as refused:
                return Answer(refused=str(refused))
            except ProtocUnavailable as error:
                why = str(error).rstrip(".")
                raise RegistryUnavailable(
                    f"{self.url} has schemas as text, and protoc cannot be run: {why}."
                ) from None

    async def _complete(
        self, registered: "_Asking", serialized: "_Asking", place: str
    ) -> Answer | None:
        """The answer of a place with its references, as descriptors if they are needed."""
        found = await registered.document(place)
        if found is None:
            return None
        is_protobuf = found.get("schemaType") == "PROTOBUF" and self._decodes_protobuf
        if not is_protobuf or _BASE64.fullmatch(found["schema"]):
            return await registered.answer(found)
        with suppress(_NotSerialized):
            return await serialized.answer(await serialized.document(place))
        answer = await registered.answer(found)
        try:
            async with self._one_at_a_time:
                files = await asyncio.to_thread(descriptors, answer.schema, answer.references)
        except NotCompiled:
            with suppress(_NotSerialized):  # an error of the registry may have been its last one
                return await serialized.answer(await serialized.document(place))
            raise
        *references, (_, schema) = files
        return _limited(Answer(answer.kind, schema, tuple(references)))

    def _login(self) -> dict[str, str]:
        if self._username is None or self._password_file is None:
            return {}
        try:
            password = read_password(self._password_file, "registry_password_file")
        except ValueError as error:
            raise RegistryUnavailable(str(error)) from None
        login = b64encode(f"{self._username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {login}"}

    def _tls(self) -> ssl.SSLContext | bool:
        if self._cafile is None:
            return True
        try:
            authorities = read_secret(self._cafile, most=MAX_PEM_BYTES).decode("ascii")
            return ssl.create_default_context(cadata=authorities)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise RegistryUnavailable(
                f"registry_cafile {self._cafile} cannot be used: {error}."
            ) from None


class _Refused(Exception):
    """A schema that is not used; the text has the reason."""


class _NotSerialized(Exception):
    """The registry has no serialized descriptors."""


class _Asking:
    """The requests for one id, for schemas as they were registered or in another *form*."""

    def __init__(self, session: aiohttp.ClientSession, url: str, form: str = "") -> None:
        self._session = session
        self._url = url
        self._form = form

    async def answer(self, document: _Document | None) -> Answer:
        """A schema with its references. Raises RegistryUnavailable, _Refused, _NotSerialized."""
        if document is None:
            raise _NotSerialized
        kind = document.get("schemaType") or "AVRO"
        return _limited(Answer(kind, document["schema"], await self.references(document)))

    async def document(self, path: str) -> _Document | None:
        """The answer with a schema; None if there is none. Raises RegistryUnavailable."""
        try:
            url = URL(f"{self._url}/{path}{self._form}", encoded=True)
            async with self._session.get(url, allow_redirects=False) as answer:
                body = await answer.content.read(MAX_ANSWER_BYTES + 1)
                while not answer.content.at_eof() and len(body) <= MAX_ANSWER_BYTES:
                    body += await answer.content.read(MAX_ANSWER_BYTES + 1 - len(body))
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error
            raise RegistryUnavailable(f"{self._url} does not answer: {why}.") from None
        if len(body) > MAX_ANSWER_BYTES:
            if status == 200:
                raise _Refused(f"has more than {MAX_SCHEMA_BYTES} bytes")
            body = b""
        return self._read(status, body)

    def _read(self, status: int, body: bytes) -> _Document | None:
        try:
            found = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = {}
        if status == 404 and found.get("error_code") in UNKNOWN:
            return None
        if status in {401, 403}:
            raise RegistryUnavailable(
                f"{self._url} refuses the login ({status}). Check registry_username and "
                "registry_password_file."
            )
        is_schema = isinstance(found.get("schema"), str)
        is_schema &= isinstance(found.get("schemaType"), str | None)
        is_answer = status == 200 and is_schema
        if self._form and (
            _BASE64.fullmatch(found["schema"]) is None if is_answer else status in _NO_FORM
        ):
            raise _NotSerialized
        if not is_answer:
            what = f"with {status}" if status != 200 else "without a schema"
            raise RegistryUnavailable(
                f"{self._url} answers {what}, as no schema registry does. Check `registry`."
            )
        return found

    async def references(self, document: _Document) -> tuple[tuple[str, str], ...]:
        """The schemas that a schema refers to, each after its own. Raises _Refused."""
        found: dict[str, str] = {}
        opened: set[tuple[str, str, int]] = set()

        async def add(referring: _Document) -> None:
            for each in _references_in(referring):
                if each in opened:
                    continue
                opened.add(each)
                if len(opened) > MAX_REFERENCES:
                    raise _Refused(f"refers to more than {MAX_REFERENCES} schemas")
                name, subject, version = each
                path = f"subjects/{quote(subject, safe='')}/versions/{version}"
                inner = await self.document(path)
                if inner is None:
                    raise _Refused("refers to a schema that is unknown to the registry")
                await add(inner)
                found[name] = inner["schema"]
                if sum(map(len, found.values())) > MAX_SCHEMA_BYTES:
                    raise _Refused(f"has more than {MAX_SCHEMA_BYTES} bytes")

        await add(document)
        return tuple(found.items())


def _limited(answer: Answer) -> Answer:
    """An answer that is not too large. Raises _Refused."""
    if answer.size_bytes > MAX_SCHEMA_BYTES:
        raise _Refused(f"has more than {MAX_SCHEMA_BYTES} bytes")
    return answer


def _references_in(document: _Document) -> list[tuple[str, str, int]]:
    """Name, subject and version of each reference. Raises _Refused."""
    rows = document.get("references") or []
    try:
        references = [(row["name"], row["subject"], row["version"]) for row in rows]
    except (TypeError, KeyError):
        references = [("", "", -1)]
    for name, subject, version in references:
        is_named = isinstance(name, str) and isinstance(subject, str)
        if not (is_named and isinstance(version, int) and version >= 1):
            raise _Refused("has references that cannot be read")
    return references
