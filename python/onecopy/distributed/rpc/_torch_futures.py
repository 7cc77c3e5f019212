# SPDX-License-Identifier: Apache-2.0
"""Makes torch.futures.wait_all() and collect_all() fail as soon as the first call fails.

torch's functions do so only for errors that were set in C++, so lists that contain Futures of calls are handled here,
and all others by torch. Futures of calls that torch itself collects are marked with want(), since they complete by
themselves only then. uninstall() restores torch's functions."""

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
    """Replaces the functions. A second call has no effect."""
    torch.futures.wait_all, torch.futures.collect_all, torch._C._collect_all = wait_all, collect_all, _collect_all


def uninstall() -> None:
    """Restores torch's functions, except where another package has replaced ours."""
    ours = (torch.futures, wait_all), (torch.futures, collect_all), (torch._C, _collect_all)
    for module, function in ours:
        if getattr(module, function.__name__) is function:
            setattr(module, function.__name__, _TORCHS[function.__name__])


def wait_all(futures: Sequence[Future]) -> list[Any]:
    """Returns the values of all futures, in their order. Raises the error of the first future that fails, as soon as it
    fails."""
    return [future.wait() for future in collect_all(futures).wait()]


def collect_all(futures: Sequence[Future]) -> Future:
    """Returns a Future of the list of futures, which is done when all are done, or fails with the first that fails."""
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
