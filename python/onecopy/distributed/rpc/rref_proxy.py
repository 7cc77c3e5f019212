# SPDX-License-Identifier: Apache-2.0
"""The proxies of references."""

from ...rpc.rref import RRefProxy

__all__ = ["RRefProxy"]
