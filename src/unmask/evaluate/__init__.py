"""Many questions -> rows, figures and tables."""
