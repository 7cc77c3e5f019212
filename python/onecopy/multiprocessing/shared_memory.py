# SPDX-License-Identifier: Apache-2.0
"""Named shared memory: the standard library's."""

import sys
from multiprocessing import shared_memory

sys.modules[__name__] = shared_memory
