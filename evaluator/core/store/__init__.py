"""Memory tier and disk tier of open queries, and what a commit writes."""
