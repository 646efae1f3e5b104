"""Whether clicks may be learned from, according to a mapping."""

import pytest
from structlog.testing import capture_logs

from evaluator.cli.exits import UsageError
from evaluator.cli.leader import rules_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set

MAPPING = """
[rankings]
trace_id = "t"
node_id = "n"
[rankings.rows]
each = "rows"
candidate_id = "id"
"""


@pytest.fixture
def rules(tmp_path):
    """The rules of the leader with a mapping of these further rows, or without any."""

    def made(rows=None, **settings):
        if rows is not None:
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
            path.write_text(MAPPING + rows)
            settings["mapping"] = str(path)
        found = Settings(implicit_sources=("click",), source_weights=(("click", 1.0),), **settings)
        return rules_of(found, measure_set(found))

    return made


def test_a_mapping_without_propensities_is_refused_where_clicks_would_promote(rules):
    with pytest.raises(UsageError, match=r"has no propensity in .*, so weights would"):
        rules("", learning="auto")
    assert rules('propensity = "p"', learning="auto").implicit_sources == {"click"}
    assert rules(learning="auto").mode == "auto"  # canonical rankings may have them


def test_proposals_without_propensities_are_warned_of(rules):
    with capture_logs() as logs:
        rules("", learning="propose")
        rules('propensity = "p"', learning="propose")
    (line,) = logs
    assert line["event"] == "clicks_without_propensities"
    assert "Map it." in line["hint"]
