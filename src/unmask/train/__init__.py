"""Training of the bundled models: data, the forward process and its loss, the loop."""
