"""State of a task: rows of its store, and checkpoint records."""
