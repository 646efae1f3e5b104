"""`python -m evaluator` is the command `evaluator`."""

from evaluator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
