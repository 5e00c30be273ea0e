"""What runs on a GPU: fused sweeps over the vocabulary, random numbers, recorded steps."""
