# For type checkers: the standard library's classes, of which ours are subclasses.
from multiprocessing.pool import (
    ApplyResult as ApplyResult,
    AsyncResult as AsyncResult,
    IMapIterator as IMapIterator,
    IMapUnorderedIterator as IMapUnorderedIterator,
    MapResult as MapResult,
    Pool as Pool,
    ThreadPool as ThreadPool,
)

__all__ = ["Pool", "ThreadPool"]
