# SPDX-License-Identifier: Apache-2.0
"""A storage plugin for LMCache that keeps chunks of the KV cache in memory that all engines of a host share.

Enable the plugin in LMCache's configuration::

    storage_plugins: ["onecopy"]
    extra_config:
      storage_plugin.onecopy.module_path: onecopy.integrations.lmcache
      storage_plugin.onecopy.class_name: OnecopyBackend
      onecopy.max_gib: 16

LMCache's server takes an L2 adapter::

    lmcache server --l2-adapter '{"type": "plugin", "module_path": "onecopy.integrations.lmcache",
      "class_name": "OnecopyL2Adapter", "adapter_params": {"onecopy.max_gib": 16}}' ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._packages import Find, at_first_use

if TYPE_CHECKING:
    from ._lmcache_backend import OnecopyBackend
    from ._lmcache_l2 import OnecopyL2Adapter

__all__ = ["OnecopyBackend", "OnecopyL2Adapter"]

__getattr__: Find = at_first_use(__name__, OnecopyBackend="._lmcache_backend", OnecopyL2Adapter="._lmcache_l2")
