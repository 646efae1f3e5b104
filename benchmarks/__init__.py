"""What the evaluator costs: `python -m benchmarks` (broker), `python -m benchmarks.pipeline`."""
