"""Records of alarms: events, operator commands, and the state of the watch."""
