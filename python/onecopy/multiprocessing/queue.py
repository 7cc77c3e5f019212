# SPDX-License-Identifier: Apache-2.0
"""The name that torch.multiprocessing gives to its queues."""

from .queues import Queue, SimpleQueue

__all__ = ["Queue", "SimpleQueue"]
