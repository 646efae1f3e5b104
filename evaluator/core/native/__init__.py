"""What is written in C, for speed: scores and grades brought together.

`native.c` says how it keeps to its memory. Where it was not built (no C compiler when the package
was installed), numpy does the same: the same lists to the last bit, more slowly.
"""
