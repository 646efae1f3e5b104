"""The contract of every schema registry; each suite has a fixture `registry`.

A fixture has `url`, and `register(subject, schema, kind, references)`, which returns the id.
"""

import json

import pytest

from evaluator.adapters.registry.client import SchemaRegistry
from evaluator.mapping.protobuf import types_in_answer

ITEM = '{"type":"record","name":"Item","namespace":"shop","fields":[{"name":"sku","type":"long"}]}'
LIST = (
    '{"type":"record","name":"List","namespace":"shop","fields":'
    '[{"name":"items","type":{"type":"array","items":"shop.Item"}}]}'
)


class RegistryContract:
    """The answers of a registry."""

    async def test_the_schema_of_an_id(self, registry):
        number = registry.register("items", ITEM)
        answer = await SchemaRegistry(registry.url).answer(str(number))
        assert (answer.kind, json.loads(answer.schema)) == ("AVRO", json.loads(ITEM))
        assert (answer.references, answer.refused) == ((), "")

    async def test_a_schema_includes_the_schemas_that_it_references(self, registry):
        registry.register("items", ITEM)
        reference = {"name": "shop.Item", "subject": "items", "version": 1}
        number = registry.register("lists", LIST, "AVRO", [reference])
        answer = await SchemaRegistry(registry.url).answer(str(number))
        assert json.loads(answer.schema) == json.loads(LIST)
        ((name, text),) = answer.references
        assert (name, json.loads(text)) == ("shop.Item", json.loads(ITEM))

    async def test_an_unknown_id_is_a_refused_answer(self, registry):
        answer = await SchemaRegistry(registry.url).answer("4000000000")
        assert answer.refused == "is unknown to the registry"

    async def test_the_latest_schema_of_a_subject(self, registry):
        assert await SchemaRegistry(registry.url).latest("shop/clicks-value") is None
        registry.register("later", ITEM)
        registry.register("items", ITEM)
        reference = {"name": "shop.Item", "subject": "items", "version": 1}
        registry.register("later", LIST, "AVRO", [reference])
        answer = await SchemaRegistry(registry.url).latest("later")
        assert (answer.kind, json.loads(answer.schema)) == ("AVRO", json.loads(LIST))
        assert [name for name, _ in answer.references] == ["shop.Item"]

    async def test_kinds_are_distinguished(self, registry):
        text = 'syntax = "proto3"; message Item { int64 sku = 1; }'
        number = registry.register("proto", text, "PROTOBUF")
        assert (await SchemaRegistry(registry.url).answer(str(number))).kind == "PROTOBUF"
        text = '{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}'
        number = registry.register("json", text, "JSON")
        assert (await SchemaRegistry(registry.url).answer(str(number))).kind == "JSON"

    @pytest.mark.slow
    async def test_protobuf_text_is_returned_as_descriptors_with_its_imports(self, registry):
        hit = 'syntax = "proto3"; package shop; message Hit { int64 sku = 1; }'
        serp = (
            'syntax = "proto3"; package shop; import "shop/hit.proto"; '
            'import "google/protobuf/timestamp.proto"; message Other {} '
            "message Serp { repeated Hit hits = 1; google.protobuf.Timestamp at = 2; }"
        )
        registry.register("hit", hit, "PROTOBUF")
        reference = {"name": "shop/hit.proto", "subject": "hit", "version": 1}
        number = registry.register("serp", serp, "PROTOBUF", [reference])
        answer = await SchemaRegistry(registry.url, decodes_protobuf=True).answer(str(number))
        assert answer.refused == ""
        types, names = types_in_answer(answer)
        assert names == {(0,): ".shop.Other", (1,): ".shop.Serp"}
        assert next(name for name, _ in answer.references) == "shop/hit.proto"
        assert {".shop.Hit", ".google.protobuf.Timestamp"} <= types.messages.keys()
