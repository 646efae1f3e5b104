"""The error of all state machines."""


class IllegalTransition(RuntimeError):
    """An event or a next state that a state machine does not allow: an error in the program."""
