# SPDX-License-Identifier: Apache-2.0
"""Calls between the processes of one host, with tensors as arguments and results, and without pickle.

So far this package carries ``onecopy.distributed.rpc``, which has the names of ``torch.distributed.rpc``.
"""
from ._values import allow_pickle

__all__ = ["allow_pickle"]
