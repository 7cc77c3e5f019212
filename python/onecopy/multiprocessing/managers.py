# SPDX-License-Identifier: Apache-2.0
"""Managers of the standard library: their queues, lists and dicts carry tensors by handle too."""

import sys
from multiprocessing import managers

sys.modules[__name__] = managers
