"""One step of decoding and the loop: knows no model, no file, no terminal."""
