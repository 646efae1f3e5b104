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
    return library


BUILT: Final = load()
"""The compiled part, if there is one."""
