"""Quality of the weights of `evaluator fit`, compared with tuned linear rankers on several splits.

`python -m benchmarks.fit [--splits N] [--only TEXT] [--set NAME=VALUE]... [--graded TRAIN TEST]...`
on the data of `tests/ranked_data.py`; `--graded` adds files of real graded queries, a candidate per
line as `grade index:value ...` and the sizes of the queries in FILE.query, as LightGBM reads them.
Rankers of other programs learn from four fifths and are chosen by the rest, as `fit` chooses its
epochs; `best` chooses by the measured queries themselves, which is a bound, not a method.
"""

import argparse
import contextlib
import io
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from evaluator.cli import main as evaluator_main
from evaluator.tables import format_table
from tests import ranked_data
from tests.linear_models import full_batch_softmax, ndcg, of_sklearn
from tests.ranked_data import Parts, Query

MOST = (24, 100)
"""The numbers of features of `--graded`, the most frequent ones: `fit` is for dense features."""


def fitted(learn: Sequence[Query], more: Sequence[str]) -> np.ndarray:
    """The weights of the command."""
    with tempfile.TemporaryDirectory() as directory:
        samples, out = Path(directory, "samples.ndjson"), Path(directory, "weights.json")
        rows = ranked_data.rows(learn)
        samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
        silent = io.StringIO()
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            code = evaluator_main(
                ["fit", f"--samples={samples}", f"--out={out}", "--epochs=10", *more]
            )
        assert code in (0, 5), silent.getvalue()  # 5: rows of tables may be in a good order
        return np.array(json.loads(out.read_bytes())["weights"])


def graded(
    path: Path, n_features: int, chosen: Sequence[int] = ()
) -> tuple[list[Query], list[int]]:
    """The queries of a file and its most frequent features; those *chosen*, if any."""
    lines = [line.split() for line in path.read_text().splitlines()]
    rows = [
        {int(index): float(value) for index, value in (one.split(":") for one in line[1:])}
        for line in lines
    ]
    if not chosen:
        counts = Counter(index for row in rows for index in row)
        chosen = [index for index, _ in counts.most_common(n_features)]
    table = np.array([[row.get(index, 0.0) for index in chosen] for row in rows])
    grades = np.array([float(line[0]) for line in lines])
    ends = np.cumsum([int(size) for size in Path(f"{path}.query").read_text().split()])[:-1]
    return list(zip(np.split(table, ends), np.split(grades, ends), strict=True)), list(chosen)


def of_files(train: Path, test: Path, n_features: int, split: int) -> Parts:
    """The two files as they are, and for other splits their queries in another order."""
    learn, chosen = graded(train, n_features)
    measure, _ = graded(test, n_features, chosen)
    if split:
        queries = [*learn, *measure]
        order = np.random.default_rng(split).permutation(len(queries))
        mixed = [queries[place] for place in order]
        learn, measure = mixed[: len(learn)], mixed[len(learn) :]
    return learn, measure


def values(parts: Parts, more: Sequence[str]) -> list[float]:
    """Values of `fit`, and of the chosen and the best ranker of both other kinds."""
    learn, measure = parts
    learn = [query for query in learn if query[1].any()]
    cut = len(learn) * 4 // 5

    def others(weights: Iterable[np.ndarray]) -> list[float]:
        some = list(weights)
        chosen = max(some, key=lambda each: ndcg(learn[cut:], each))
        return [ndcg(measure, chosen), max(ndcg(measure, each) for each in some)]

    return [
        ndcg(measure, fitted(learn, more)),
        *others(full_batch_softmax(learn[:cut])),
        *others(of_sklearn(learn[:cut])),
    ]


def main() -> None:
    """Prints a row per kind of data: means over the splits, and the differences of `fit`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", default="", help="data whose names contain this text")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--graded", action="append", nargs=2, type=Path, default=[], metavar=("TRAIN", "TEST")
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = {name: lambda split, of=of: of(seed=split) for name, of in ranked_data.ALL.items()}
    for train, test in options.graded:
        for most in MOST:
            kinds[f"{train.name}, {most}"] = lambda split, files=(train, test), most=most: of_files(
                *files, most, split
            )
    rows = []
    for name, of in kinds.items():
        if options.only not in name:
            continue
        more = [f"--set={each}" for each in options.set]
        found = np.array([values(of(split), more) for split in range(options.splits)])
        differences = found[:, :1] - found[:, 1:]
        spread = (
            differences.std(axis=0, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else [0] * 4
        )
        rows.append(
            [
                name,
                *(f"{value:.4f}" for value in found.mean(axis=0)),
                *(
                    f"{mean:+.4f} ± {error:.4f}"
                    for mean, error in zip(differences.mean(axis=0), spread, strict=True)
                ),
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    others = ["softmax", "softmax best", "sklearn", "sklearn best"]
    print(format_table(["data", "fit", *others, *(f"fit - {one}" for one in others)], rows))


if __name__ == "__main__":
    main()
