# SPDX-License-Identifier: Apache-2.0
"""Locks, events and semaphores: the standard library's."""

import sys
from multiprocessing import synchronize

sys.modules[__name__] = synchronize
