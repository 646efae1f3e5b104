"""Apache Kafka through aiokafka: inputs as a group member and as ranges, outputs, topics."""

from evaluator.adapters.kafka.addresses import parse_addresses
from evaluator.adapters.kafka.admin import TopicPlan, create_topics, plan_topics
from evaluator.adapters.kafka.checkpoints import (
    checkpoints_topic,
    read_checkpoints,
    read_topic_ids,
)
from evaluator.adapters.kafka.checks import Finding, inspect
from evaluator.adapters.kafka.commands import acl_commands, rights_to_run
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.leadership import KafkaLeadership
from evaluator.adapters.kafka.ranges import KafkaRange
from evaluator.adapters.kafka.retention import InputRetention
from evaluator.adapters.kafka.sink import KafkaSink
from evaluator.adapters.kafka.source import KafkaSource
from evaluator.adapters.kafka.weights import read_weights, write_to_weights

__all__ = [
    "Connection",
    "Finding",
    "InputRetention",
    "KafkaLeadership",
    "KafkaRange",
    "KafkaSink",
    "KafkaSource",
    "TopicPlan",
    "acl_commands",
    "checkpoints_topic",
    "create_topics",
    "inspect",
    "parse_addresses",
    "plan_topics",
    "read_checkpoints",
    "read_topic_ids",
    "read_weights",
    "rights_to_run",
    "write_to_weights",
]
