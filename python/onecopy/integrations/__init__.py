# SPDX-License-Identifier: Apache-2.0
"""Plugs into other programs, each a module that is imported by its name alone.

``huggingface`` (also ``onecopy.hf``), ``ray``, ``vllm``, ``sglang``, ``lmcache`` and ``joblib``. None
imports its package before it is called; one that is missing is a ``MissingPackage`` that names it.
"""

from __future__ import annotations

__all__: list[str] = []
