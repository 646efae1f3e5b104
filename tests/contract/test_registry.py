"""The registry of the tests keeps the contract of registries; a real one in tests/ecosystem."""

import pytest

from tests.contract.registries import RegistryContract
from tests.mapping.registry import FakeRegistry


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        yield fake


class TestFakeRegistry(RegistryContract):
    pass
