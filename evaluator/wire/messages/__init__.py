"""Rankings and judgments: bytes to columns."""
