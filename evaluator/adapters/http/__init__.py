"""HTTP through aiohttp: figures for programs, a live page for people, and who may see them."""

from evaluator.adapters.http.access import Access, HttpUnusable
from evaluator.adapters.http.connections import Timeouts
from evaluator.adapters.http.history import HISTORY_SERIES, History
from evaluator.adapters.http.room import with_room
from evaluator.adapters.http.server import PAGE_FILES, HttpServer, Views
from evaluator.adapters.http.status import status_document

__all__ = [
    "HISTORY_SERIES",
    "PAGE_FILES",
    "Access",
    "History",
    "HttpServer",
    "HttpUnusable",
    "Timeouts",
    "Views",
    "status_document",
    "with_room",
]
