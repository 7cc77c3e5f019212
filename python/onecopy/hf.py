# SPDX-License-Identifier: Apache-2.0
"""The short name of ``onecopy.integrations.huggingface``."""

from __future__ import annotations

from .integrations.huggingface import from_pretrained

__all__ = ["from_pretrained"]
