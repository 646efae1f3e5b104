"""A collector beside those of the client library, and what a scrape gets of them."""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


def registry_of(collector: Collector) -> CollectorRegistry:
    """The collector together with the figures of the process and of Python."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Body and content type of a scrape: OpenMetrics if *accept* asks for it, else text."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
