"""`/weights` over a real socket."""

from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from evaluator.wire.canonical import encode_document
from evaluator.wire.weights.weights_record import with_checksum
from tests.adapters.synthetic import FixedViews, learned
from tests.adapters.test_http import run_with_client


def record(model: str, weight: float) -> tuple[bytes, str]:
    """A record and its checksum; the spaces show that it is not serialized again."""
    document = with_checksum(
        {"format": 1, "model": model, "weights": [weight], "feature_names": ["phi"]}
    )
    return encode_document(document).replace(b":", b": "), document["checksum"]


FIRST, CHECKSUM = record("ranker", 0.5)
OTHER, OTHER_CHECKSUM = record("größer/ than & other", -1.0)
ONE = FixedViews(live={"ranker": FIRST}, learned=learned())
TWO = FixedViews(live={"ranker": FIRST, "größer/ than & other": OTHER}, learned=learned())


def test_the_only_record_is_served_unchanged() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/weights", headers={"Accept-Encoding": "gzip"})
        assert (response.status, await response.read()) == (200, FIRST)
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers["ETag"] == f'"{CHECKSUM}"'
        assert response.headers["Cache-Control"] == "no-cache"
        assert "Content-Encoding" not in response.headers  # the ETag is of these bytes alone
        assert response.headers["X-Content-Type-Options"] == "nosniff"

    run_with_client(ONE, check)


def test_one_of_several_models_must_be_named() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        for model, expected in TWO.live.items():
            response = await client.get("/weights", params={"model": model})
            assert (response.status, await response.read()) == (200, expected)
        response = await client.get("/weights")
        assert response.status == 400
        message = (await response.json())["error"]
        assert '"ranker"' in message
        assert "?model=NAME" in message
        assert response.headers["Cache-Control"] == "no-store"

    run_with_client(TWO, check)


def test_an_error_names_sixteen_models_at_most() -> None:
    views = FixedViews(live={f"m{i:02}": FIRST for i in range(20)}, learned=learned())

    async def check(client: TestClient[Any, Any]) -> None:
        message = (await (await client.get("/weights")).json())["error"]
        assert '"m15" and 4 more.' in message
        assert "m16" not in message

    run_with_client(views, check)


@pytest.mark.parametrize(
    "header",
    [
        f'"{CHECKSUM}"',
        f'W/"{CHECKSUM}"',
        f'"older", W/"{CHECKSUM}" , "x"',
        f'"with, comma","{CHECKSUM}"',
        "*",
        " * ",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_client_that_has_the_record_gets_no_body(header: str, method: str) -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.request(method, "/weights", headers={"If-None-Match": header})
        assert (response.status, await response.read()) == (304, b"")
        assert response.headers["ETag"] == f'"{CHECKSUM}"'
        assert response.headers["Cache-Control"] == "no-cache"
        assert "Content-Type" not in response.headers

    run_with_client(ONE, check)


def test_several_header_lines_are_parsed_as_one_list() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        lines = [("If-None-Match", '"older"'), ("If-None-Match", f'"{CHECKSUM}"')]
        assert (await client.get("/weights", headers=lines)).status == 304

    run_with_client(ONE, check)


@pytest.mark.parametrize("header", ["", '"older"', CHECKSUM, f'"{CHECKSUM}', f'"{CHECKSUM[:-1]}"'])
def test_a_client_that_has_another_record_gets_the_record(header: str) -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/weights", headers={"If-None-Match": header})
        assert (response.status, await response.read()) == (200, FIRST)

    run_with_client(ONE, check)


def test_the_etag_is_that_of_the_requested_model() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        headers = {"If-None-Match": f'"{CHECKSUM}"'}
        params = {"model": "größer/ than & other"}
        response = await client.get("/weights", params=params, headers=headers)
        assert (response.status, response.headers["ETag"]) == (200, f'"{OTHER_CHECKSUM}"')

    run_with_client(TWO, check)


def test_head_has_the_content_length_of_get() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.head("/weights")
        assert (response.status, await response.read()) == (200, b"")
        assert response.headers["Content-Length"] == str(len(FIRST))
        assert response.headers["ETag"] == f'"{CHECKSUM}"'

    run_with_client(ONE, check)


@pytest.mark.parametrize(
    ("views", "params", "what_to_do"),
    [
        (FixedViews(), {}, "Set learning"),
        (FixedViews(learned=learned()), {"model": "ranker"}, "Set learning"),  # it has alarms
        (FixedViews(live={}, learned=learned()), {}, "initial_weights"),
        (FixedViews(live={}, learned=learned()), {"model": "ranker"}, "promoted"),
        (ONE, {"model": "rank"}, '"ranker"'),
        (ONE, {"model": ""}, '"ranker"'),
    ],
)
def test_without_weights_the_response_has_the_remedy(
    views: FixedViews, params: Mapping[str, str], what_to_do: str
) -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        for headers in ({}, {"If-None-Match": "*"}):
            response = await client.get("/weights", params=params, headers=headers)
            assert response.status == 404
            assert what_to_do in (await response.json())["error"]
            assert "ETag" not in response.headers

    run_with_client(views, check)


def test_rankings_without_a_model_have_weights_too() -> None:
    async def check(client: TestClient[Any, Any]) -> None:
        response = await client.get("/weights", params={"model": ""})
        assert (response.status, await response.read()) == (200, FIRST)

    run_with_client(FixedViews(live={"": FIRST, "ranker": OTHER}), check)
