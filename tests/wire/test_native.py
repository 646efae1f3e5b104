"""The compiled decoder alone: its numbers, its limits, its memory, and its absence."""

import json
import os
import random
import re
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evaluator.core.types.records import MAX_SEGMENTS
from evaluator.wire.messages import codec, models
from evaluator.wire.messages.decoders import JudgmentDecoder, RankingDecoder
from evaluator.wire.native import library
from evaluator.wire.native.library import is_current
from evaluator.wire.reading import MAX_NESTING
from evaluator.wire.records import MAX_MESSAGE_BYTES
from tests.repeats import sized
from tests.wire import fuzz, messages, mutations
from tests.wire.messages import texts_of
from tests.wire.sanitized import built, printed
from tests.wire.test_soundness import JUDGMENTS, RANKINGS
from tests.wire.test_watched_decoder import VALUES as SETTLED

FOLDER = Path(library.__file__).parent
HARNESS = Path(__file__).with_name("native_harness.c")
SEED = 20251121


def test_the_compiled_part_was_built():
    assert library.BUILT is not None, (
        "no C compiler when the package was installed? Then `make clean install`"
    )


def test_a_build_from_other_sources_is_not_used(tmp_path):
    compiled, source = tmp_path / "native.so", tmp_path / "native.c"
    source.touch()
    assert not is_current(compiled)
    compiled.touch()
    os.utime(compiled, (1_000, 1_000))
    os.utime(source, (1_000, 1_000))  # as a wheel has them
    assert is_current(compiled)
    os.utime(source, (1_001, 1_001))
    assert not is_current(compiled)


def scores_of(tokens):
    """The scores that the decoder itself reads from number tokens; None if it leaves them."""
    ids = ",".join(f'"{index}"' for index in range(len(tokens)))
    value = (
        f'{{"schema_version":1,"trace_id":"t","node_id":"n","candidate_ids":[{ids}],'
        f'"scores":[{",".join(tokens)}]}}'
    )
    part = RankingDecoder().rows(texts_of(value.encode()), 0, 1)
    return None if part is None else part.scores.tolist()


def as_read_by_python(tokens):
    return [float(token) + 0.0 for token in tokens]


def floats(rng, n):
    """Doubles of nearly any exponent, normal also when they are rounded a little."""
    bits = [rng.getrandbits(64) for _ in range(n)]
    doubles = [struct.unpack("<d", struct.pack("<Q", each))[0] for each in bits]
    return [each for each in doubles if 1e-300 < abs(each) < 1e300]


@pytest.mark.parametrize("style", ["{!r}", "{:.17g}", "{:.18e}", "{:.3g}", "{:.0e}"])
def test_any_double_is_read_as_in_python(style):
    rng = random.Random(f"{SEED}{style}")
    for _ in range(sized(100, quick=10)):
        tokens = [style.format(each).replace("e+0", "e0") for each in floats(rng, 500)]
        assert scores_of(tokens) == as_read_by_python(tokens)


def test_decimals_of_any_length_are_read_as_in_python():
    rng = random.Random(SEED)
    for _ in range(sized(100, quick=10)):
        tokens = []
        for _ in range(500):
            digits = str(rng.randrange(10 ** rng.randrange(1, 20)))
            fraction = (
                f".{rng.randrange(10**9):0{rng.randrange(1, 10)}d}" if len(digits) < 9 else ""
            )
            exponent = rng.choice(["", f"e{rng.randrange(-250, 250)}", f"E+{rng.randrange(30)}"])
            tokens.append(rng.choice(["", "-"]) + digits + fraction + exponent)
        assert scores_of(tokens) == as_read_by_python(tokens)


@pytest.mark.slow(alone=False)
def test_short_decimals_are_read_as_in_python():
    """A word of eight bytes at once, in the middle of a text and beside its end."""
    rng = random.Random(SEED)
    for n_digits in range(1, 8):
        numbers = rng.sample(range(10 ** (n_digits + 1)), min(2_000, 9 * 10**n_digits))
        tokens = [f"{n // 10**n_digits}.{n % 10**n_digits:0{n_digits}d}" for n in numbers]
        tokens += [f"{token}{rng.choice('eE')}{rng.randrange(9)}" for token in tokens[:50]]
        for first in range(0, len(tokens), 500):
            some = tokens[first : first + 500]
            assert scores_of(some) == as_read_by_python(some)


def numbers_of(decoder, token):
    """A score and two features as the decoder reads them, at and before the end of the message."""
    value = (
        '{"schema_version":1,"trace_id":"t","node_id":"n","candidate_ids":["a","b"],'
        f'"scores":[{token},2],"features":[[1,{token}],[{token},2]]'
    )
    parts = [
        decoder.rows(texts_of((value + end).encode()), 0, 1, features=keeps)
        for end in ("}", ',"x":1}')
        for keeps in (False, True)
    ]
    assert len({part is None for part in parts}) == 1, "kept or only checked"
    return parts[1] and [parts[1].scores[0], *parts[1].features.values[1:3]]


@pytest.mark.slow(alone=False)
def test_invalid_numbers_are_not_read_as_short_decimals():
    """By scores, and by features that are kept or only checked."""
    rng, decoder, accepted = random.Random(SEED), RankingDecoder(), 0
    for _ in range(sized(3_000, quick=300)):
        token = rng.choice("0123456789") + rng.choice(("", ".", "."))
        token += "".join(rng.choices("0123456789" * 3 + ".eE+-/:;_", k=rng.randrange(8)))
        try:
            expected = json.loads(f"[{token}]")
        except ValueError:
            expected = None
        if expected is not None and "e" in token.lower() and not 1e-300 < expected[0] < 1e300:
            continue
        accepted += expected is not None
        assert numbers_of(decoder, token) == (None if expected is None else expected * 3)
    assert accepted > 30


@pytest.mark.slow(alone=False)
def test_halves_between_two_doubles_are_rounded_to_even():
    rng = random.Random(SEED)
    halves = [2**53 + 2 * rng.randrange(2**52) + 1 for _ in range(20_000)]
    near = [half + rng.choice([-1, 0, 1]) for half in halves]
    fractions = [f"{half // 4}.{half % 4 * 25:02d}" for half in halves]
    eighths = [f"{half // 8}.{half % 8 * 125:03d}" for half in halves]
    for tokens in (list(map(str, near)), fractions, eighths):
        for first in range(0, len(tokens), 500):
            some = tokens[first : first + 500]
            assert scores_of(some) == as_read_by_python(some)


@pytest.mark.parametrize(
    "token",
    [
        "1e309",
        "1.8e308",
        "2e-308",
        "4.9e-324",
        "1e-400",
        "1e400",
        "12345678901234567890",
        "1e1234567",
    ],
)
def test_other_numbers_than_normal_doubles_of_19_digits_take_the_reference_path(token):
    assert scores_of(["1", token]) is None


def test_leading_and_trailing_zeros_do_not_count_as_digits():
    tokens = ["0.000000000000000000001234567890123456789", "0.0", "-0.0", "0e5", "-0"]
    assert scores_of(tokens) == as_read_by_python(tokens)


def test_limits_of_the_decoder_equal_those_of_the_models():
    text = (FOLDER / "json.h").read_text()
    limits = {name: int(value) for name, value in re.findall(r"(MAX_\w+) = (\d+)", text)}
    assert limits.pop("MAX_NESTING") < MAX_NESTING
    assert limits.pop("MAX_MESSAGE_BYTES") == MAX_MESSAGE_BYTES
    assert limits.pop("MAX_SEGMENTS") == MAX_SEGMENTS
    assert len(limits) == 6
    for name, value in limits.items():
        assert value == getattr(models, name), name


@pytest.mark.slow(alone=False)
def test_rows_are_the_same_without_the_compiled_part(monkeypatch):
    rng = random.Random(SEED)
    for log, valid, decode, rows_of in (
        ("rankings", RANKINGS, codec.decode_rankings, messages.ranking_rows_of),
        ("judgments", JUDGMENTS, codec.decode_judgments, messages.judgment_rows_of),
    ):
        values = [messages.as_bytes(rng.choice(valid)) for _ in range(300)]
        values = [mutations.mutant(value, rng) if rng.random() < 0.3 else value for value in values]
        batch = messages.records(log, [*values, None])
        with_it = decode(batch, max_future_skew_ms=messages.SKEW_MS)
        with monkeypatch.context() as patch:
            patch.setattr(library, "BUILT", None)
            without = decode(batch, max_future_skew_ms=messages.SKEW_MS)
        assert rows_of(with_it) == rows_of(without)
        assert with_it.malformed == without.malformed
        assert with_it.heartbeat_offsets.tolist() == without.heartbeat_offsets.tolist() == [300]


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """The decoder with sanitizers in a program of its own."""
    return built(HARNESS, tmp_path_factory.mktemp("native"))


def as_large_as_can_be():
    """A ranking that uses all the room of scorers and ids."""
    name = "x" * 250
    return messages.as_bytes(
        messages.ranking(
            candidate_ids=[f"{index}{name}" for index in range(900)],
            scores=list(range(900)),
            scorers={name + letter: list(range(900)) for letter in "abcdefgh"},
        )
    )


def as_many_features_as_can_be():
    """A ranking that uses all the room of features and their names: little text for each."""
    message = messages.ranking(
        candidate_ids=[str(index) for index in range(400)],
        scores=[0] * 400,
        features=[[0] * 256] * 400,
        feature_names=[""] * 256,
        propensities=[1] * 400,
    )
    return json.dumps(message, separators=(",", ":")).encode()


@pytest.mark.slow
def test_no_mutant_causes_an_invalid_memory_access(harness):
    rng = random.Random(SEED)
    valid = [messages.as_bytes(message) for message in RANKINGS + JUDGMENTS] + 3 * SETTLED
    batches = [[as_large_as_can_be()], [as_large_as_can_be()[:-1]]]
    batches += [[as_many_features_as_can_be()], [as_many_features_as_can_be()[:-1]] * 2]
    assert RankingDecoder().rows(texts_of(*batches[2]), 0, 1, features=True) is not None
    for _ in range(12_000):
        values = [rng.choice(valid) for _ in range(rng.choice([1, 1, 3, 10]))]
        batches.append([mutations.mutant(v, rng) if rng.random() < 0.8 else v for v in values])
    table = np.ascontiguousarray(library.powers_of_five).tobytes()
    parts = [table]
    for values in batches:
        parts.append(struct.pack("<q", len(values)))
        parts += [struct.pack("<q", len(value)) + value for value in values]
    sent = b"".join(parts)
    n_rankings, n_judgments, n_settled = map(int, printed(harness, sent).split())
    assert n_rankings > 500
    assert n_judgments > 100
    assert n_settled > 100


@pytest.mark.slow
def test_no_input_of_the_fuzz_corpus_causes_an_invalid_memory_access(tmp_path):
    program, environment = fuzz.build(tmp_path, "cc", "-DREPLAY", "-fsanitize=address,undefined")
    inputs = fuzz.unpack(tmp_path / "inputs")
    assert len(inputs) > 1_000
    assert {each.read_bytes()[0] for each in inputs} >= set(fuzz.KINDS)
    done = subprocess.run(
        [program, *inputs], env=environment, capture_output=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()


TWICE_GRADED = b'{"schema_version":1,"trace_id":"t","node_id":"n","grades":{"a":1,"a":2}}'


def test_numbers_of_names_restart_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(library, "_KEPT_NAMES", 40)
    monkeypatch.setattr(library, "_MIN_PLACES", 2)
    decoder, shared = JudgmentDecoder(), set()
    for n in range(30):
        grades = {f"{prefix}{n - n % 3}": n % 5 for prefix in ("tool", "\u00e9", '"', "x" * 200)}
        texts = texts_of(*[messages.as_bytes(messages.judgment(grades=grades))] * 2, TWICE_GRADED)
        assert decoder.rows(texts, 2, 3) is None
        part = decoder.rows(texts, 0, 3)
        assert part is not None
        assert [part.grades[row] for row in (0, 1)] == [grades, grades]
        names = part.grades.candidates.names
        assert len(names) == len(set(names)) <= 40 + 5
        shared.add(id(names))
    assert len(shared) == 1 + 10 * 4 // 40


@pytest.mark.parametrize("n_made", range(22))
def test_partly_allocated_buffers_are_not_used(monkeypatch, n_made):
    arrays = RankingDecoder()._arrays
    small, large = (texts_of(b"x" * n) for n in (9, 9_000))
    made = iter(range(n_made))

    def array(size, kind):
        if next(made, None) is None:
            raise MemoryError
        return np.zeros(size, kind)

    def decode(text, *_):
        for name, each in arrays._arrays.items():
            assert getattr(arrays._struct, name) == each.ctypes.data
            needed = 1 if name in arrays._of_rows else len(text) / (1 + (name != "strings"))
            assert len(each) >= needed
        for names in arrays._names:
            for name, each in names._arrays.items():
                assert getattr(names.struct, name) == each.ctypes.data
                assert len(each) >= len(text) // 3

    arrays.fill(decode, small, 0, 1)
    with monkeypatch.context() as patch:
        types = {"uint8": np.uint8, "int64": np.int64, "uint32": np.uint32}
        patch.setattr(library, "np", SimpleNamespace(empty=array, **types))
        with pytest.raises(MemoryError):
            arrays.fill(decode, large, 0, 1)
    arrays.fill(decode, small, 0, 1)
    arrays.fill(decode, large, 0, 1)


def test_escapes_and_characters_of_every_length_are_decoded():
    text = "".join(
        map(chr, [*range(0x20, 0x300), 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF, 8, 9, 10])
    )
    for ascii_only in (True, False):
        value = json.dumps(messages.ranking(query=text, model=text[-60:]), ensure_ascii=ascii_only)
        part = RankingDecoder().rows(texts_of(value.encode()), 0, 1)
        assert part is not None
        assert (part.strata.values()[0].model, part.texts[0][2]) == (text[-60:], text)
