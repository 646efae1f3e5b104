"""Rankers against each other on the same queries, from what `replay` wrote."""
