"""Leaders of other groups, before a leader is fenced: groups with assignments, too many groups."""

import contextlib
from types import SimpleNamespace

import pytest

from evaluator.adapters.kafka import Connection, producers
from evaluator.adapters.kafka.aiokafka_internals import MemberMetadata
from evaluator.ports import SourceUnusable

LOCAL = Connection("127.0.0.1:9")
READS = MemberMetadata(0, ["p-weights"], b"").encode()
OTHERS = MemberMetadata(0, ["q-weights"], b"").encode()
ASSIGNING = b""
"""The response of brokers instead of a subscription during an assignment."""


@pytest.fixture
def groups(monkeypatch):
    """Simulates brokers with these groups: for each the subscriptions of successive requests."""

    def answer(found):
        times = {name: iter(of) for name, of in found.items()}

        async def all_groups():
            return list(found)

        async def members(group):
            return [("", sent) for sent in next(times[group])]

        @contextlib.asynccontextmanager
        async def requests(_):
            yield SimpleNamespace(groups=all_groups, members=members)

        monkeypatch.setattr(producers, "requests", requests)
        monkeypatch.setattr(producers, "RETRY_BACKOFF_MS", 0)

    return answer


async def require(*, session_timeout_ms=600_000):
    await producers._require_no_other(LOCAL, "mine", "p-weights", session_timeout_ms)


async def test_a_group_that_assigns_is_queried_again_until_its_leader_is_known(groups):
    groups({"a-leader": [[ASSIGNING] * 2, [ASSIGNING] * 2, [OTHERS, READS]]})
    with pytest.raises(SourceUnusable, match=r"leader of group a publishes to p-weights"):
        await require()


@pytest.mark.parametrize("last", [[], [OTHERS]])
async def test_a_group_assigned_without_the_topic_is_ignored(groups, last):
    groups(
        {
            "a-leader": [[ASSIGNING], [ASSIGNING], last],
            "b-leader": [[OTHERS]],  # is queried once
            "c": [],
            "mine-leader": [],
        }
    )
    await require()


async def test_a_group_that_assigns_for_a_session_is_named(groups):
    groups({"a-leader": [[ASSIGNING]]})
    with pytest.raises(SourceUnusable, match=r"Group a-leader has been assigning .* Repeat"):
        await require(session_timeout_ms=-1)


async def test_more_groups_than_the_limit_are_refused(groups):
    groups({f"{number}-leader": [[OTHERS]] for number in range(producers.MAX_GROUPS)})
    await require()
    groups({f"{number}-leader": [] for number in range(producers.MAX_GROUPS + 1)})
    with pytest.raises(SourceUnusable, match=r"1001 groups .* more than the 1000 .* login"):
        await require()
