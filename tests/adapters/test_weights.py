"""`/weights` over a real socket."""

from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from evaluator.wire.canonical import encode_document
from evaluator.wire.weights.weights_record import with_checksum
from tests.adapters.synthetic import FixedViews, learned
from tests.adapters.test_http import asked


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


def test_the_only_record_there_is_comes_byte_by_byte() -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        answer = await client.get("/weights", headers={"Accept-Encoding": "gzip"})
        assert (answer.status, await answer.read()) == (200, FIRST)
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["ETag"] == f'"{CHECKSUM}"'
        assert answer.headers["Cache-Control"] == "no-cache"
        assert "Content-Encoding" not in answer.headers  # the ETag is of these bytes alone
        assert answer.headers["X-Content-Type-Options"] == "nosniff"

    asked(ONE, question)


def test_of_several_models_one_is_chosen() -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        for model, expected in TWO.live.items():
            answer = await client.get("/weights", params={"model": model})
            assert (answer.status, await answer.read()) == (200, expected)
        answer = await client.get("/weights")
        assert answer.status == 400
        said = (await answer.json())["error"]
        assert '"ranker"' in said
        assert "?model=NAME" in said
        assert answer.headers["Cache-Control"] == "no-store"

    asked(TWO, question)


def test_an_error_names_sixteen_models_at_most() -> None:
    views = FixedViews(live={f"m{i:02}": FIRST for i in range(20)}, learned=learned())

    async def question(client: TestClient[Any, Any]) -> None:
        said = (await (await client.get("/weights")).json())["error"]
        assert '"m15" and 4 more.' in said
        assert "m16" not in said

    asked(views, question)


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
def test_who_holds_the_record_gets_no_body(header: str, method: str) -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        answer = await client.request(method, "/weights", headers={"If-None-Match": header})
        assert (answer.status, await answer.read()) == (304, b"")
        assert answer.headers["ETag"] == f'"{CHECKSUM}"'
        assert answer.headers["Cache-Control"] == "no-cache"
        assert "Content-Type" not in answer.headers

    asked(ONE, question)


def test_several_header_lines_are_one_list() -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        lines = [("If-None-Match", '"older"'), ("If-None-Match", f'"{CHECKSUM}"')]
        assert (await client.get("/weights", headers=lines)).status == 304

    asked(ONE, question)


@pytest.mark.parametrize("header", ["", '"older"', CHECKSUM, f'"{CHECKSUM}', f'"{CHECKSUM[:-1]}"'])
def test_who_holds_another_one_gets_the_record(header: str) -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        answer = await client.get("/weights", headers={"If-None-Match": header})
        assert (answer.status, await answer.read()) == (200, FIRST)

    asked(ONE, question)


def test_the_tag_is_that_of_the_model_asked_for() -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        headers = {"If-None-Match": f'"{CHECKSUM}"'}
        params = {"model": "größer/ than & other"}
        answer = await client.get("/weights", params=params, headers=headers)
        assert (answer.status, answer.headers["ETag"]) == (200, f'"{OTHER_CHECKSUM}"')

    asked(TWO, question)


def test_head_says_how_much_there_would_be() -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        answer = await client.head("/weights")
        assert (answer.status, await answer.read()) == (200, b"")
        assert answer.headers["Content-Length"] == str(len(FIRST))
        assert answer.headers["ETag"] == f'"{CHECKSUM}"'

    asked(ONE, question)


@pytest.mark.parametrize(
    ("views", "params", "what_to_do"),
    [
        (FixedViews(), {}, "Set learning"),
        (FixedViews(learned=learned()), {}, "initial_weights"),
        (FixedViews(learned=learned()), {"model": "ranker"}, "promoted"),
        (ONE, {"model": "rank"}, '"ranker"'),
        (ONE, {"model": ""}, '"ranker"'),
    ],
)
def test_without_weights_the_answer_says_what_to_do(
    views: FixedViews, params: Mapping[str, str], what_to_do: str
) -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        for headers in ({}, {"If-None-Match": "*"}):
            answer = await client.get("/weights", params=params, headers=headers)
            assert answer.status == 404
            assert what_to_do in (await answer.json())["error"]
            assert "ETag" not in answer.headers

    asked(views, question)


def test_rankings_without_a_model_have_weights_too() -> None:
    async def question(client: TestClient[Any, Any]) -> None:
        answer = await client.get("/weights", params={"model": ""})
        assert (answer.status, await answer.read()) == (200, FIRST)

    asked(FixedViews(live={"": FIRST, "ranker": OTHER}), question)
