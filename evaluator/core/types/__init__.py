"""Types that packages of the core exchange: records and outputs in columns, segments, tallies."""
