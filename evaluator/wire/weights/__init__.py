"""Weights records, and the state of the leader."""
