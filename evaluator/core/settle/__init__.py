"""Values of queries: running, and final at maturity."""
