"""Stream processors doing the same job: Kafka Streams in Java, and Quix Streams in Python."""
