"""Alarms on settled values: sums by hour, a reference of past weeks, windows and a latch."""
