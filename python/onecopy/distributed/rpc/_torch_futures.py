# SPDX-License-Identifier: Apache-2.0
"""torch.futures.wait_all() and collect_all() end with the first call that fails.

torch's own ones do so for errors that were set in C++ only, so a list with Futures of calls goes here, and all others to
torch. uninstall() undoes it."""
import threading

import torch

from ...rpc._futures import CallFuture

_TORCHS = {"wait_all": torch.futures.wait_all, "collect_all": torch.futures.collect_all}


def install():
    """Replaces both functions. Nothing happens the second time."""
    torch.futures.wait_all, torch.futures.collect_all = wait_all, collect_all


def uninstall():
    """Gives torch its functions back, where no other has replaced them meanwhile."""
    for name, ours in (("wait_all", wait_all), ("collect_all", collect_all)):
        if getattr(torch.futures, name) is ours:
            setattr(torch.futures, name, _TORCHS[name])


def wait_all(futures):
    """The values of all futures, in their order. Throws the error of the first that fails, as soon as it has."""
    return [future.wait() for future in collect_all(futures).wait()]


def collect_all(futures):
    """A Future of the list of futures: done when all are, or failed with the first that fails."""
    if not any(isinstance(future, CallFuture) for future in futures):
        return _TORCHS["collect_all"](futures)
    out, lock, left = torch.futures.Future(), threading.Lock(), len(futures)
    is_done = False

    def one_is_done(future):
        nonlocal left, is_done
        error = _error_of(future)
        with lock:
            left -= 1
            if is_done or (error is None and left):
                return
            is_done = True
        out.set_result(list(futures)) if error is None else out.set_exception(error)

    for future in futures:
        future.add_done_callback(one_is_done)
    return out


def _error_of(future):
    try:
        future.value()
    except Exception as error:
        return error
    return None
