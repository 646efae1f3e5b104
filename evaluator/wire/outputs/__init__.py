"""Outputs: columns to bytes; records of `settled` back to queries."""
