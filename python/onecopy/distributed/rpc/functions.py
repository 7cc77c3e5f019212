# SPDX-License-Identifier: Apache-2.0
"""Decorators for functions that are called by RPC."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ...rpc.registry import ASYNC_MARK

F = TypeVar("F", bound=Callable[..., Any])


def async_execution(fn: F) -> F:
    """Marks a function that returns a torch.futures.Future: the caller gets the value of the Future, for which no
    thread waits. The decorator may stand above or below @staticmethod and @classmethod."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    setattr(wrapper, ASYNC_MARK, True)
    return wrapper  # type: ignore[return-value]
