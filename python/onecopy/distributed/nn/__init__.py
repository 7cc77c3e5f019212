# SPDX-License-Identifier: Apache-2.0
"""Modules in other processes: the names of ``torch.distributed.nn`` that rpc needs."""

from .api.remote_module import RemoteModule

__all__ = ["RemoteModule"]
