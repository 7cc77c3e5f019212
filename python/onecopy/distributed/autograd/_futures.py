# SPDX-License-Identifier: Apache-2.0
"""Futures of several."""

import threading

import torch

from ...rpc.futures import done


def gather(futures, combine):
    """A Future of combine(results). It is done when all are, and fails with the first of `futures` that did."""
    if not futures:
        return done(combine([]))
    out, lock, left = torch.futures.Future(), threading.Lock(), len(futures)

    def one_is_done(_):
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        try:
            out.set_result(combine([f.value() for f in futures]))
        except Exception as error:
            out.set_exception(error)

    for future in futures:
        future.add_done_callback(one_is_done)
    return out
