"""The join: keys, open queries, judgments, the early buffer."""
