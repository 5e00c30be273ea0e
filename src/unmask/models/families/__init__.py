"""The published layouts, each put into the one network."""
