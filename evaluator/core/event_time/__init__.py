"""Clocks, activity and event-time timers."""
