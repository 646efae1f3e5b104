"""The HTTP server on aiohttp: JSON documents, metrics, the live page, and access to them."""

from evaluator.adapters.http.access import Access as Access
from evaluator.adapters.http.access import HttpUnusable as HttpUnusable
from evaluator.adapters.http.server import HttpServer as HttpServer
from evaluator.adapters.http.server import Views as Views
from evaluator.adapters.http.status import limited as limited
from evaluator.adapters.http.status import status_document as status_document
