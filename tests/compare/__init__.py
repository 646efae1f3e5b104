"""Comparison of the measures with other programs, on 4,000 random lists each."""
