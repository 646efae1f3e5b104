"""The loop of the leader: reads `settled`, runs the online learner, publishes weights."""

from evaluator.leader.loop import Leader as Leader
