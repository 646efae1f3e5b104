"""Promotions by the gate in worlds without a better challenger, and the time to find a better one.

`python -m benchmarks.gate`: seeded simulations of the blocks of whole runs. It fails if a preset
promotes more than `--max-aa-share` times its alpha in a world for which it has a guarantee.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.promotion.blocks import BlockBets, Sample, hash_of
from evaluator.core.promotion.e_process import Wealth
from evaluator.core.promotion.gate import (
    PRESETS,
    Experiment,
    GateRules,
    decided,
    trace_observation,
    verdict,
)
from evaluator.core.types.records import FloatArray
from evaluator.tables import format_table

DAY_S: Final = 86_400
DAYS: Final = {"quick": 0.25, "standard": 2.0, "cautious": 28.0}
"""The length of a run."""
HOUR_S: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The differences of traces, a trace every *every_s* seconds, with a deviation of their own.

    A *share* of their variance is a process with the correlation *rho* between consecutive traces.
    With *n_lasting*, only so many traces or queries exist, each with an effect of its own that has
    half of the variance; `all_count` counts every occurrence of them. With *skewed*, a
    share of the traces loses 0.9, and another share wins as much in all.
    """

    mean: float = 0.0
    deviation: float = 0.3
    every_s: int = 1
    rho: float = 0.0
    share: float = 0.0
    cycle: float = 0.0
    n_lasting: int | None = None
    all_count: bool = False
    skewed: tuple[float, float] | None = None


class Block(NamedTuple):
    """The traces of one block: whether each counts, and the occurrences of lasting ones."""

    start_s: int
    counts: FloatArray
    occurrences: FloatArray | None


def drift(correlation_s: float, share: float) -> World:
    """A slow drift with this correlation time."""
    return World(rho=float(np.exp(-1 / correlation_s)), share=share)


@lru_cache(maxsize=8)
def blocks_of(
    every_s: int, n_lasting: int | None, all_count: bool, block_s: int, n_blocks: int, seed: int
) -> list[Block]:
    """The blocks of all runs: which traces count depends on their hashes alone."""
    rng, sample, made = np.random.default_rng(seed), Sample(), []
    n = max(1, block_s // every_s)
    for number in range(n_blocks):
        counts, occurrences = np.zeros(n), None
        if n_lasting is None:
            names = list(range(number * n, number * n + n))
        else:
            names = rng.integers(0, n_lasting, n).tolist()
            if all_count:
                occurrences = np.bincount(names, minlength=n_lasting).astype(float)
        for place, name in enumerate(names):
            of = 0 if all_count else hash_of(name.to_bytes(8, "big"))
            if all_count or sample.admits(of):
                counts[place] = 1.0
                if not all_count:
                    sample.add(of)
        made.append(Block(number * block_s, counts, occurrences))
    return made


class Values:
    """The values of one block after the other, `[n_runs]`."""

    def __init__(self, world: World, n_runs: int, seed: int) -> None:
        self._world, self._n_runs = world, n_runs
        self._rng = np.random.default_rng(seed)
        self._slow = self._rng.normal(size=n_runs)
        self._phase = self._rng.random(n_runs)
        n = world.n_lasting if world.all_count and world.n_lasting else 1
        self._effects = self._rng.normal(size=(n_runs, n)) * world.deviation * np.sqrt(0.5)

    def of(self, block: Block) -> FloatArray:
        world, n = self._world, float(block.counts.sum())
        if not n:
            return np.zeros(self._n_runs)
        if world.skewed:
            losing, winning = world.skewed
            shares = losing, winning, 1 - losing - winning
            lost, won, _ = self._rng.multinomial(int(n), shares, self._n_runs).T
            return np.asarray(0.9 * (won * losing / winning - lost) / n)
        own = 1.0 - world.share - (0.5 if world.all_count else 0.0)
        total = n * world.mean + world.deviation * np.sqrt(own * n) * self._normal()
        if world.all_count:
            total += self._effects @ block.occurrences
        if world.share:
            total += world.deviation * np.sqrt(world.share) * self._slow_sum(block.counts)
        if world.cycle:
            middle = (block.start_s + 0.5 * len(block.counts) * world.every_s) / DAY_S
            total += n * world.cycle * np.sin(2 * np.pi * (middle + self._phase))
        return np.asarray(total / n)

    def _normal(self) -> FloatArray:
        return self._rng.normal(size=self._n_runs)

    def _slow_sum(self, counts: FloatArray) -> FloatArray:
        """The sum of the correlated process over the traces that count: exact, not trace by trace.

        From the last element before the block, the sum and the last element of the block are
        normal; *ahead* is the influence of each innovation on the sum.
        """
        rho = self._world.rho
        from_the_last = accumulate(counts[::-1].tolist(), lambda ahead, count: count + rho * ahead)
        ahead = np.array([*from_the_last][::-1])
        on_last = rho ** np.arange(len(counts) - 1, -1, -1.0)
        noise = 1 - rho**2
        of_sum, of_last = (float(noise * (each @ each)) for each in (ahead, on_last))
        both = float(noise * (ahead @ on_last))
        first, second = self._normal(), self._normal()
        last = np.sqrt(of_last) * first
        rest = np.sqrt(max(of_sum - both**2 / of_last, 0.0)) * second
        total = rho * ahead[0] * self._slow + both / of_last * last + rest
        self._slow = rho ** len(counts) * self._slow + last
        return np.asarray(total)


def promoted_after(
    world: World, rules: GateRules, n_runs: int, n_blocks: int, seed: int
) -> FloatArray:
    """Hours until each run is promoted; infinity: never, or ended before.

    The rules of `evaluator.core.promotion.gate.decided`, for all runs at once
    (tests/core/test_gate.py compares them).
    """
    values, block_s = Values(world, n_runs, seed), rules.block_ms // 1_000
    bets, days = BlockBets.of_one(n_runs), Wealth.of_one(n_runs)
    ended = np.full(n_runs, np.nan)
    of_day, n_traces = np.zeros(n_runs), 0.0
    kind = world.every_s, world.n_lasting, world.all_count
    for block in blocks_of(*kind, block_s, n_blocks, seed + 1):
        found, n = values.of(block), float(block.counts.sum())
        end_s = block.start_s + block_s
        if n:
            bets = bets.after(found, n)
            of_day += found * n
            n_traces += n
        if end_s % DAY_S == 0:
            days, of_day = days.after(np.sign(of_day)), np.zeros(n_runs)
        enough = 1 / rules.alpha
        wins = bets.gain.evidence() >= enough
        if rules.min_age_ms >= 1_000 * DAY_S:
            wins &= days.evidence() > 1
        if n_traces < rules.min_traces or 1_000 * end_s < rules.min_age_ms:
            wins[:] = False
        loses = bets.loss.evidence() >= enough
        ended[np.isnan(ended) & loses] = np.inf
        ended[np.isnan(ended) & wins] = end_s / HOUR_S
        if 1_000 * end_s >= rules.max_age_ms:
            break
    return np.where(np.isnan(ended), np.inf, ended)


AT_ONCE: Final = {
    "independent": World(),
    "independent, a trace every ten seconds": World(every_s=10),
    "one in 10 loses 0.9, a trace a minute": World(skewed=(0.1, 0.9), every_s=60),
    "one in 100 loses 0.9, a trace a minute": World(skewed=(0.01, 0.3), every_s=60),
    "one in 100 loses 0.9, a trace every ten seconds": World(skewed=(0.01, 0.3), every_s=10),
    "one in 1,000 loses 0.9, a trace every ten seconds": World(skewed=(0.001, 0.3), every_s=10),
    **{f"AR(1) {rho} between traces": World(rho=rho, share=1.0) for rho in (0.5, 0.9, 0.99)},
    **{
        f"{n:,} lasting traces, or queries that return": World(n_lasting=n)
        for n in (2_000, 500, 100)
    },
}
"""Worlds without drift."""
SLOW: Final = {
    **{
        f"drift, {share:.0%}, correlation of {words}": drift(seconds, share)
        for words, seconds in {
            "10 minutes": 600,
            "an hour": HOUR_S,
            "6 hours": 6 * HOUR_S,
            "a day": DAY_S,
        }.items()
        for share in (0.01, 0.05)
    },
    "daily cycle of 0.02": World(cycle=0.02),
    "daily cycle of 0.05": World(cycle=0.05),
}
COUNTED_OFTEN: Final = {
    f"{n:,} lasting traces, each occurrence counted": World(n_lasting=n, all_count=True)
    for n in (2_000, 500, 100)
}
"""Worlds whose errors are prevented because each trace counts once."""
KEPT: Final = {
    "quick": tuple(name for name in AT_ONCE if "0.99" not in name and "a minute" not in name),
    "standard": tuple(AT_ONCE),
    "cautious": (*AT_ONCE, *SLOW),
}
"""The worlds for which each preset has a guarantee."""


def rules_of(preset: str, **changes: int) -> GateRules:
    return GateRules("ndcg@10", **{**PRESETS[preset], **changes})


def n_blocks_of(preset: str, rules: GateRules) -> int:
    return int(DAYS[preset] * DAY_S * 1_000) // rules.block_ms


def no_better(n_runs: int, seed: int, limit: float) -> list[str]:
    """Prints the share of promoted runs by world and preset; returns violated guarantees."""
    rows, broken = [], []
    for name, world in {**AT_ONCE, **SLOW, **COUNTED_OFTEN}.items():
        row = [name]
        for preset in PRESETS:
            rules = rules_of(preset)
            hours = promoted_after(world, rules, n_runs, n_blocks_of(preset, rules), seed)
            share = float(np.isfinite(hours).mean())
            row.append(f"{share:.2%}" + ("" if name in KEPT[preset] else " *"))
            if name in KEPT[preset] and share > limit * rules.alpha:
                broken.append(f"{preset} promotes {share:.2%} in the world: {name}")
        rows.append(row)
    print(f"no better: {n_runs:,} runs each; * is outside of the promise of the preset")
    print(format_table(["world", *PRESETS], rows, numbers=(1, 2, 3)))
    return broken


def by_length_of_block(n_runs: int, seed: int) -> None:
    """Prints the effect of other block lengths on correlated traces, with the other standard
    rules."""
    rows = []
    for name in ("AR(1) 0.9 between traces", "AR(1) 0.99 between traces"):
        row = [name]
        for block_ms in (60_000, 600_000, 3_600_000):
            rules = rules_of("standard", block_ms=block_ms)
            n_blocks = n_blocks_of("standard", rules)
            hours = promoted_after(AT_ONCE[name], rules, n_runs, n_blocks, seed)
            row.append(f"{np.isfinite(hours).mean():.2%}")
        rows.append(row)
    print("\nno better, standard with blocks of another length")
    print(format_table(["world", "a minute", "ten minutes", "an hour"], rows, numbers=(1, 2, 3)))


def better(n_runs: int, seed: int) -> None:
    """Prints the time to find better challengers."""
    rows = []
    for every_s in (1, 10):
        for deviation in (0.12, 0.3):
            for mean in (0.01, 0.02, 0.05):
                world = World(mean=mean, deviation=deviation, every_s=every_s)
                row = [f"every {every_s} s", f"+{mean}", str(deviation)]
                for preset in PRESETS:
                    rules = rules_of(preset)
                    hours = promoted_after(world, rules, n_runs, n_blocks_of(preset, rules), seed)
                    shown = np.quantile(hours, [0.5, 0.9], method="higher")
                    row += [f"{each:.1f}" if np.isfinite(each) else "later" for each in shown]
                rows.append(row)
    heads = [f"{preset}: {part}" for preset in PRESETS for part in ("median", "90 %")]
    print(f"\nbetter: hours until a promotion, {n_runs:,} runs each")
    print(format_table(["a trace", "mean", "deviation", *heads], rows, numbers=range(1, 9)))


def differences_of(steepness: float, n: int, seed: int) -> dict[str, FloatArray]:
    """The differences of a better challenger, challenger minus served, by kind of judgments, `[n]`
    each.

    Three of ten candidates are relevant. Rank r is examined with probability r^-steepness; a
    relevant candidate is clicked if it is examined. A query without a click has the difference 0.
    """
    rng, served_ranks = np.random.default_rng(seed), np.arange(1, 11)
    relevant = rng.random((n, 10)).argsort(axis=1) < 3
    scores = rng.normal(size=(n, 10))
    served, challenger = (
        (-(strength * relevant + scores + 0.5 * rng.normal(size=(n, 10)))).argsort(axis=1)
        for strength in (1.0, 1.1)
    )
    discounts = 1 / np.log2(served_ranks + 1)

    def difference(gains: FloatArray) -> FloatArray:
        gained, lost = (np.take_along_axis(gains, each, 1) for each in (challenger, served))
        return np.asarray((gained - lost) @ discounts)

    propensities = (served.argsort(axis=1) + 1.0) ** -steepness
    clicked = relevant & (rng.random((n, 10)) < propensities)
    ideals = np.maximum(np.append(0, discounts.cumsum())[clicked.sum(axis=1)], discounts[-1])
    return {
        "people: ndcg@10": difference(relevant * 1.0) / discounts[:3].sum(),
        "clicks: ndcg@10": difference(clicked * 1.0) / ideals,
        "clicks: ips_dcg@10": difference(clicked * np.minimum(1 / propensities, 20)),
    }


def by_clicks(n_runs: int, seed: int) -> None:
    """Prints the cost of weighted clicks: the evidence for one challenger, judged in three ways."""
    rows, rules = [], rules_of("standard")
    n_blocks = n_blocks_of("standard", rules)
    for steepness in (0.5, 1.0, 1.5):
        found = differences_of(steepness, 400_000, seed)
        effects = {by: float(each.mean() / each.std()) for by, each in found.items()}
        for by, effect in effects.items():
            world = World(mean=effect, deviation=1.0)
            hours = promoted_after(world, rules, n_runs, n_blocks, seed)
            shown = np.quantile(hours, [0.5, 0.9], method="higher")
            times = (effects["people: ndcg@10"] / effect) ** 2
            rows.append([
                f"r^-{steepness}", by, f"{found[by].mean():+.3f}", f"{found[by].std():.3f}",
                f"{times:.1f}" if effect > 0 else "none is enough",
                *(f"{each:.1f}" if np.isfinite(each) else "later" for each in shown),
            ])  # fmt: skip
    print(f"\nthe same challenger, standard, a trace a second, {n_runs:,} runs each")
    heads = ["examined", "judged by", "mean", "deviation", "times the traces", "median", "90 %"]
    print(format_table(heads, rows, numbers=range(2, 7)))


def cost() -> None:
    """Prints the cost of a trace for a leader."""
    rules, n = GateRules("ndcg@10", {"mrr": 0.01}), 20_000
    began = time.process_time()
    observations = []
    for number in range(n):
        units = [(number * 7919) % (1 << 30), -((number * 104729) % (1 << 30))]
        observations.append(trace_observation(1_000 * number, {"ndcg@10": units, "mrr": units}))
    experiment, _ = decided(Experiment(0, 0), observations, rules)
    verdict(experiment, rules)
    cost_us = (time.process_time() - began) / n * 1e6
    print(f"\na trace of two queries and two measures: {cost_us:.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--max-aa-share", type=float, default=1.7, help="in units of alpha")
    args = parser.parse_args()
    broken = no_better(args.runs, args.seed, args.max_aa_share)
    by_length_of_block(args.runs, args.seed)
    better(min(args.runs, 500), args.seed)
    by_clicks(min(args.runs, 500), args.seed)
    cost()
    if broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
