"""The published layouts, each mapped to the one network."""
