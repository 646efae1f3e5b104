"""Apache Kafka through aiokafka: inputs as a group member and as ranges, outputs, topics."""

from evaluator.adapters.kafka.admin import Finding, TopicPlan, create_topics, inspect, plan_topics
from evaluator.adapters.kafka.checkpoints import checkpoints_topic, read_checkpoints
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.ranges import KafkaRange
from evaluator.adapters.kafka.sink import KafkaSink
from evaluator.adapters.kafka.source import KafkaSource

__all__ = [
    "Connection",
    "Finding",
    "KafkaRange",
    "KafkaSink",
    "KafkaSource",
    "TopicPlan",
    "checkpoints_topic",
    "create_topics",
    "inspect",
    "plan_topics",
    "read_checkpoints",
]
