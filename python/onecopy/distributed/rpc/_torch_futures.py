# SPDX-License-Identifier: Apache-2.0
"""torch.futures.wait_all() and collect_all() end with the first call that fails.

torch's own ones do so for errors that were set in C++ only, so a list with Futures of calls goes here, and all others
to torch. Futures that torch itself collects are told: a Future of a call completes by itself only for a thread that
asks.
uninstall() undoes it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ...rpc.futures import CallFuture, Future, error_of

_TORCHS = {
    "wait_all": torch.futures.wait_all,
    "collect_all": torch.futures.collect_all,
    "_collect_all": torch._C._collect_all,
}


def install() -> None:
    """Replaces the functions. Nothing happens the second time."""
    torch.futures.wait_all, torch.futures.collect_all, torch._C._collect_all = wait_all, collect_all, _collect_all


def uninstall() -> None:
    """Restores torch's functions, except where another package has replaced ours."""
    ours = (torch.futures, wait_all), (torch.futures, collect_all), (torch._C, _collect_all)
    for module, function in ours:
        if getattr(module, function.__name__) is function:
            setattr(module, function.__name__, _TORCHS[function.__name__])


def wait_all(futures: Sequence[Future]) -> list[Any]:
    """Returns the values of all futures, in their order. Throws the error of the first that fails, as soon as it
    has."""
    return [future.wait() for future in collect_all(futures).wait()]


def collect_all(futures: Sequence[Future]) -> Future:
    """Returns a Future of the list of futures: done when all are, or failed with the first that fails."""
    if not any(isinstance(future, CallFuture) for future in futures):
        return _TORCHS["collect_all"](futures)
    out: Future = torch.futures.Future()
    lock, left, is_done = threading.Lock(), len(futures), False

    def one_is_done(future: Future) -> None:
        nonlocal left, is_done
        error = error_of(future)
        with lock:
            left -= 1
            if is_done or (error is None and left):
                return
            is_done = True
        out.set_result(list(futures)) if error is None else out.set_exception(error)

    for future in futures:
        future.add_done_callback(one_is_done)
    return out


def _collect_all(futures: Sequence[Future]) -> Future:
    """Replaces torch's private function, so that functions which a program imported from torch by name also complete
    our futures."""
    for future in futures:
        if isinstance(future, CallFuture):
            future.want()
    return _TORCHS["_collect_all"](futures)
