"""Choices in a queue -> batches of equal recipes, decoded in a thread -> messages of each choice.

choice: what waits, and what it gets;  batch: what is decoded together, and what may join it;  thread: the queue and
the thread that decodes.
"""

from unmask.server.batcher.choice import Decoded, Message, QueuedChoice
from unmask.server.batcher.thread import Batcher

__all__ = ["Batcher", "Decoded", "Message", "QueuedChoice"]
