# For type checkers: the standard library's classes, of which ours are subclasses.
from multiprocessing.queues import (
    JoinableQueue as JoinableQueue,
    Queue as Queue,
    SimpleQueue as SimpleQueue,
)
from queue import Empty as Empty, Full as Full

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "SimpleQueue"]
