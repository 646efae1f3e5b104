"""A process that joins the election and publishes for as long as it is leader.

    python -m tests.kafka.leader BOOTSTRAP PREFIX

It prints a line for each acknowledged record. At the first refused record it prints whether it is
still elected, and ends with code 0.
"""

import asyncio
import itertools
import sys

from evaluator.adapters.kafka import Connection, GroupSettings, KafkaLeadership
from evaluator.ports import Fenced, SourceUnavailable
from evaluator.wire.records import OutputRecord

SESSION_TIMEOUT_MS = 2_000


def leadership_of(bootstrap: str, prefix: str) -> KafkaLeadership:
    """A member that notices within two seconds that another one has died."""
    return KafkaLeadership(
        Connection(bootstrap),
        GroupSettings(
            f"{prefix}evaluator",
            prefix,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=100,
        ),
    )


async def elected(leadership: KafkaLeadership) -> list[OutputRecord]:
    """Follows until this process is elected; returns the records."""
    followed: list[OutputRecord] = []
    while not leadership.elected:
        followed += await leadership.follow(timeout_ms=100)
    return followed


def print_line(*words: object) -> None:
    """Prints a line without a buffer."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def work(bootstrap: str, prefix: str) -> None:
    """Publishes numbers until another process is leader."""
    leadership = leadership_of(bootstrap, prefix)
    await leadership.start()
    await elected(leadership)
    await leadership.begin_epoch()
    for number in itertools.count():
        record = OutputRecord(b"%d" % number, b"of the first")
        try:
            await leadership.publish([("weights", record), ("weights-log", record)])
        except (Fenced, SourceUnavailable) as error:
            print_line(type(error).__name__, leadership.elected)
            break
        print_line(number)
    await leadership.stop()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
