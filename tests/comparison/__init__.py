"""The measures beside programs that define the same ones, on 20,000 random lists each."""
