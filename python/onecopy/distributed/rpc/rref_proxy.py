# SPDX-License-Identifier: Apache-2.0
from ...rpc._references import RRefProxy

__all__ = ["RRefProxy"]
