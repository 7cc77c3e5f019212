# SPDX-License-Identifier: Apache-2.0
"""Arenas of anonymous shared memory for ctypes: the standard library's."""

import sys
from multiprocessing import heap

sys.modules[__name__] = heap
