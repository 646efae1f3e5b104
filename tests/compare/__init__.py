"""The measures beside programs that define the same ones, on 4,000 random lists each."""
