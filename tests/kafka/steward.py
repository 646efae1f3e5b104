"""A process that stands for election and publishes for as long as it is in office.

    python -m tests.kafka.steward BOOTSTRAP PREFIX

It prints a line for each record that it knows to be published, and ends with the first that was
refused, whether it is elected then, and code 0.
"""

import asyncio
import itertools
import sys

from evaluator.adapters.kafka import Connection, KafkaOffice
from evaluator.ports import Deposed, SourceAway
from evaluator.wire.records import OutputRecord

SESSION_TIMEOUT_MS = 2_000


def office_of(bootstrap: str, prefix: str) -> KafkaOffice:
    """One that notices within two seconds that another one is gone."""
    return KafkaOffice(
        Connection(bootstrap),
        group_id=f"{prefix}evaluator",
        topic_prefix=prefix,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=100,
    )


async def elected(office: KafkaOffice) -> None:
    """Follows until this one is elected."""
    while not office.elected:
        await office.follow(timeout_ms=100)


def say(*words: object) -> None:
    """A line that is there at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def work(bootstrap: str, prefix: str) -> None:
    """Publishes number after number until somebody else is in office."""
    office = office_of(bootstrap, prefix)
    await office.start()
    await elected(office)
    await office.enter()
    for number in itertools.count():
        record = OutputRecord(b"%d" % number, b"of the first")
        try:
            await office.publish([("weights", record), ("weights-log", record)])
        except (Deposed, SourceAway) as error:
            say(type(error).__name__, office.elected)
            break
        say(number)
    await office.stop()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
