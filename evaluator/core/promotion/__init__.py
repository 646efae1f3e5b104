"""The promotion gate: e-process, guardrails, source weights."""
