"""Models without a trained checkpoint: exact tables, random weights."""
