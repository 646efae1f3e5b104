"""Random lists with awkward cases, and the values of the engine for them."""

from collections.abc import Iterable, Mapping
from random import Random

from evaluator.core.measures import MISSING, UNITS_PER_ONE
from tests.core.build import Task, judgment, ranking
from tests.repeats import in_shares

N_LISTS = 2_000
"""Lists for each comparison: a share of them in the quick set, the rest in the full one."""

SHARES = in_shares(N_LISTS, quick=500)
BATCH = 1_000
SIZES = (1, 1, 2, 3, 5, 8, 9, 20, 20, 33)
EXACTLY = 2**-40  # values are rounded to multiples of this

Scores = dict[str, dict[str, float]]
Grades = dict[str, dict[str, int]]


def random_lists(
    seed: int, n_lists: int, *, ties: bool = True, sizes: Iterable[int] = SIZES
) -> tuple[Scores, Grades]:
    """Scores and grades by query and candidate.

    Scores are eighths, which 32-bit floats hold exactly; a small number of levels makes ties.
    Grades are 0 to 4; some candidates are unjudged, some judged candidates are not ranked, and some
    queries have no relevant candidate. One list in 500 has a thousand candidates.
    """
    random = Random(f"{seed} {n_lists}")  # other lists in each share
    names = [f"doc{i:x}" for i in range(3_000)]
    sizes = tuple(sizes)
    runs: Scores = {}
    qrels: Grades = {}
    for i in range(n_lists):
        size = 1_000 if i % 500 == 499 else random.choice(sizes)
        chosen = random.sample(names[: 3 * size], size)
        levels = random.choice((1, 3, 10, 10_000)) if ties else 0
        scores = (
            [random.randrange(-levels, levels) / 8 for _ in chosen]
            if ties
            else [place / 8 for place in random.sample(range(4 * size), size)]
        )
        judged = random.sample(chosen, random.randint(0, min(size, random.choice((1, 5, 20)))))
        judged += [f"never{j}" for j in range(random.choice((0, 0, 1, 3)))]
        grades = random.choice(((0, 0, 1), (0, 1, 2, 3, 4), (1,), (0,) * 9 + (1,)))
        runs[f"q{i}"] = dict(zip(chosen, scores, strict=True))
        qrels[f"q{i}"] = {name: random.choice(grades) for name in judged or chosen[:1]}
    return runs, qrels


def engine_values(
    measures: Iterable[str],
    runs: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, float]],
    *,
    subtopics: Mapping[str, Mapping[str, list[str]]] | None = None,
    **settings: object,
) -> dict[str, dict[str, float | None]]:
    """Values by measure and query, computed by the whole engine; None for no value."""
    names = list(measures)
    task = Task(",".join(names), **settings)
    queries = list(runs)
    for first in range(0, len(queries), BATCH):
        chunk = queries[first : first + BATCH]
        task.read(
            [ranking(list(runs[q]), scores=list(runs[q].values()), trace=q) for q in chunk],
            [judgment(qrels[q], trace=q, at=1, subtopics=(subtopics or {}).get(q)) for q in chunk],
        )
    columns = [task.measures.columns[name] for name in names]
    found: dict[str, dict[str, float | None]] = {name: {} for name in names}
    for evaluation in task.evaluations:
        for name, column in zip(names, columns, strict=True):
            units = MISSING if evaluation.units is None else evaluation.units[column]
            found[name][evaluation.trace_id] = None if units == MISSING else units / UNITS_PER_ONE
    return found


def differences(
    one: Mapping[str, float | None], other: Mapping[str, float], tolerance: float = EXACTLY
) -> list[tuple[str, float | None, float]]:
    """The first few queries whose values differ."""
    assert one.keys() == other.keys()
    apart = [
        (query, one[query], value)
        for query, value in other.items()
        if one[query] is None or abs(one[query] - value) > tolerance
    ]
    return apart[:5]
