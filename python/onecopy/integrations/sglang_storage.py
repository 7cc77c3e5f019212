# SPDX-License-Identifier: Apache-2.0
"""A storage backend for SGLang's HiCache, with which all engines of a host share one KV pool of the store::

--enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
  '{"backend_name": "onecopy", "module_path": "onecopy.integrations.sglang_storage", "class_name": "OnecopyHiCache",
    "interface_v1": 1, "onecopy.weights": "llama-3.1-8b@1", "onecopy.max_gib": 16}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._packages import Find, at_first_use

if TYPE_CHECKING:
    from ._sglang_storage import OnecopyHiCache

__all__ = ["OnecopyHiCache"]

__getattr__: Find = at_first_use(__name__, OnecopyHiCache="._sglang_storage")
