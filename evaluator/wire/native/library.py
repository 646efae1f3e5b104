"""The compiled part, loaded, and what its decoder is told and given."""

import ctypes
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator.wire.records import MAX_MESSAGE_BYTES

PATH: Final = Path(__file__).with_name("native.so")
SEPARATOR: Final = "\x1f"
SET_END: Final = "\x1e"
_POWERS: Final = range(-342, 309)
_SEED: Final = secrets.randbits(63)
"""Of hashes that no result depends on, so that ids with equal ones are hard to choose."""


def _significant_bits(power: int) -> tuple[int, int]:
    """The first 128 bits of 5^power, as two words.

    Source: Lemire 2021, Number parsing at a gigabyte per second: cut off, but for those powers
    whose product with 64 bits may be a whole number, which are rounded up.
    """
    value = 5 ** abs(power)
    if power >= 0:
        bits = value << 128 >> value.bit_length()
    else:
        bits = (1 << (127 + value.bit_length())) // value + (power >= -27)
    return bits >> 64, bits & ((1 << 64) - 1)


powers_of_five: Final = np.array([_significant_bits(power) for power in _POWERS], np.uint64)


Library = ctypes.CDLL


def load() -> Library | None:
    """The compiled part; None where it was not built."""
    if not PATH.exists():
        return None
    library = ctypes.CDLL(str(PATH))
    library.set_powers_of_five(ctypes.c_void_p(powers_of_five.ctypes.data))
    size, place, text = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    for function in (
        library.decode_rankings,
        library.decode_rankings_with_features,
        library.decode_judgments,
    ):
        function.restype = None
        function.argtypes = (text, place, size, size, place)
    return library


BUILT: Final = load()
"""The compiled part, if there is one."""


class MessageTexts:
    """The texts of some messages, each with a NUL byte behind it."""

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self._texts = [
            b"" if value is None or len(value) > MAX_MESSAGE_BYTES else value for value in values
        ]  # an empty one is refused as well
        self.joined = self._join()
        if not self.joined.isascii():
            self._leave_out_what_is_not_utf8()
        lengths = np.fromiter(map(len, self._texts), np.int64, len(self._texts))
        self.ends = np.cumsum(lengths + 1) - 1

    def __len__(self) -> int:
        return len(self._texts)

    def _join(self) -> bytes:
        return b"\0".join([*self._texts, b""])

    def _leave_out_what_is_not_utf8(self) -> None:
        if _is_utf8(self.joined):
            return
        self._texts = [text if _is_utf8(text) else b"" for text in self._texts]
        self.joined = self._join()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


NAMES: Final = (
    *(("n", None), ("size", None), ("generation", None), ("seed", None), ("mask", None)),
    *(("text", np.uint8), ("starts", np.int64), ("lengths", np.int64), ("mentioned", np.int64)),
    ("table", np.uint64),
)
"""The members of `struct names`."""
MOST_GENERATIONS: Final = (1 << 32) - 1
"""That an entry of the table can tell apart."""


class Arrays:
    """A struct of the decoder: names first, then counts of what it wrote, and where to.

    The arrays are reused, and reallocated only for larger messages.
    """

    def __init__(self, counts: Sequence[str], arrays: Sequence[tuple[str, Any]]) -> None:
        members = (*NAMES, *((name, None) for name in counts), *arrays)
        self._counts = ("n", "size", *counts)
        self._types = {name: kind for name, kind in members if kind is not None}
        fields = [(name, ctypes.c_void_p if kind else ctypes.c_int64) for name, kind in members]
        self._struct: Any = type("Struct", (ctypes.Structure,), {"_fields_": fields})()
        self._struct.seed = _SEED
        self._arrays: dict[str, NDArray[Any]] = {}
        self._n_items = 0

    def __getitem__(self, name: str) -> int:
        return int(getattr(self._struct, name))

    def fill(self, decode: Any, texts: MessageTexts, first: int) -> None:
        """Decodes the messages from *first* on, as far as the decoder goes."""
        self._make_room(texts)
        if self._struct.generation == MOST_GENERATIONS:
            self._arrays["table"].fill(0)
            self._struct.generation = 0
        for name in self._counts:
            setattr(self._struct, name, 0)
        self._struct.generation += 1
        decode(texts.joined, texts.ends.ctypes.data, first, len(texts), ctypes.byref(self._struct))

    def _make_room(self, texts: MessageTexts) -> None:
        """As many items as there are bytes, in each array.

        Whatever is written as one item was at least one byte of text; but the end of a string
        that is missing, and of a set, takes no text: six of them in a row.
        """
        n_items = len(texts.joined) + 6 * len(texts)
        if n_items <= self._n_items:
            return
        self._n_items = 0  # no room until all of it is there: this may end in a MemoryError
        room = 1 << n_items.bit_length()  # more than is needed, or each batch would allocate
        for name, kind in self._types.items():
            self._arrays[name] = np.empty(room, kind)  # mostly never touched
        self._arrays["table"] = np.zeros(room, np.uint64)  # an id has three bytes at least
        self._struct.mask = room - 1
        self._struct.generation = 0
        for name, array in self._arrays.items():
            setattr(self._struct, name, array.ctypes.data)
        self._n_items = room

    def part(self, name: str, size: int) -> NDArray[Any]:
        """A copy of the first *size* items of an array."""
        return self._arrays[name][:size].copy()

    def text(self, name: str, size: int) -> str:
        """The first *size* bytes of an array as text."""
        return str(self._arrays[name][:size].tobytes(), "utf-8")

    def column(self, name: str, size: int) -> list[str]:
        """The strings in the first *size* bytes of an array, each with its separator."""
        return self.text(name, size).split(SEPARATOR)[:-1]

    def names(self) -> list[str]:
        """The names that were given numbers."""
        return self.column("text", self["size"])
