"""When a worker tells the others how far it has come."""

from evaluator.wire.checkpoint import decode_checkpoint
from evaluator.worker import loop
from tests.worker.house import House
from tests.worker.traffic import traffic

NEVER_MS = 10**12


async def test_a_checkpoint_record_is_written_once_in_an_interval_and_at_the_end(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)
    told = {}
    for interval_ms in (0, NEVER_MS):
        house = House(1)
        house.append({0: traffic(1, n_queries=60)})
        worker = await house.until_end(max_poll_records=20, checkpoint_interval_ms=interval_ms)
        n_commits = worker.snapshot.process_counts["commits", "committed"]
        told[interval_ms] = house.broker.output("checkpoints", 0)
        assert n_commits > 5
    assert len(told[0]) > 5, "one for each commit that brought something"
    assert len(told[NEVER_MS]) == 2, "the first commit, and the end"
    last = {name: decode_checkpoint(records[-1].value) for name, records in told.items()}
    assert last[0].head.positions == last[NEVER_MS].head.positions
