# SPDX-License-Identifier: Apache-2.0
"""A storage plugin for LMCache: chunks of the KV cache in shared memory, which all engines of a host find.

LMCache is told of it in its configuration::

    storage_plugins: ["onecopy"]
    extra_config:
      storage_plugin.onecopy.module_path: onecopy.integrations.lmcache
      storage_plugin.onecopy.class_name: OnecopyBackend
      onecopy.max_gib: 16
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._lmcache_backend import OnecopyBackend

__all__ = ["OnecopyBackend"]


def __getattr__(name: str) -> Any:
    if name != "OnecopyBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._lmcache_backend import OnecopyBackend

    return OnecopyBackend
