"""The batch oracle: DESIGN sections 5 and 7 over sets, sharing no code with the core."""

import pytest

pytest.register_assert_rewrite("tests.oracle.checks")
