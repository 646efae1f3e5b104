"""Apache Kafka through aiokafka: inputs as a group member and as ranges, outputs, topics."""

from evaluator.adapters.kafka.administration import (
    TopicPlan,
    acl_commands,
    create_topics,
    plan_topics,
    rights_to_run,
)
from evaluator.adapters.kafka.checks import Finding, InputRetention, inspect
from evaluator.adapters.kafka.clients import group_members, read_topic_ids, remove_from_group
from evaluator.adapters.kafka.connection import Connection, parse_addresses
from evaluator.adapters.kafka.leadership import KafkaLeadership
from evaluator.adapters.kafka.mapping import KafkaCanonicalSink, KafkaForeignSource
from evaluator.adapters.kafka.membership import GroupSettings
from evaluator.adapters.kafka.partitioners import PARTITIONERS
from evaluator.adapters.kafka.producers import leader_fenced, write_to_weights
from evaluator.adapters.kafka.schemas import KafkaAnswers
from evaluator.adapters.kafka.sink import KafkaSink
from evaluator.adapters.kafka.source import KafkaSource
from evaluator.adapters.kafka.topic_reads import (
    KafkaRange,
    read_checkpoints,
    read_output,
    read_weights,
)
from evaluator.adapters.kafka.worker_checks import inspect_workers

__all__ = [
    "PARTITIONERS",
    "Connection",
    "Finding",
    "GroupSettings",
    "InputRetention",
    "KafkaAnswers",
    "KafkaCanonicalSink",
    "KafkaForeignSource",
    "KafkaLeadership",
    "KafkaRange",
    "KafkaSink",
    "KafkaSource",
    "TopicPlan",
    "acl_commands",
    "create_topics",
    "group_members",
    "inspect",
    "inspect_workers",
    "leader_fenced",
    "parse_addresses",
    "plan_topics",
    "read_checkpoints",
    "read_output",
    "read_topic_ids",
    "read_weights",
    "remove_from_group",
    "rights_to_run",
    "write_to_weights",
]
