"""The cost of the evaluator: `python -m benchmarks` (broker), `python -m benchmarks.pipeline`."""
