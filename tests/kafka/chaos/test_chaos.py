"""Workers and a real Kafka under every kind of fault, while messages keep arriving."""

import pytest

from tests.kafka.broker import Broker
from tests.kafka.chaos.round import CHECKED, Round

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.xdist_group("minutes"),  # it has a broker of its own, and takes long
]

N_FAULTS = 16
SEED = 53_980
APART_MS = 2_000
"""Half the queries of `make chaos`."""
KINDS = CHECKED | {
    *("frozen", "broker_killed", "killed_without_broker", "inputs_recreated"),
    *("idle_connections", "poisoned", "clock_ahead"),
}
"""Some of the faults of this seed, whose workers have names."""


def test_totals_equal_those_of_the_logs_under_any_faults(
    own_broker: Broker, topic_prefix, tmp_path
):
    report = Round(own_broker, tmp_path, topic_prefix, seed=SEED, apart_ms=APART_MS).run(N_FAULTS)
    assert not report.differences, str(report)
    assert report.n_faults == N_FAULTS
    assert report.n_scrapes > N_FAULTS
    assert set(report.kinds) >= KINDS
    assert report.ledger["rankings"]["expired"] > report.ledger["rankings"]["open"] > 0
    assert len(report.n_checked) == 4
    assert all(report.n_checked.values())
    assert report.starts["state_loaded"] > 0
    assert report.starts["task_restored"] > 0
    assert report.starts["snapshot_fetched"] > 0
