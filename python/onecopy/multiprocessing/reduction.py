# SPDX-License-Identifier: Apache-2.0
"""The standard library's ForkingPickler, to which our reducers are added."""

import sys
from multiprocessing import reduction

sys.modules[__name__] = reduction
