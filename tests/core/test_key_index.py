"""Numbers by hash: the compiled index and the plain one agree with a dict; its memory."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from evaluator.core.native import library
from evaluator.core.native.library import NativeKeyIndex
from evaluator.core.store import key_index
from evaluator.core.store.key_index import HASH_BITS, MOST, PlainKeyIndex, new_key_index

HARNESS = Path(__file__).with_name("native_harness.c")
MAKERS = [PlainKeyIndex]
if library.BUILT is not None:
    MAKERS.append(lambda: NativeKeyIndex(library.BUILT))


@pytest.fixture(params=MAKERS)
def index(request):
    return request.param()


def hashes(*numbers):
    """Hashes of 64 bits from their first ones."""
    return np.array(numbers, np.uint64) << np.uint64(64 - HASH_BITS)


def test_it_was_built():
    assert library.BUILT is not None, (
        "no C compiler when the package was installed? Then `make clean install`"
    )


def test_what_was_put_is_found_and_what_was_not_is_not(index):
    index.put(hashes(1, 2, 1 << 43), np.array([7, MOST, 9]))
    assert index.find(hashes(2, 3, 1, 1 << 43)).tolist() == [MOST, 0, 7, 9]
    assert len(index) == 3


def test_of_equal_hashes_the_last_number_stands(index):
    index.put(hashes(1, 1), np.array([7, 8]))
    index.put(hashes(2), np.array([5]))
    index.put(hashes(2), np.array([6]))
    assert index.find(hashes(1, 2)).tolist() == [8, 6]
    assert len(index) == 2


def test_bits_behind_the_first_make_no_difference(index):
    index.put(hashes(5), np.array([7]))
    assert index.find(hashes(5) + np.uint64(1)).tolist() == [7]
    index.remove(hashes(5) + np.uint64(1))
    assert len(index) == 0


def test_what_is_not_there_can_be_removed_twice(index):
    index.remove(hashes(1))
    index.put(hashes(1), np.array([1]))
    index.remove(hashes(1, 1, 2))
    assert index.find(hashes(1)).tolist() == [0]


def test_nothing_is_asked_of_nothing(index):
    none = np.empty(0, np.uint64)
    index.put(none, np.empty(0, np.int64))
    index.remove(none)
    assert index.find(none).tolist() == []


@pytest.mark.parametrize("spread", [1, 50, 1 << 43], ids=["one part", "few parts", "all parts"])
def test_it_is_a_dict_whatever_comes(index, spread):
    """With hashes close together, so that many want the same place and some go round the end."""
    rng, expected = np.random.default_rng(7), {}
    pool = hashes(*(rng.integers(0, 1_500, 1_500) + rng.integers(0, spread, 1_500)).tolist())
    for _ in range(150):
        chosen = rng.choice(pool, rng.integers(0, 300))
        if rng.random() < 0.45:
            numbers = rng.integers(1, MOST + 1, len(chosen))
            index.put(chosen, numbers)
            expected.update(zip(chosen.tolist(), numbers.tolist(), strict=True))
        else:
            index.remove(chosen)
            for each in chosen.tolist():
                expected.pop(each, None)
        assert index.find(pool).tolist() == [expected.get(each, 0) for each in pool.tolist()]
        assert len(index) == len(expected)


@pytest.mark.skipif(library.BUILT is None, reason="the compiled part was not built")
def test_it_takes_little_memory_and_gives_it_back():
    index, n = new_key_index(), 400_000
    empty = index.n_bytes
    many = np.random.default_rng(1).integers(0, 1 << 64, n, np.uint64, endpoint=False)
    index.put(many, np.arange(1, n + 1))
    assert index.n_bytes - empty < 16 * n  # parts of six hashes each; 11 bytes where they are full
    index.remove(many)
    assert len(index) == 0
    assert index.n_bytes - empty <= 65_536 * 4 * 8


def test_without_a_compiler_there_is_one_too(monkeypatch):
    monkeypatch.setattr(key_index.library, "BUILT", None)
    assert isinstance(new_key_index(), PlainKeyIndex)


@pytest.mark.slow
def test_no_byte_out_of_bounds_is_read_or_written(tmp_path):
    program = tmp_path / "harness"
    flags = "-std=c11 -g -O1 -Wall -Wextra -Werror".split()
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *flags, "-o", program, HARNESS], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == "done\n"
