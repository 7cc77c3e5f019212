# SPDX-License-Identifier: Apache-2.0
"""What Python adds to the classes and functions of the extension module. Private: import the names from ``onecopy``."""
