"""Keys of queries: 128-bit hashes of (trace_id, node_id), whose texts are kept with them.

Two keys are equal if their hashes are: no collision of BLAKE2b is known.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

Key = bytes
"""One hash."""
KeyHashes = NDArray[np.void]
"""Hashes, V16: `[n_keys]`."""

NO_KEYS: Final[KeyHashes] = np.empty(0, "V16")


def key_of(trace_id: str, node_id: str) -> Key:
    """The hash of a key; `put_key_hash` of wire/native is the same in C.

    >>> key_of("t", "n").hex()
    '5c28ed9d6645b31d2eb3a6db86d4eb4a'
    """
    trace = trace_id.encode()
    name = len(trace).to_bytes(2, "little") + trace + node_id.encode()
    return blake2b(name, digest_size=16).digest()


def hashes_of(trace_ids: Sequence[str], node_ids: Sequence[str]) -> KeyHashes:
    """The hashes of keys."""
    return keys_from(list(map(key_of, trace_ids, node_ids)))


def keys_from(keys: Sequence[Key]) -> KeyHashes:
    """A column of hashes."""
    return np.frombuffer(b"".join(keys), "V16")


def halves(keys: KeyHashes) -> NDArray[np.uint64]:
    """Both halves of each hash: `[n_keys, 2]`."""
    return np.ascontiguousarray(keys).view("<u8").reshape(-1, 2)
