# SPDX-License-Identifier: Apache-2.0
"""An offloading spec for vLLM, with which all engines of a host share one KV pool of the store::

--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
  {"spec_name": "OnecopySpec", "spec_module_path": "onecopy.integrations.vllm_offloading",
   "onecopy.weights": "llama-3.1-8b@1", "onecopy.max_gib": 16}}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._packages import Find, at_first_use

if TYPE_CHECKING:
    from ._vllm_offloading import OnecopySpec

__all__ = ["OnecopySpec"]

__getattr__: Find = at_first_use(__name__, OnecopySpec="._vllm_offloading")
