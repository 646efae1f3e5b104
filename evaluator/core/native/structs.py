"""What the compiled part is given and gives: structs of numbers and of places of arrays."""

import ctypes
from typing import Any

from numpy.typing import NDArray

NUMBER, PLACE = ctypes.c_int64, ctypes.c_void_p


def struct(*members: tuple[Any, str]) -> type[ctypes.Structure]:
    """Types, and names of members of each type."""
    fields = [(name, kind) for kind, names in members for name in names.split()]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


def places(names: str) -> type[ctypes.Structure]:
    """A struct of arrays."""
    return struct((PLACE, names))


def address(array: NDArray[Any]) -> int:
    """Where the numbers of an array begin; they must lie together.

    Raises:
        ValueError: if they lie apart.
    """
    if not array.flags.c_contiguous:
        raise ValueError("an array for the compiled part must lie together in memory")
    if not array.size or not array.flags.writeable:
        return array.ctypes.data
    writable: Any = array
    return ctypes.addressof(ctypes.c_char.from_buffer(writable))  # four times as quick


def filled(kind: type[ctypes.Structure], *arrays: NDArray[Any]) -> Any:
    """A struct of these arrays for a call, after which they must live still."""
    return ctypes.byref(kind(*map(address, arrays)))
