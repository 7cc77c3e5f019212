# SPDX-License-Identifier: Apache-2.0
"""The standard library's process that removes named semaphores."""

import sys
from multiprocessing import resource_tracker

sys.modules[__name__] = resource_tracker
