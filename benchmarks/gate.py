"""Promotions by the gate: challengers that are no better, slightly better, or supported by bots.

`python -m benchmarks.gate`: seeded simulations of rankings whose NDCG@10 the kernel measures. It
fails if more challengers that are no better are promoted than `--max-aa-share`.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

import evaluator
from evaluator.core.promotion.e_process import Wealth
from evaluator.core.promotion.gate import (
    Experiment,
    GateRules,
    decided,
    trace_observation,
    verdict,
)
from evaluator.core.promotion.source_weights import (
    OTHERS,
    SourceRule,
    SourceWeights,
    window_weights,
)
from evaluator.core.types.records import FloatArray
from evaluator.tables import format_table

ALPHA = 0.01
N_CANDIDATES, N_QUERIES = 20, 3  # of a query; of a trace, at most
POOL = 40_000  # traces
NOISE, SHARED = 1.0, 0.7  # of a ranker's scores; the part of it that the queries of a trace share
GRADES = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0])
BOTS = 0.05


class Traces:
    """Differences of NDCG@10 between two rankers that see the same grades through noise.

    `differences` is `[n_traces, N_QUERIES]`, candidate minus champion, NaN past the queries of a
    trace; `means` are those of the traces. Where a noise is that of the champion, both rankers come
    from one law, so the differences are symmetric and their expectation is 0.
    """

    def __init__(self, noise: float, *, seed: int) -> None:
        rng = np.random.default_rng(seed)
        grades = rng.choice(GRADES, (POOL, N_CANDIDATES))
        values = [_ndcg(grades, each, rng) for each in (noise, NOISE)]
        self.differences = values[0] - values[1]
        counts = rng.integers(1, N_QUERIES + 1, POOL)
        self.differences[np.arange(N_QUERIES) >= counts[:, None]] = np.nan
        self.means: FloatArray = np.nanmean(self.differences, axis=1)
        self.queries_per_trace = float(counts.mean())


def _ndcg(grades: FloatArray, noise: float, rng: np.random.Generator) -> FloatArray:
    """NDCG@10 of each query, `[n_traces, N_QUERIES]`; 0 where nothing is relevant."""
    shared = rng.normal(size=grades.shape)
    columns = []
    for _ in range(N_QUERIES):
        own = rng.normal(size=grades.shape)
        scores = grades + noise * (SHARED * shared + np.sqrt(1 - SHARED**2) * own)
        columns.append(evaluator.evaluate(grades, scores, "ndcg@10").values("ndcg@10"))
    return np.stack(columns, axis=1)


def traces_better_by(difference: float, *, seed: int) -> Traces:
    """A candidate whose noise makes it better by this much, on the mean over traces."""
    low, high = 0.0, NOISE
    for _ in range(12):
        noise = (low + high) / 2
        traces = Traces(noise, seed=seed)
        low, high = (noise, high) if traces.means.mean() > difference else (low, noise)
    return traces


def scattered(mean: float, deviation: float, *, seed: int) -> FloatArray:
    """Differences that scatter more than those of the rankings: normal, cut at -1 and 1."""
    draws = np.random.default_rng(seed).normal(size=POOL) * deviation
    return np.clip(draws - draws.mean() + mean, -1.0, 1.0)


Draw = Callable[[np.random.Generator], FloatArray]


def first_crossings(draw: Draw, n_runs: int, n_traces: int, seed: int) -> FloatArray:
    """After how many traces each run has 1/alpha, looked at after every trace; infinity: never."""
    rng = np.random.default_rng(seed)
    wealth, crossed = Wealth.of_one(n_runs), np.full(n_runs, np.inf)
    for number in range(1, n_traces + 1):
        wealth = wealth.after(draw(rng))
        has_enough = wealth.evidence() >= 1 / ALPHA
        crossed[has_enough & np.isinf(crossed)] = number
    return crossed


def drawn(pool: FloatArray, n_runs: int) -> Draw:
    return lambda rng: pool[rng.integers(0, len(pool), n_runs)]


def exchanged(pool: FloatArray, n_runs: int) -> Draw:
    """Champion and candidate change places by a coin: the mean is 0, whatever the pool's is."""
    return lambda rng: pool[rng.integers(0, len(pool), n_runs)] * rng.choice([-1.0, 1.0], n_runs)


def peeking_share(draw: Draw, n_runs: int, n_traces: int, seed: int) -> float:
    """Runs that a one-sided z-test at alpha would promote at some look, from 100 traces on."""
    rng = np.random.default_rng(seed)
    total, squares, found = np.zeros(n_runs), np.zeros(n_runs), np.zeros(n_runs, bool)
    for number in range(1, n_traces + 1):
        differences = draw(rng)
        total += differences
        squares += differences**2
        if number >= 100:
            deviation = np.sqrt(squares / number - (total / number) ** 2)
            found |= total / np.sqrt(number) >= 2.326 * deviation
    return float(found.mean())


def one_by_one(traces: Traces, n_runs: int, n_traces: int, seed: int) -> float:
    """Promoted runs if every query were a bet of its own, looked at after every trace."""
    rng = np.random.default_rng(seed)
    wealth, promoted = Wealth.of_one(n_runs), np.zeros(n_runs, bool)
    pool = np.nan_to_num(traces.differences)  # a difference of 0 is no bet
    for _ in range(n_traces):
        rows = pool[rng.integers(0, len(pool), n_runs)]
        rows = rows * rng.choice([-1.0, 1.0], (n_runs, 1))
        for query in range(N_QUERIES):
            wealth = wealth.after(rows[:, query])
        promoted |= wealth.evidence() >= 1 / ALPHA
    return float(promoted.mean())


def same(n_runs: int, n_traces: int, seed: int) -> float:
    """Prints what becomes of candidates that are no better; gives the share promoted."""
    traces = Traces(NOISE, seed=seed)
    share = float(
        np.isfinite(first_crossings(exchanged(traces.means, n_runs), n_runs, n_traces, 1)).mean()
    )
    rows = [
        ["the gate", percent(share)],
        ["the gate, every query a bet", percent(one_by_one(traces, n_runs, n_traces, 2))],
        [
            "a z-test at 0.01, looked at as often",
            percent(peeking_share(exchanged(traces.means, n_runs), n_runs, n_traces, 3)),
        ],
    ]
    print(
        f"\nno better (A/A): {n_runs:,} runs of {n_traces:,} traces, a look after every trace; "
        f"deviation of a trace's difference {traces.means.std():.3f}"
    )
    print(format_table(["decided by", "promoted"], rows, numbers=[1]))
    return share


def better(n_runs: int, n_traces: int, seed: int) -> None:
    """Prints how long it takes to find candidates that are better."""
    rows = []
    for difference in (0.01, 0.02, 0.05):
        traces = traces_better_by(difference, seed=seed)
        crossed = first_crossings(drawn(traces.means, n_runs), n_runs, n_traces, 4)
        rows.append(["rankings", *figures(traces.means, crossed, traces.queries_per_trace)])
    for deviation in (0.2, 0.3):
        pool = scattered(0.02, deviation, seed=seed)
        crossed = first_crossings(drawn(pool, n_runs), n_runs, n_traces, 4)
        rows.append(["normal", *figures(pool, crossed, queries_per_trace=1)])
    heads = ["differences", "mean", "deviation", "found", "traces: median", "90 %"]
    print(f"\nbetter: {n_runs:,} runs of at most {n_traces:,} traces")
    print(format_table([*heads, "queries: median", "90 %"], rows, numbers=range(1, 8)))


def figures(pool: FloatArray, crossed: FloatArray, queries_per_trace: float) -> list[str]:
    """Of the differences of traces, and of the numbers of traces after which they were found."""
    quantiles = np.quantile(crossed, [0.5, 0.9], method="higher")
    return [
        f"{pool.mean():+.4f}",
        f"{pool.std():.3f}",
        percent(float(np.isfinite(crossed).mean())),
        *map(whole, quantiles),
        *map(whole, quantiles * queries_per_trace),
    ]


def pushed(n_runs: int, n_traces: int, seed: int) -> None:
    """Prints what becomes of a worse candidate for which one judgment in twenty is a bot's."""
    pool = -traces_better_by(0.02, seed=seed).means  # the champion in its place
    capped = SourceWeights({"human": SourceRule()}, others=SourceRule(max_share=0.01))
    weight = window_weights({"human": 95, OTHERS: 5}, capped)[OTHERS]
    rows = []
    for words, worth in (("all judgments alike", 1.0), ("bots have 1 % between them", weight)):

        def draw(rng: np.random.Generator, worth: float = worth) -> FloatArray:
            honest = pool[rng.integers(0, len(pool), n_runs)]
            return np.where(rng.random(n_runs) < BOTS, worth, honest)

        crossed = first_crossings(draw, n_runs, n_traces, 5)
        rows.append([words, f"{worth:.3f}", percent(float(np.isfinite(crossed).mean()))])
    print(f"\nworse by {-pool.mean():.3f}, {BOTS:.0%} of judgments by bots that say +1")
    print(format_table(["caps", "weight of a bot", "promoted"], rows, numbers=[1, 2]))


def cost() -> None:
    """Prints what a trace costs a leader."""
    rules, trial, n = GateRules("ndcg@10", {"mrr": 0.01}), Experiment(0, 0), 20_000
    began = time.process_time()
    for number in range(n):
        units = [(number * 7919) % (1 << 30), -((number * 104729) % (1 << 30))]
        observation = trace_observation(number, {"ndcg@10": units, "mrr": units})
        trial, _ = decided(trial, [observation], rules)
        verdict(trial, rules)
    each_us = (time.process_time() - began) / n * 1e6
    print(f"\na trace of two queries and two measures: {each_us:.0f} us")


def percent(share: float) -> str:
    return f"{share:.2%}"


def whole(number: float) -> str:
    return f"{number:,.0f}" if np.isfinite(number) else "never"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--max-aa-share", type=float, default=0.017)
    args = parser.parse_args()
    share = same(args.runs, args.traces, args.seed)
    better(args.runs, args.traces, args.seed)
    pushed(args.runs, min(args.traces, 2_000), args.seed)
    cost()
    if share > args.max_aa_share:
        sys.exit(f"{percent(share)} of candidates that are no better were promoted")


if __name__ == "__main__":
    main()
