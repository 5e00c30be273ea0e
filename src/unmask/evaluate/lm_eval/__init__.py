"""The model `unmask` of lm-evaluation-harness."""
