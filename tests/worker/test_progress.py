"""The rate at which a task restores, and its remaining time."""

from structlog.testing import capture_logs

from evaluator.worker.monitoring import RESTORE_LOG_SECONDS as SECONDS
from evaluator.worker.monitoring import RestoreRate


def test_the_rate_and_an_estimate_are_logged_once_per_interval():
    rate = RestoreRate()
    with capture_logs() as logged:
        rate.update(3, 10_000, now=100.0)
        rate.update(3, 9_000, now=100.0 + SECONDS / 2)
        assert not logged
        rate.update(3, 8_000, now=100.0 + SECONDS)
        (line,) = logged
    assert (line["event"], line["task"], line["left"]) == ("task_restoring", 3, 8_000)
    assert line["per_second"] == 2_000 / SECONDS
    assert line["seconds_left"] == rate.seconds_left == 4 * SECONDS
    rate.update(3, 0, now=200.0)
    assert rate.seconds_left is None


def test_a_task_that_makes_no_progress_has_no_estimate():
    rate = RestoreRate()
    rate.update(0, 5, now=0.0)
    rate.update(0, 5, now=SECONDS)
    assert rate.seconds_left is None
