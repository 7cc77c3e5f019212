# SPDX-License-Identifier: Apache-2.0
"""Plugs for other programs: one module for each program, which is imported by its name.

The modules are ``huggingface`` (also ``onecopy.hf``), ``ray``, ``vllm``, ``sglang``, ``lmcache``, ``verl``,
``nemo_rl`` and ``joblib``. A module imports the other program only when it is used, and raises ``MissingPackage`` if it
is not installed.
"""

from __future__ import annotations

__all__: list[str] = []
