"""Requests in OpenAI's format -> decoding in batches -> responses with their path entropy. Needs `unmask[serve]`."""
