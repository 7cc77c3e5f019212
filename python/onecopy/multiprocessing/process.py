# SPDX-License-Identifier: Apache-2.0
"""The standard library's Process, with its functions about parent and children."""

import sys
from multiprocessing import process

sys.modules[__name__] = process
