# SPDX-License-Identifier: Apache-2.0
"""ctypes in shared memory: the standard library's."""

import sys
from multiprocessing import sharedctypes

sys.modules[__name__] = sharedctypes
