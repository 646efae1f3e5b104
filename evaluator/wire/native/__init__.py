"""Decoding of ordinary messages in C, if it was built; the reference path gives the same rows."""
