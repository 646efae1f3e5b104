"""`evaluator run`: what it refuses before it looks for a broker."""

from evaluator.cli import main


def test_run_refuses_more_measures_than_there_are_series_for(capsys):
    measures = ",".join(f"hit@{k}" for k in range(1, 168))
    code = main(["run", "--source=kafka://localhost:1", f"--set=measures={measures}"])
    assert code == 2
    assert "at most 166" in capsys.readouterr().err
