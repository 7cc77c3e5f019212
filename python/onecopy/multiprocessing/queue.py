# SPDX-License-Identifier: Apache-2.0
"""The queues under the module name that torch.multiprocessing uses."""

from .queues import Queue, SimpleQueue

__all__ = ["Queue", "SimpleQueue"]
