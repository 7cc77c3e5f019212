# SPDX-License-Identifier: Apache-2.0
"""Names of other packages on top of onecopy."""
