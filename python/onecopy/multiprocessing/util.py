# SPDX-License-Identifier: Apache-2.0
"""Functions that modules of multiprocessing share: the standard library's."""

import sys
from multiprocessing import util

sys.modules[__name__] = util
