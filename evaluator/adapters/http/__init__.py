"""The HTTP server on aiohttp: JSON documents, metrics, the live page, and access to them."""

from evaluator.adapters.http.access import Access, HttpUnusable
from evaluator.adapters.http.connections import Timeouts
from evaluator.adapters.http.history import HISTORY_SERIES, History
from evaluator.adapters.http.server import PAGE_FILES, HttpServer, Views
from evaluator.adapters.http.status import limited, status_document

__all__ = [
    "HISTORY_SERIES",
    "PAGE_FILES",
    "Access",
    "History",
    "HttpServer",
    "HttpUnusable",
    "Timeouts",
    "Views",
    "limited",
    "status_document",
]
