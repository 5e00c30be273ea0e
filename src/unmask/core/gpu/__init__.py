"""What runs on a GPU: fused sweeps over the vocabulary, a layer's small operations, random numbers, recorded steps."""
