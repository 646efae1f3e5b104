"""Topics have room for the largest records, and the check finds topics without it."""

import pytest
from msgspec.structs import replace

from evaluator.adapters.kafka import create_topics, plan_topics
from evaluator.adapters.kafka.administration import described
from evaluator.adapters.kafka.checks import inspect
from evaluator.wire.outputs.sizes import ROOM_BYTES
from tests.contract.backends import with_room

pytestmark = pytest.mark.kafka


@pytest.fixture
def with_schemas(kafka):
    """The brokers, for inputs whose records name schemas: then all outputs are needed."""
    return replace(kafka, has_schemas=True)


SETTING = "max.message.bytes"


async def test_every_new_output_accepts_its_largest_record(with_schemas, topic_prefix):
    plan = await plan_topics(with_schemas, topic_prefix=topic_prefix, partitions=1)
    await create_topics(with_schemas, plan)
    found = await described(with_schemas, [topic.name for topic in plan])
    assert {
        name.removeprefix(topic_prefix): int(values[SETTING])
        for name, values in found.items()
        if name.removeprefix(topic_prefix) in ROOM_BYTES
    } == ROOM_BYTES


async def test_the_check_warns_of_outputs_with_a_lower_limit_and_prints_the_command(
    with_schemas, topic_prefix
):
    plan = await plan_topics(with_schemas, topic_prefix=topic_prefix, partitions=1)
    narrow = {name: room - 1 for name, room in ROOM_BYTES.items()}
    await create_topics(with_schemas, with_room(plan, narrow))
    findings = await inspect(with_schemas, topic_prefix=topic_prefix, needed_ms=1, leads=True)
    warnings = [each for each in findings if SETTING in each.what]
    assert {each.severity for each in warnings} == {"warning"}
    command = f"kafka-configs.sh --bootstrap-server {with_schemas.bootstrap} --alter"
    assert {each.what_to_do for each in warnings} == {
        f"{command} --entity-type topics --entity-name {topic_prefix}{name} "
        f"--add-config {SETTING}={room}"
        for name, room in ROOM_BYTES.items()
    }
