"""Memory tier and disk tier of open queries, and the changes of a commit."""
