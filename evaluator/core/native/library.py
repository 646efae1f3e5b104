"""The compiled part, loaded."""

import ctypes
from pathlib import Path
from typing import Final

PATH: Final = Path(__file__).with_name("native.so")

Library = ctypes.CDLL


def load() -> Library | None:
    """The compiled part; None where it was not built."""
    if not PATH.exists():
        return None
    library = ctypes.CDLL(str(PATH))
    size, place = ctypes.c_int64, ctypes.c_void_p
    for function, arguments in (
        (library.find_shape, (place, place, size, size, place)),
        (library.find_ties, (place, size, size, place)),
        (library.judge_lists, (place, place, size, size, place, place)),
        (library.align, (place, size, place, place)),
        (library.merge, (size, place, place, place, place)),
        (library.append_one, (size, place, place, size, place, place, place)),
    ):
        function.restype = None
        function.argtypes = arguments
    _load_index(library)
    return library


def _load_index(library: Library) -> None:
    size, place = ctypes.c_int64, ctypes.c_void_p
    library.index_new.restype = place
    library.index_new.argtypes = ()
    for function in (library.index_bytes, library.index_length):
        function.restype = size
        function.argtypes = (place,)
    library.index_free.restype = None
    library.index_free.argtypes = (place,)
    for function, result in (
        (library.index_find, None),
        (library.index_put, ctypes.c_bool),
    ):
        function.restype = result
        function.argtypes = (place, size, place, place)
    library.index_remove.restype = None
    library.index_remove.argtypes = (place, size, place)


BUILT: Final = load()
"""The compiled part, if there is one."""
