"""The progress bar of a replay: only on terminals, unless it is requested."""

import sys

import pytest

from evaluator.adapters.files import FileRange
from evaluator.replay.feeding import ProgressBar


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("shown", [None, True, False])
def test_the_bar_is_shown_on_terminals_or_as_requested(
    monkeypatch, capsys, tmp_path, terminal, shown
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with ProgressBar(0, FileRange(tmp_path), shown=shown):
        pass
    assert ("replay" in capsys.readouterr().err) == (terminal if shown is None else shown)
