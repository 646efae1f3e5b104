"""Compares rankers on the same queries, from the files of `replay`."""
