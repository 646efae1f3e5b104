"""How long a rebuild will take, as it is told while it lasts."""

from types import SimpleNamespace

from structlog.testing import capture_logs

from evaluator.worker.progress import SECONDS, Progress


def test_what_is_left_is_told_now_and_then_with_an_estimate():
    progress = Progress()
    task = SimpleNamespace(number=3, restoring=True, restore_left=10_000, restore_seconds=None)
    with capture_logs() as logged:
        progress.look([task], now=100.0)
        progress.look([task], now=100.0 + SECONDS / 2)
        assert not logged
        task.restore_left = 8_000
        progress.look([task], now=100.0 + SECONDS)
        (line,) = logged
    assert (line["event"], line["task"], line["left"]) == ("task_restoring", 3, 8_000)
    assert line["per_second"] == 2_000 / SECONDS
    assert line["seconds_left"] == task.restore_seconds == 4 * SECONDS
    task.restoring = False
    progress.look([task], now=200.0)
    assert task.restore_seconds is None


def test_one_that_stands_still_has_no_estimate():
    progress = Progress()
    task = SimpleNamespace(number=0, restoring=True, restore_left=5, restore_seconds=None)
    progress.look([task], now=0.0)
    progress.look([task], now=SECONDS)
    assert task.restore_seconds is None
