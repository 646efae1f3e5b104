"""The batch oracle: docs/semantics.md and docs/measures.md over sets, apart from the core."""

import pytest

pytest.register_assert_rewrite("tests.oracle.checks")
