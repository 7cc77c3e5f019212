# SPDX-License-Identifier: Apache-2.0
from ...rpc.references import RRefProxy

__all__ = ["RRefProxy"]
