"""What is written in C, for speed: reading ordinary messages, and writing rows.

`native.c` says how it keeps to its memory. Where it was not built (no C compiler when the package
was installed), every message is read by the book and every row put together in Python: the same
rows and bytes, more slowly.
"""
