"""Models that are made instead of read: exact tables, random weights."""
