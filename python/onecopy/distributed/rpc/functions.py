# SPDX-License-Identifier: Apache-2.0
"""Marks on functions that are called by RPC."""

import functools

from ...rpc.registry import ASYNC_MARK


def async_execution(fn):
    """Marks a function that returns a torch.futures.Future: the caller gets that Future's value, and no thread waits for
    it. Below @staticmethod and @classmethod, or above."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    setattr(wrapper, ASYNC_MARK, True)
    return wrapper
