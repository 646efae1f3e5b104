"""Linear learning to rank: groups, losses, optimisers, the learner."""
