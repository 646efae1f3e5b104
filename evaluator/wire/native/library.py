"""Loads the compiled decoder; its inputs and outputs."""

import ctypes
import secrets
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.wire.records import MAX_MESSAGE_BYTES

PATH: Final = Path(__file__).with_name("native.so")
SEPARATOR: Final = "\x1f"
SET_END: Final = "\x1e"
_POWERS: Final = range(-342, 309)
_SEED: Final = secrets.randbits(63)
"""Seed of the hashes of ids, against chosen collisions; results do not depend on it."""


def _significant_bits(power: int) -> tuple[int, int]:
    """The first 128 bits of 5^power, as two words.

    Source: Lemire 2021, Number parsing at a gigabyte per second: truncated, except for powers
    whose product with 64 bits may be an integer, which are rounded up.
    """
    value = 5 ** abs(power)
    if power >= 0:
        bits = value << 128 >> value.bit_length()
    else:
        bits = (1 << (127 + value.bit_length())) // value + (power >= -27)
    return bits >> 64, bits & ((1 << 64) - 1)


powers_of_five: Final = np.array([_significant_bits(power) for power in _POWERS], np.uint64)


def is_current(library: Path) -> bool:
    """Whether a compiled library exists and none of the C files beside it was changed since."""
    if not library.exists():
        return False
    changed = max((path.stat().st_mtime for path in library.parent.glob("*.[ch]")), default=0.0)
    return library.stat().st_mtime >= changed


def load() -> ctypes.CDLL | None:
    """The compiled decoder; None if it was not built, or from other sources."""
    if not is_current(PATH):
        return None
    library = ctypes.CDLL(str(PATH))
    library.set_powers_of_five(ctypes.c_void_p(powers_of_five.ctypes.data))
    size, place, text = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    for function in (library.decode_rankings, library.decode_judgments):
        function.restype = None
        function.argtypes = (text, place, place, size, size, place)
    library.read_record_sets.restype = None
    library.read_record_sets.argtypes = (place, size, size, place)
    library.write_rows.argtypes = (place, size, place, size, size, size, place, place)
    library.frame_records.argtypes = (place, place, size, text, size, place)
    library.write_rows.restype = library.frame_records.restype = size
    return library


BUILT: Final = load()
"""The compiled decoder, if it was built."""


class MessageTexts:
    """Messages where the decoder reads them; one that it must not read has no bytes.

    `n_before` is `[n + 1]`: bytes of the messages before each, a NUL byte after each included.
    """

    def __init__(self, values: ByteStrings) -> None:
        self.buffer = values.buffer
        sizes = np.where(values.sizes > MAX_MESSAGE_BYTES, 0, np.maximum(values.sizes, 0))
        if not self.buffer.isascii() and not _is_utf8(self.buffer):
            readable = [value is not None and _is_utf8(value) for value in values]
            sizes = np.where(readable, sizes, 0)
        self.ends = values.starts + np.maximum(values.sizes, 0)
        self.starts = self.ends - sizes
        self.n_before = np.append(0, np.cumsum(sizes + 1))

    def __len__(self) -> int:
        return len(self.ends)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


NAMES: Final = "n size generation seed mask text:u1 starts:i8 lengths:i8 mentioned:i8 table:u8"
"""The members of `struct names`."""
MAX_GENERATIONS: Final = (1 << 32) - 1
"""Limit of the generation in an entry of the hash table."""


class Arrays:
    """A struct of the decoder: `struct names`, then counts and pointers to arrays.

    The arrays are reused, and reallocated only for larger messages.

    Args:
        members: names, those of arrays with the type of their items.
    """

    def __init__(self, members: str) -> None:
        split = [name.partition(":")[::2] for name in f"{NAMES} {members}".split()]
        self._types = {name: np.dtype(kind) for name, kind in split if kind}
        self._counts = ["n", "size", *(name for name in members.split() if ":" not in name)]
        fields = [(name, ctypes.c_void_p if kind else ctypes.c_int64) for name, kind in split]
        self._struct: Any = type("Struct", (ctypes.Structure,), {"_fields_": fields})()
        self._struct.seed = _SEED
        self._arrays: dict[str, NDArray[Any]] = {}
        self._n_items = 0

    def __getitem__(self, name: str) -> int:
        return int(getattr(self._struct, name))

    def fill(self, decode: Any, texts: MessageTexts, first: int, end: int) -> None:
        """Decodes messages from *first* to before *end*, up to one that the decoder refuses."""
        self._allocate(int(texts.n_before[end] - texts.n_before[first]) + 6 * (end - first))
        if self._struct.generation == MAX_GENERATIONS:
            self._arrays["table"].fill(0)
            self._struct.generation = 0
        for name in self._counts:
            setattr(self._struct, name, 0)
        self._struct.generation += 1
        starts, ends = texts.starts.ctypes.data, texts.ends.ctypes.data
        decode(texts.buffer, starts, ends, first, end, ctypes.byref(self._struct))

    def _allocate(self, n_items: int) -> None:
        """Gives each array *n_items*: the bytes of the messages, and 6 per message.

        An item is decoded from at least one byte, except separators of missing strings and of sets,
        at most 6 in a row.
        """
        if n_items <= self._n_items:
            return
        self._n_items = 0  # until all arrays are allocated: a MemoryError may come between
        size = 1 << n_items.bit_length()  # a power of two, so that few batches allocate
        for name, kind in self._types.items():
            self._arrays[name] = np.empty(size, kind)
        self._arrays["table"] = np.zeros(size, np.uint64)  # an id takes at least three bytes
        self._struct.mask = size - 1
        self._struct.generation = 0
        for name, array in self._arrays.items():
            setattr(self._struct, name, array.ctypes.data)
        self._n_items = size

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
        """The numbered names."""
        return self.column("text", self["size"])
