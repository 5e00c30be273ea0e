"""Training of the embedded models: data, the forward process and its loss, the loop."""
