"""Blocks of event time: their values, bets in units of their spread, and traces that counted.

The value of a block is the mean difference of its traces. A bet is that value divided by three
deviations of the earlier blocks, or by what one lost trace would change, if that is more; it is
cut at -1 and 1. So a rare large loss, which the earlier blocks may lack, counts whole.
"""

from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.promotion.e_process import Wealth
from evaluator.core.types.records import FloatArray

WARM_UP_BLOCKS: Final = 3
"""Blocks without a bet at the beginning: they give the first spread."""
_DEVIATIONS: Final = 3.0
MOST_HASHES: Final = 4_096
"""Hashes of a sample; with more, the half with the larger ones is dropped."""
_HASH_BYTES: Final = 6


class OpenBlock(NamedTuple):
    """The block that still takes traces: its number, their number and sum in units of 2^-40."""

    number: int
    n: int
    units: int

    def value(self) -> FloatArray:
        """The mean difference."""
        return np.array(self.units / (self.n * UNITS_PER_ONE))


class BlockBets(Struct, frozen=True, eq=False):
    """The bets on and against a challenger; arrays are `[...]`, one element per run.

    `mean` and `squares` are the mean and the squared distances from it of the values of *n* blocks.
    """

    gain: Wealth
    loss: Wealth
    mean: FloatArray
    squares: FloatArray
    n: int = 0

    @classmethod
    def of_one(cls, *shape: int) -> "BlockBets":
        """Wealth 1 and no block, of one run or of *shape* runs."""
        one = Wealth.of_one(*shape)
        return cls(one, one, np.zeros(shape), np.zeros(shape))

    def after(self, values: FloatArray, n_traces: float) -> "BlockBets":
        """The bets after one more block of each run, of so many traces."""
        gain, loss, n = self.gain, self.loss, self.n + 1
        if n > WARM_UP_BLOCKS:
            bets = self._bets_on(values, n_traces)
            gain, loss = gain.after(bets), loss.after(-bets)
        distances = values - self.mean
        mean = np.asarray(self.mean + distances / n)
        squares = np.asarray(self.squares + distances * (values - mean))
        return BlockBets(gain, loss, mean, squares, n)

    def _bets_on(self, values: FloatArray, n_traces: float) -> FloatArray:
        """The values in units of the spread, at least of a trace that differs by 1."""
        most = np.maximum(_DEVIATIONS * np.sqrt(self.squares / (self.n - 1)), 1 / n_traces)
        return np.asarray(np.clip(values / most, -1.0, 1.0))

    def state(self) -> dict[str, Any]:
        """Everything of one run, as JSON stores it exactly."""
        spread = [self.n, float(self.mean), float(self.squares)]
        return {"gain": self.gain.state(), "loss": self.loss.state(), "spread": spread}

    @classmethod
    def load(cls, gain: Any, loss: Any, spread: Any) -> "BlockBets":
        """The same bets. Raises ValueError if `state` has not written this."""
        n, mean, squares = spread
        if n < 0 or squares < 0:
            raise ValueError(f"not a spread of blocks: {spread}")
        return cls(Wealth.load(gain), Wealth.load(loss), np.array(mean), np.array(squares), n)

    def __eq__(self, other: object) -> bool:
        """Whether all bits are equal."""
        return isinstance(other, BlockBets) and self.state() == other.state()

    __hash__ = None  # type: ignore[assignment]  # arrays can change, so there is no hash


class Sample(Struct):
    """Hashes that have counted, each once, of the share 2^-*halvings* with the smallest hashes.

    Whether a hash is taken depends on no outcome, so a smaller share is a fair sample.
    """

    halvings: int = 0
    hashes: set[int] = field(default_factory=set)

    def admits(self, of: int) -> bool:
        """Whether a hash is in the sample and has not counted."""
        return self._is_small(of) and of not in self.hashes

    def add(self, of: int) -> None:
        """Notes a hash that counts from now on."""
        self.hashes.add(of)
        while len(self.hashes) > MOST_HASHES:
            self.halvings += 1
            self.hashes = {each for each in self.hashes if self._is_small(each)}

    def _is_small(self, of: int) -> bool:
        return of >> (8 * _HASH_BYTES - self.halvings) == 0

    def copy(self) -> "Sample":
        return Sample(self.halvings, set(self.hashes))

    def state(self) -> list[Any]:
        """Everything, as JSON stores it exactly."""
        whole = b"".join(each.to_bytes(_HASH_BYTES, "big") for each in sorted(self.hashes))
        return [self.halvings, b64encode(whole).decode()]

    @classmethod
    def load(cls, state: Any) -> "Sample":
        """The same sample. Raises ValueError if `state` has not written this."""
        halvings, text = state
        whole = b64decode(text, validate=True)
        hashes = [
            int.from_bytes(whole[at : at + _HASH_BYTES], "big")
            for at in range(0, len(whole), _HASH_BYTES)
        ]
        sample = cls(halvings, set(hashes))
        if not 0 <= halvings <= 8 * _HASH_BYTES or len(hashes) > MOST_HASHES:
            raise ValueError("not a sample of hashes: it is too large")
        if sample.state() != [halvings, text] or not all(map(sample._is_small, hashes)):
            raise ValueError("not a sample of hashes: they are not its smallest ones, in order")
        return sample


def hash_of(*parts: bytes) -> int:
    """A hash of bytes that is the same on every machine, for a `Sample`."""
    whole = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
    return int.from_bytes(blake2b(whole, digest_size=_HASH_BYTES).digest(), "big")
