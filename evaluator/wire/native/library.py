"""Loads the compiled decoder; its inputs and outputs."""

import ctypes
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.interning import DictionaryColumn, Values
from evaluator.wire.records import MAX_MESSAGE_BYTES

PATH: Final = Path(__file__).with_name("native.so")
SEPARATOR: Final = "\x1f"
SET_END: Final = "\x1e"
_POWERS: Final = range(-342, 309)
_FIRST_NOT_ASCII: Final = 0x80
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
    for function in (library.decode_rankings, library.decode_judgments, library.read_settled):
        function.restype = None
        function.argtypes = (text, place, place, size, size, place)
    library.read_record_sets.restype = None
    for function in (library.map_records, library.texts_to_json):
        function.restype = None
        function.argtypes = (text, place, place, size, place)
    library.read_record_sets.argtypes = (place, size, size, place)
    library.write_rows.argtypes = (place, size, place, size, size, size, place, place)
    library.frame_records.argtypes = (place, place, size, text, size, place)
    library.write_rows.restype = library.frame_records.restype = size
    return library


BUILT: Final = load()
"""The compiled decoder, if it was built."""


def struct_of(*members: str) -> Any:
    """The type of structs with these members: an address after a star, or a number of 64 bits."""
    kinds = (ctypes.c_int64, ctypes.c_void_p)
    fields = [(each.removeprefix("*"), kinds[each[0] == "*"]) for each in members]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


class MessageTexts:
    """Messages where the decoder reads them; one that it must not read has no bytes.

    `n_before` is `[n + 1]`: bytes of the messages before each, a NUL byte after each included.
    """

    def __init__(self, values: ByteStrings) -> None:
        self.buffer = values.buffer
        sizes = np.where(values.sizes > MAX_MESSAGE_BYTES, 0, np.maximum(values.sizes, 0))
        self.ends = values.starts + np.maximum(values.sizes, 0)
        # The buffer may be that of a whole fetch, of which many batches are taken.
        first, end = values.starts.min(initial=len(self.buffer)), self.ends.max(initial=0) + 1
        text = np.frombuffer(self.buffer, np.uint8)[first:end]
        if text.max(initial=0) >= _FIRST_NOT_ASCII and not _is_utf8(self.buffer[first:end]):
            readable = [value is not None and _is_utf8(value) for value in values]
            sizes = np.where(readable, sizes, 0)
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


_KEPT_NAMES: Final = 1 << 16
_KEPT_NAME_BYTES: Final = 4 << 20
_MIN_PLACES: Final = 1 << 10


_NamesStruct: Final = struct_of(*"n size seed mask row *text *all *table".split())
"""`struct names`."""


class NumberedNames:
    """Names that the decoder has numbered; if they are many, it begins again at 0.

    Args:
        value_of: makes the value of a name of its text.
    """

    def __init__(self, value_of: Callable[[str], Any] = str) -> None:
        self.struct = _NamesStruct(seed=_SEED)
        self.values: Values = Values()
        self._value_of = value_of
        self._n_bytes_read = 0
        self._n_items = 0  # room for those in messages of this size
        self._arrays: dict[str, NDArray[Any]] = {}

    def reserve(self, n_items: int) -> None:
        """Makes room for the names in messages of *n_items* bytes: at least three each."""
        struct = self.struct
        is_small = n_items > self._n_items
        if is_small:
            self._n_items = 0  # until all arrays are allocated
            most = _KEPT_NAMES + n_items // 3
            self._arrays = {
                "text": np.empty(_KEPT_NAME_BYTES + n_items, np.uint8),
                "all": np.empty((most, 3), np.int64),
                "table": np.empty(max(4 * most, _MIN_PLACES), np.uint32),
            }
            for name, array in self._arrays.items():
                setattr(struct, name, array.ctypes.data)
            self._n_items = n_items
        if is_small or struct.n > _KEPT_NAMES or struct.size > _KEPT_NAME_BYTES:
            struct.n = struct.size = self._n_bytes_read = 0
            struct.mask = _MIN_PLACES - 1
            self._arrays["table"][:_MIN_PLACES] = 0
            self.values = Values()

    def begin_again(self, value_of: Callable[[str], Any]) -> None:
        """Forgets all names, and makes values another way."""
        self._value_of = value_of
        self.struct.n = self.struct.size = self._n_bytes_read = self._n_items = 0
        self.values = Values()

    def column(self, numbers: NDArray[np.int32]) -> DictionaryColumn:
        """The values of these numbers."""
        first, end = self._n_bytes_read, self.struct.size
        if end > first:
            added = str(self._arrays["text"][first:end].tobytes(), "utf-8").split(SET_END)[:-1]
            self.values += map(self._value_of, added)
            self._n_bytes_read = end
        return DictionaryColumn(self.values, numbers)


_MOST_SEPARATORS: Final = 6
"""Most separators in a row in the decoded text of a message, of missing strings and of sets. Each
other byte of it is read from at least one."""


class Arrays:
    """A struct of the decoder: pointers to `struct names`, then counts and pointers to arrays.

    The arrays are reused, and reallocated only for more or larger messages.

    Args:
        counts: names of numbers; the members of the struct are in the order of the arguments.
        rows: names and types of arrays with an item for each message.
        items: the same with items that are read from two bytes or more: a number, its separator.
        text: name of the array of bytes.
    """

    def __init__(
        self, names: Sequence[NumberedNames], *, counts: str, rows: str, items: str, text: str
    ) -> None:
        self._names, self._counts, self._text = names, counts.split(), text
        self._of_rows, self._of_items = (
            {name: np.dtype(kind) for name, kind in (each.split(":") for each in members.split())}
            for members in (rows, items)
        )
        structs = [ctypes.addressof(each.struct) for each in names]
        self._struct = struct_of(
            *(f"*names{n}" for n in range(len(names))),
            *self._counts,
            *(f"*{name}" for name in (*self._of_rows, *self._of_items, text)),
        )(*structs)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._n_rows = self._n_bytes = 0

    def __getitem__(self, name: str) -> int:
        return int(getattr(self._struct, name))

    def fill(self, decode: Any, texts: MessageTexts, first: int, end: int, **inputs: int) -> None:
        """Decodes messages from *first* to before *end*, up to one that the decoder refuses."""
        n_bytes = int(texts.n_before[end] - texts.n_before[first])
        self._reserve(end - first, n_bytes + _MOST_SEPARATORS * (end - first))
        for names in self._names:
            names.reserve(self._n_bytes)
        for name in self._counts:
            setattr(self._struct, name, inputs.get(name, 0))
        starts, ends = texts.starts.ctypes.data, texts.ends.ctypes.data
        decode(texts.buffer, starts, ends, first, end, ctypes.byref(self._struct))

    def _reserve(self, n_rows: int, n_bytes: int) -> None:
        """Makes room for *n_rows* messages of *n_bytes* with their separators."""
        if n_rows <= self._n_rows and n_bytes <= self._n_bytes:
            return
        # Powers of two, so that few batches allocate.
        n_rows = max(self._n_rows, 1 << (n_rows - 1).bit_length())
        n_bytes = max(self._n_bytes, 1 << (n_bytes - 1).bit_length())
        self._n_rows = self._n_bytes = 0  # until all are allocated: a MemoryError may come between
        for types, size in ((self._of_rows, n_rows), (self._of_items, n_bytes // 2)):
            for name, kind in types.items():
                self._arrays[name] = np.empty(size, kind)
        self._arrays[self._text] = np.empty(n_bytes, np.uint8)
        for name, array in self._arrays.items():
            setattr(self._struct, name, array.ctypes.data)
        self._n_rows, self._n_bytes = n_rows, n_bytes

    def part(self, name: str, size: int) -> NDArray[Any]:
        """A copy of the first *size* items of an array."""
        return self._arrays[name][:size].copy()

    def text(self, name: str, size: int) -> bytes:
        """The first *size* bytes of an array."""
        return self._arrays[name][:size].tobytes()
