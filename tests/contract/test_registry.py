"""The registry of the tests under the contract of registries; tests/ecosystem has a real one."""

import pytest

from tests.contract.registries import RegistryContract
from tests.mapping.registry import FakeRegistry


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        yield fake


class TestFakeRegistry(RegistryContract):
    pass
