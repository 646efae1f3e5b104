"""The batch oracle: docs/semantics.md and docs/measures.md over sets, independent of the core."""

import pytest

pytest.register_assert_rewrite("tests.oracle.checks")
