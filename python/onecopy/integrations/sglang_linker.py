# SPDX-License-Identifier: Apache-2.0
"""An external linker for SGLang, with which a KV pool of the store has the only copy of pages on the host::

--enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
  --unified-cache-external-linker-config '{"linker": "OnecopyLinker",
    "linker_module_path": "onecopy.integrations.sglang_linker",
    "linker_extra_config": {"onecopy.weights": "llama-3.1-8b@1", "onecopy.max_gib": 16}}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._packages import Find, at_first_use

if TYPE_CHECKING:
    from ._sglang_linker import OnecopyLinker

__all__ = ["OnecopyLinker"]

__getattr__: Find = at_first_use(__name__, OnecopyLinker="._sglang_linker")
