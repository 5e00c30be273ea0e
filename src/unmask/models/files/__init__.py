"""Files and the hub -> weights of a model, and back."""
