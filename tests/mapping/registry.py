"""A schema registry in this process, and records framed with its schemas."""

import asyncio
import base64
import io
import json
import threading
import uuid

import fastavro
from aiohttp import web


class FakeRegistry:
    """Answers like Confluent's registry, from a thread; with `fault`, like a broken registry.

    A fault is a status, "slow", "garbage", "reset", or None.
    """

    def __init__(self):
        self.schemas = {}
        self.subjects = {}
        self.fault = None
        self.form_faults = []  # one entry for each request for a serialized schema
        self.login = None
        self.asked = []
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *exc_info):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def register(self, subject, schema, kind="AVRO", references=(), serialized=None):
        document = {"schema": schema, "references": list(references), "serialized": serialized}
        if kind != "AVRO":
            document["schemaType"] = kind
        number = len(self.schemas) + 1
        self.schemas[str(number)] = document
        versions = self.subjects.setdefault(subject, [])
        versions.append(document)
        return number

    def guid_of(self, number):
        guid = str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))
        self.schemas[guid] = self.schemas[str(number)]
        return guid

    def _serve(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        for task in (left := asyncio.all_tasks(self._loop)):  # delay of slow answers
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _start(self):
        app = web.Application()
        app.router.add_get("/schemas/{kind:ids|guids}/{id}", self._schema)
        app.router.add_get("/subjects/{subject}/versions/{version}", self._version)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def _answer(self, request, found, code):
        self.asked.append(request.path)
        if self.login is not None:
            expected = base64.b64encode(":".join(self.login).encode()).decode()
            if request.headers.get("Authorization") != f"Basic {expected}":
                return web.Response(status=401)
        if self.fault == "slow":
            await asyncio.sleep(3600)
        if self.fault == "garbage":
            return web.Response(text="<html>Please log in</html>")
        if self.fault == "reset":
            request.transport.close()
        if isinstance(self.fault, int):
            return web.Response(status=self.fault, headers={"Location": "/elsewhere"})
        if self.form_faults and "format" in request.query:
            return web.Response(status=self.form_faults.pop())
        if found is None:
            return web.json_response({"error_code": code, "message": "not found"}, status=404)
        if isinstance(found, dict) and found.get("serialized") is not None:
            in_text, serialized = found["schema"], found["serialized"]
            is_asked = request.query.get("format") == "serialized"
            found = {**found, "schema": serialized if is_asked else in_text}
        return web.json_response(found)

    async def _schema(self, request):
        return await self._answer(request, self.schemas.get(request.match_info["id"]), 40403)

    async def _version(self, request):
        versions = self.subjects.get(request.match_info["subject"])
        if versions is None:
            return await self._answer(request, None, 40401)
        given = request.match_info["version"]
        number = len(versions) if given == "latest" else int(given)
        found = versions[number - 1] if 0 < number <= len(versions) else None
        return await self._answer(request, found, 40402)


def avro(number, schema, record, named=()):
    """A record in Avro, framed with the number or the GUID of its schema."""
    names = {}
    for each in named:
        fastavro.parse_schema(json.loads(each), names)
    stream = io.BytesIO()
    parsed = fastavro.parse_schema(json.loads(schema), names)
    fastavro.schemaless_writer(stream, parsed, record)
    if isinstance(number, int):
        return b"\x00" + number.to_bytes(4, "big") + stream.getvalue()
    return b"\x01" + uuid.UUID(number).bytes + stream.getvalue()
