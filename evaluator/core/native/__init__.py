"""What is written in C, for speed: scores, ranks and grades brought together, judgments merged.

`native.c` says how it keeps to its memory. Where it was not built (no C compiler when the package
was installed), numpy does the same, to the last bit, more slowly.
"""
