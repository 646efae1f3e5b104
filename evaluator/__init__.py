"""Joins rankings with judgments and keeps exact running measures of ranking quality."""

__version__ = "0.1.0"
