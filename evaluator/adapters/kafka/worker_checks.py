"""Checks of other workers: the members of the group, and the tasks of the checkpoints."""

from aiokafka import TopicPartition

from evaluator.adapters.kafka.assignment import require_alike
from evaluator.adapters.kafka.clients import input_topics, requests
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.membership import GroupSettings
from evaluator.adapters.kafka.topic_reads import read_checkpoints
from evaluator.ports import Finding, SourceUnavailable, SourceUnusable
from evaluator.wire.records import CHECKPOINTS
from evaluator.wire.state.checkpoint import checkpoint_key


async def inspect_workers(connection: Connection, group: GroupSettings) -> list[Finding]:
    """Findings about a start in this group now; none if the brokers do not answer."""
    topics = list(input_topics(group.topic_prefix, connection).values())
    try:
        async with requests(connection) as asking:
            members = await asking.members(group.group_id)
            counts = await asking.partition_counts(topics)
            n_tasks = max(count or 0 for count in counts.values())
            every = [TopicPartition(topic, n) for topic in topics for n in range(n_tasks)]
            committed = await asking.committed(group.group_id, every)
        found = await read_checkpoints(connection, group.topic_prefix, None)
    except (SourceUnavailable, SourceUnusable):
        return []  # `inspect` reports it
    checkpoints = {task: of for task, of in found.items() if of}
    tasks = [
        task for task, of in checkpoints.items() if checkpoint_key(task, group.fingerprint) in of
    ]
    findings: list[Finding] = []
    try:
        require_alike(group, members)
    except SourceUnusable as error:
        findings.append(Finding("error", str(error), "docs/blue-green.md has the commands."))
    if tasks and max(tasks) + 1 < n_tasks:
        findings.append(_added_partitions(max(tasks), n_tasks))
    if checkpoints and not committed:
        findings.append(
            Finding(
                "warning",
                f"Topic {group.topic_prefix}{CHECKPOINTS} has records of another group or of other "
                f"settings, and group {group.group_id} has committed nothing: two evaluators would "
                "write to the same topics if the workers of those records still run.",
                "Set output_prefix (docs/blue-green.md), or make sure that they were stopped.",
            )
        )
    return findings


def _added_partitions(last_task: int, n_tasks: int) -> Finding:
    return Finding(
        "warning",
        f"The checkpoints are of tasks up to {last_task}, and the inputs have {n_tasks} "
        "partitions. If partitions were added, a key may be in another partition than before, "
        "and judgments of open queries whose key has moved become orphans.",
        "Move to new topics instead, as in docs/growth.md. Ignore this if no key is in the "
        "last partition yet, or if queries from before have passed retention_ms.",
    )
