"""The client of a schema registry: faults, limits, the login."""

import asyncio

import pytest

from evaluator.adapters.registry import client as adapter
from evaluator.adapters.registry import protoc
from evaluator.adapters.registry.client import MAX_REFERENCES, SchemaRegistry
from evaluator.mapping.protobuf import types_in_answer
from evaluator.mapping.schemas import MAX_SCHEMA_BYTES
from evaluator.ports import RegistryUnavailable
from tests.mapping.registry import FakeRegistry


@pytest.fixture
def fake():
    with FakeRegistry() as registry:
        yield registry


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (500, "answers with 500"),
        (503, "answers with 503"),
        (429, "answers with 429"),
        (302, "answers with 302"),
        (404, "answers with 404"),  # of a proxy, or a wrong path: no code of a registry
        (401, "refuses the login"),
        (403, "refuses the login"),
        ("garbage", "answers without a schema"),
        ("reset", "does not answer"),
        pytest.param("slow", "no answer in time", marks=pytest.mark.slow(alone=False)),
    ],
)
async def test_an_error_of_the_registry_is_raised_as_unavailable(fake, fault, text, monkeypatch):
    monkeypatch.setattr(adapter, "TIMEOUT_SECONDS", 0.3 if fault == "slow" else 20.0)
    number, fake.fault = fake.register("a", '"int"'), fault
    with pytest.raises(RegistryUnavailable, match=text):
        await SchemaRegistry(fake.url).answer(str(number))
    fake.fault = None
    monkeypatch.setattr(adapter, "TIMEOUT_SECONDS", 20.0)
    assert (await SchemaRegistry(fake.url).answer(str(number))).schema == '"int"'


async def test_an_unreachable_registry_is_unavailable(fake):
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        await SchemaRegistry("http://127.0.0.1:1").answer("1")
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        await SchemaRegistry(fake.url.replace("http", "https")).answer("1")


@pytest.mark.parametrize(
    "document",
    [{}, {"schema": 1}, {"schema": "x", "schemaType": []}, [], {"schema": None}],
)
async def test_a_response_without_a_schema_is_an_error(fake, document):
    fake.schemas["1"] = document
    with pytest.raises(RegistryUnavailable, match="answers without a schema"):
        await SchemaRegistry(fake.url).answer("1")


async def test_the_size_of_a_schema_is_limited(fake):
    most = "x" * MAX_SCHEMA_BYTES
    for text, refused in ((most, ""), (most + "x", "bytes"), ("x" * (2 << 20), "bytes")):
        response = await SchemaRegistry(fake.url).answer(str(fake.register("a", text)))
        assert (refused in response.refused, bool(response.schema)) == (True, not refused)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ({"name": "b", "subject": "b", "version": 1}, "unknown"),
        ({"name": "b", "subject": "../../x?y", "version": 1}, "unknown"),
        ({"name": "b", "subject": "b", "version": "latest"}, "cannot be read"),
        ({"name": "b", "subject": "b", "version": -1}, "cannot be read"),
        ({"name": "b"}, "cannot be read"),
        (7, "cannot be read"),
    ],
)
async def test_a_schema_with_unresolvable_references_is_refused(fake, reference, text):
    number = fake.register("a", '"int"', references=[reference])
    assert text in (await SchemaRegistry(fake.url).answer(str(number))).refused
    assert len(fake.asked) <= 2


async def test_references_are_followed_once_even_if_circular(fake):
    first = {"name": "a", "subject": "a", "version": 1}
    number = fake.register("a", '"int"', references=[{"name": "b", "subject": "b", "version": 1}])
    fake.register("b", '"long"', references=[first])
    response = await SchemaRegistry(fake.url).answer(str(number))
    assert response.references == (("a", '"int"'), ("b", '"long"'))


async def test_protobuf_schemas_are_requested_as_descriptors(fake):
    fake.register("b", 'syntax = "proto3";', "PROTOBUF", serialized="Yg==")
    reading = SchemaRegistry(fake.url, decodes_protobuf=True)
    reference = {"name": "b.proto", "subject": "b", "version": 1}
    number = fake.register("a", "message A {}", "PROTOBUF", [reference], serialized="YQ==")
    response = await reading.answer(str(number))
    assert (response.kind, response.schema) == ("PROTOBUF", "YQ==")
    assert response.references == (("b.proto", "Yg=="),)
    registered = str(fake.register("c", "Yw==", "PROTOBUF"))  # as the client in Python does
    fake.asked.clear()
    assert ((await reading.answer(registered)).schema, len(fake.asked)) == ("Yw==", 1)


@pytest.mark.slow
async def test_protobuf_schemas_in_text_form_are_compiled_or_refused(fake):
    reading = SchemaRegistry(fake.url, decodes_protobuf=True)
    numbers = [fake.register("c", text, "PROTOBUF") for text in ("message A {}", "message {")]
    of_text, refused = await asyncio.gather(*(reading.answer(str(each)) for each in numbers))
    assert types_in_answer(of_text)[1] == {(0,): ".A"}
    assert "Expected message name" in refused.refused
    assert (await SchemaRegistry(fake.url).answer(str(numbers[0]))).schema == "message A {}"


@pytest.mark.slow
async def test_a_schema_refused_by_protoc_after_a_registry_error_is_requested_again(fake):
    reading = SchemaRegistry(fake.url, decodes_protobuf=True)
    built_in = 'syntax = "proto3"; import "confluent/meta.proto";'  # only the registry has it
    number = str(fake.register("a", built_in, "PROTOBUF", serialized="YQ=="))
    fake.form_faults = [500]
    assert (await reading.answer(number)).schema == "YQ=="
    fake.form_faults = [500, 500]
    assert "confluent/meta.proto: File not found" in (await reading.answer(number)).refused
    fake.form_faults = [503]
    with pytest.raises(RegistryUnavailable, match="answers with 503"):
        await reading.answer(number)


async def test_the_size_limit_of_a_protobuf_schema_applies_to_its_descriptor(fake):
    text = f"// {'x' * MAX_SCHEMA_BYTES}"
    reading = SchemaRegistry(fake.url, decodes_protobuf=True)
    number = str(fake.register("a", text, "PROTOBUF", serialized="YQ=="))
    assert (await reading.answer(number)).schema == "YQ=="
    fake.form_faults = [500]
    assert (await reading.answer(number)).refused == f"has more than {MAX_SCHEMA_BYTES} bytes"


async def test_without_protoc_text_schemas_are_unavailable_with_the_remedy(fake, monkeypatch):
    monkeypatch.setattr(protoc, "find_spec", lambda name: None)
    number = fake.register("c", "message A {}", "PROTOBUF")
    with pytest.raises(RegistryUnavailable, match=r"protoc cannot be run.*\.\[protobuf\]"):
        await SchemaRegistry(fake.url, decodes_protobuf=True).answer(str(number))


@pytest.mark.slow(alone=False)
async def test_the_number_of_references_is_limited(fake):
    for n in range(MAX_REFERENCES + 1):
        reference = {"name": f"s{n}", "subject": f"s{n}", "version": 1}
        fake.register(f"s{n + 1}", '"int"', references=[reference])
    fake.register("s0", '"int"')
    response = await SchemaRegistry(fake.url).answer(str(MAX_REFERENCES))
    assert (len(response.references), response.refused) == (MAX_REFERENCES, "")
    response = await SchemaRegistry(fake.url).answer(str(MAX_REFERENCES + 1))
    assert response.refused == "refers to more than 100 schemas"


async def test_the_login_is_read_at_every_request(fake, tmp_path):
    fake.login = ("shop", "pass:word")
    number = str(fake.register("a", '"int"'))
    file = tmp_path / "password"
    registry = SchemaRegistry(fake.url, username="shop", password_file=str(file))
    with pytest.raises(RegistryUnavailable, match="registry_password_file cannot be read"):
        await registry.answer(number)
    file.write_text("\n")
    with pytest.raises(RegistryUnavailable, match=r"registry_password_file is empty\. Write"):
        await registry.answer(number)
    file.write_text("wrong")
    with pytest.raises(RegistryUnavailable, match="refuses the login") as refused:
        await registry.answer(number)
    assert "wrong" not in str(refused.value)
    file.write_text("pass:word\n")
    assert (await registry.answer(number)).schema == '"int"'


async def test_unusable_certificate_authorities_are_refused(fake, tmp_path):
    file = tmp_path / "ca.pem"
    for text in (None, "no certificate"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(RegistryUnavailable, match="registry_cafile"):
            await SchemaRegistry("https://localhost:1", cafile=str(file)).answer("1")
