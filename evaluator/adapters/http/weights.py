"""`/weights`: the live weights of a model, for the recommender that ranks with them."""

import json
import re
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from evaluator.wire.weights.weights_record import checksum_in

MOST_NAMED: Final = 16
"""Models that an error names."""

_OFF: Final = (
    "Nothing is learned here. Set learning to propose or auto, and let rankings bring features."
)
_NONE_YET: Final = (
    "No weights are live yet. With learning = auto they are once a challenger is promoted; with "
    "propose none is promoted by itself: initial_weights are live from the first judged query on. "
    "/status says how far learning is."
)
_ETAG: Final = re.compile(r'(?:W/)?"([^"]*)"')


def weights_answer(
    live: Mapping[str, bytes], request: web.Request, *, learning: bool
) -> web.Response:
    """The record asked for, byte by byte, or why there is none.

    Args:
        live: the live record of each model.
        request: `?model=` chooses; it need not where there is one only.
        learning: whether there may be weights at all.
    """
    asked = request.query.get("model")
    if asked is None and len(live) > 1:
        error = f"There are weights of several models: {_named(live)}. Choose one with ?model=NAME."
        return _error(error, status=400)
    record = next(iter(live.values()), None) if asked is None else live.get(asked)
    if record is None:
        error = _NONE_YET if learning else _OFF
        if live:
            error = f"No weights of this model are live. There are some of: {_named(live)}."
        return _error(error, status=404)
    checksum = checksum_in(record)
    headers = {"ETag": f'"{checksum}"', "Cache-Control": "no-cache"}
    if _has(checksum, ",".join(request.headers.getall("If-None-Match", []))):
        return web.Response(status=304, headers=headers)
    return web.Response(body=record, content_type="application/json", headers=headers)


def _has(checksum: str, if_none_match: str) -> bool:
    """Whether the asker holds the record; weak comparison, as RFC 9110 has it for this header."""
    return if_none_match.strip() == "*" or checksum in _ETAG.findall(if_none_match)


def _named(live: Mapping[str, bytes]) -> str:
    names = sorted(live)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(json.dumps(name) for name in names[:MOST_NAMED]) + more


def _error(error: str, *, status: int) -> web.Response:
    return web.json_response({"error": error}, status=status)
