"""Apicurio under the contract of registries, like the registry of the other tests."""

import json

import pytest

from evaluator.adapters.registry.client import SchemaRegistry
from evaluator.mapping.document import read_document
from evaluator.mapping.latest import comparisons
from tests.contract.registries import RegistryContract
from tests.mapping.framed_world import CLICK, MAPPING, SERP

pytestmark = pytest.mark.ecosystem


class TestApicurio(RegistryContract):
    pass


async def test_latest_schemas_are_compared_with_a_mapping(registry):
    text = MAPPING.format(prefix="", format="avro", url=registry.url)
    mappings = read_document(text, "m.toml").logs.values()
    names = {"rankings": "compared-serps", "judgments": "compared-clicks"}

    async def compared():
        found = await comparisons(SchemaRegistry(registry.url), mappings, names)
        return [finding for _, finding in found]

    assert [each.severity for each in await compared()] == ["ok", "ok"]
    assert "has no subject compared-serps-value" in (await compared())[0].what
    registry.register("compared-serps-value", json.dumps(SERP))
    registry.register("compared-clicks-value", json.dumps(CLICK))
    assert all("fits the mapping" in each.what for each in await compared())
    registry.register("compared-serps-value", json.dumps({**SERP, "fields": SERP["fields"][1:]}))
    of_serps, of_clicks = await compared()
    assert (of_serps.severity, of_clicks.severity) == ("error", "ok")
    assert "rankings.trace_id: session is not in the schema; needed: text" in of_serps.what
