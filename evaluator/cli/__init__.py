"""The command `evaluator`: the only place where settings, loops and adapters meet."""

from evaluator.cli.main import main as main
