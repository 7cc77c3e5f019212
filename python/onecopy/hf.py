# SPDX-License-Identifier: Apache-2.0
"""``onecopy.integrations.huggingface`` under a short name."""

from __future__ import annotations

from .integrations.huggingface import from_pretrained

__all__ = ["from_pretrained"]
