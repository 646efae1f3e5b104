"""The client of docs/weights-client.md as written, against a real server."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.adapters.http import Access, HttpServer
from evaluator.core.learning.transforms import Transform, documents, transformed
from evaluator.wire.canonical import canonical, encode_document
from evaluator.wire.weights.weights_record import with_checksum
from tests.adapters.synthetic import FixedViews, learned
from tests.repeats import examples

PAGE = Path(__file__).parents[2] / "docs" / "weights-client.md"
CLIENT, USE = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)
NAMES = ["phi_rel", "phi_hist"]


def client() -> dict[str, Any]:
    """The definitions of the page."""
    found: dict[str, Any] = {}
    exec(CLIENT, found)
    return found


def record(*weights: float, names: list[str] = NAMES) -> bytes:
    document = {"format": 1, "model": "m", "weights": [*weights], "feature_names": names}
    return encode_document(with_checksum({**document, "evidence": {"against": 1e-7, "for": 2e22}}))


@contextlib.asynccontextmanager
async def served(views: FixedViews, **how: Any) -> AsyncIterator[str]:
    server = HttpServer(views, host="127.0.0.1", port=0, **how)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/weights"
    finally:
        await server.stop()


async def poll(live: Any) -> bool:
    return await asyncio.to_thread(live.poll)


def test_the_client_is_short_and_needs_only_python() -> None:
    assert len(CLIENT.splitlines()) <= 40
    assert set(re.findall(r"^(?:from|import) (\S+)", CLIENT, re.MULTILINE)) == {
        "hashlib,",
        "decimal",
    }


async def test_it_loads_new_weights_only() -> None:
    views = FixedViews(live={"m": record(0.5, -2.0)}, learned=learned())
    async with served(views) as url:
        live = client()["LiveWeights"](url, NAMES, [1.0, 0.0])
        assert await poll(live)
        assert live.record["weights"] == [0.5, -2.0]
        before = live.record["weights"]
        assert not await poll(live)
        assert live.record["weights"] is before  # 304: nothing was read again
        views.live = {"m": record(3.0, 1e-7)}
        assert await poll(live)
        assert live.record["weights"] == [3.0, 1e-7]
        assert before == [0.5, -2.0]  # a ranking in progress keeps its weights


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (record(1.0, 2.0, names=["phi_hist", "phi_rel"]), "the weights are of"),
        (record(1.0, 2.0).replace(b"2.0", b"2.5"), "not those of their checksum"),
        (b'{"checksum": "x"}', "not those of their checksum"),
        (b'{"checksum": "x", "weights": [1.0', "500"),
    ],
)
async def test_it_keeps_the_old_weights_if_new_ones_are_invalid(
    wrong: bytes, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    views = FixedViews(live={"m": record(0.5, -2.0)}, learned=learned())
    async with served(views) as url:
        live = client()["LiveWeights"](url, NAMES, [1.0, 0.0])
        assert await poll(live)
        views.live = {"m": wrong}
        assert not await poll(live)
        assert live.record["weights"] == [0.5, -2.0]
        assert message in caplog.text
        views.live = {"m": record(4.0, 4.0)}
        assert await poll(live)
    assert not await poll(live)  # no server answers any more
    assert live.record["weights"] == [4.0, 4.0]


async def test_without_live_weights_the_client_keeps_the_initial_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(FixedViews()) as url:
        live = client()["LiveWeights"](url, NAMES, [1.0, 0.0])
        assert not await poll(live)
        assert live.record["weights"] == [1.0, 0.0]
    assert "404" in caplog.text


async def test_it_sends_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    views = FixedViews(live={"m": record(0.5, -2.0)})
    async with served(views, access=Access(token_file=str(token))) as url:
        live = client()["LiveWeights"](url, NAMES, [1.0, 0.0])
        assert not await poll(live)
        live.headers["Authorization"] = "Bearer 0123456789abcdef"
        assert await poll(live)


def test_a_recommender_ranks_by_the_live_weights() -> None:
    found = client()
    exec(USE, found)
    names = found["live"].feature_names
    candidate = type("Candidate", (), {"__init__": lambda self, *x: setattr(self, "features", x)})
    low, high = candidate(0.1, 0.9), candidate(0.9, 0.1)
    assert found["rank"]([low, high]) == [high, low]
    found["live"].record = {"weights": [0.0, 1.0]}
    assert found["rank"]([high, low]) == [low, high]
    found["live"].record = {"weights": [0.0, 1.0], "transforms": documents({"phi_hist": CLIP})}
    assert found["rank"]([high, low]) == [high, low]  # both are 0.1 after the clip
    assert len(names) == len(found["live"].record["weights"])


CLIP = Transform(-0.1, 0.1, log1p=True)


@pytest.mark.parametrize("x", [-3.0, -0.05, 0.0, 0.07, 5.0])
@pytest.mark.parametrize("transform", [CLIP, Transform(-1.0, 2.0), Transform(log1p=True)])
def test_a_recommender_transforms_as_the_leader_does(x: float, transform: Transform) -> None:
    found = client()
    exec(USE, found)
    (expected,) = transformed(np.array([[x]]), ("a",), {"a": transform})[0]
    assert found["transformed"](x, transform._asdict()) == pytest.approx(expected, rel=1e-14)
    assert found["transformed"](x, None) == x


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53).map(float)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(values)
def test_its_canonical_text_equals_that_of_the_package(value: Any) -> None:
    assert client()["canonical"](value).encode() == canonical(value)
