"""Apicurio keeps the contract that the registry of the other tests keeps."""

import pytest

from tests.contract.registries import RegistryContract

pytestmark = pytest.mark.ecosystem


class TestApicurio(RegistryContract):
    pass
