"""Texts in rows of words are read unchanged, also after selections and joins."""

import json
import random

import numpy as np
import pytest

from evaluator.core.columns.texts import SEPARATOR, WORD, TextRows

CHARACTERS = ["", "a", "ü", "日本", "🙂", " ", "\x7f", "~"]
ODD = ['"', "\\", "\n", "\x00", "\x1f"]


def some_rows(rng, n, characters):
    def text():
        return "".join(rng.choices(characters, k=rng.randrange(12)))

    return [[text() for _ in range(3)] for _ in range(n)]


def is_plain(row):
    return all(json.dumps(text, ensure_ascii=False) == f'"{text}"' for text in row)


@pytest.mark.parametrize("characters", [CHARACTERS, CHARACTERS + ODD])
def test_rows_are_read_back_as_the_texts_of_which_they_were_made(characters):
    rng = random.Random(1)
    for n in [0, 1, 2, 50]:
        given = some_rows(rng, n, characters)
        rows = TextRows.of(given)
        assert list(rows) == given
        assert [rows.column(at) for at in range(3)] == [
            [row[at] for row in given] for at in range(3)
        ]
        assert rows.plain.tolist() == list(map(is_plain, given))
        assert len(rows.words) == rows.n_words.sum()
        chosen = rng.choices(range(n), k=n)
        picked = rows.picked(np.array(chosen, np.int64))
        assert list(picked) == [given[at] for at in chosen]
        assert picked.flat().tobytes() == TextRows.of(list(picked)).words.tobytes()
        for parts in ([rows], [rows, picked], []):
            joined = TextRows.joined(parts)
            assert list(joined) == [row for part in parts for row in part]
            assert joined.plain.tolist() == list(map(is_plain, joined))
        stored = TextRows.stored(rows.flat().tobytes(), rows.sizes)
        assert (list(stored), stored.plain.tolist()) == (given, rows.plain.tolist())


def test_rows_of_the_decoder_are_found_by_their_separators():
    given = some_rows(random.Random(2), 40, CHARACTERS + ODD[:2])
    rows = TextRows.of(given)
    found = TextRows.separated(rows.words.tobytes())
    assert list(found) == given
    assert found.plain.tolist() == list(map(is_plain, given))
    assert list(TextRows.separated(b"")) == []


def test_stored_rows_with_other_sizes_are_refused():
    rows = TextRows.of([("trace", "n", "ü?"), ("u", "n", "")])
    text = rows.words.tobytes()
    assert list(TextRows.stored(text, rows.sizes)) == list(rows)
    for changed in ([[5, 3, 4], [2, 2, 1]], [[6, 2, 4], [2, 0, 3]], [[0, 0, 12], [2, 2, 1]]):
        with pytest.raises(ValueError, match="size"):
            TextRows.stored(text, np.array(changed))
    with pytest.raises(ValueError, match="utf-8"):
        TextRows.stored(text.replace("ü".encode(), b"\xc3\x1f"), rows.sizes)
    assert text[rows.sizes[0, 0] - 1] == SEPARATOR
    assert len(text) % WORD == 0
