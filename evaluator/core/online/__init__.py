"""The online learner: settled queries in one order, experiments, releases."""
