"""Clocks, durations and event-time timers."""
