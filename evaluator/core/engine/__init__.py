"""One task: receive, timers, checkpoints."""
