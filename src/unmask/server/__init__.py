"""Requests in OpenAI's words -> decoding in batches -> answers that carry their path entropy. Needs `unmask[serve]`."""
