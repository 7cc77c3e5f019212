# SPDX-License-Identifier: Apache-2.0
"""Counts the weight updates of an SGLang engine, since the engine must not read pages that were stored before one."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

from .. import Error
from ._packages import need

_PACKAGE, _WHAT = "sglang", "a KV pool in SGLang"
_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_UPDATES = [f"{_MANAGER}.update_weights_from_{way}" for way in ("disk", "distributed", "tensor", "ipc")]
_FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"

_changes = 0  # updates, and flushes of the engine's own cache since the first update


def watch() -> None:
    """Registers hooks of SGLang that count changes. Each process must call it before SGLang applies hooks."""
    hooks = need("sglang.srt.plugins.hook_registry", _PACKAGE, _WHAT, "HookRegistry", "HookType")
    for target in _UPDATES:
        hooks.HookRegistry.register(target, _before_update, hooks.HookType.BEFORE)
    hooks.HookRegistry.register(_FLUSH, _after_flush, hooks.HookType.AFTER)


def check_watched() -> None:
    """Checks that SGLang has applied the hooks.

    Raises:
        Error: SGLang has not applied them, so that new weights would go unnoticed.
    """
    registry = need("sglang.srt.plugins.hook_registry", _PACKAGE, _WHAT, "HookRegistry").HookRegistry
    if missing := sorted({*_UPDATES, _FLUSH} - registry._patched):
        raise Error(
            "a KV pool would give this engine pages of its old weights after an update, since SGLang has not applied "
            f"onecopy's plugin to {missing[0]}: if SGLANG_PLUGINS is set, add onecopy to it; otherwise this version of "
            "SGLang cannot use a KV pool"
        )


def names_of(keys: Sequence[str], engine: bytes) -> list[bytes]:
    """Returns the names of pages in the KV pool: SGLang's keys, until the engine has got new weights.

    Afterwards the names belong to the engine, which has random bytes of its own, and change with each update and with
    each flush of the engine's cache: a page of the old weights may still be stored while an update runs.
    """
    changes, names = _changes, [bytes.fromhex(key) for key in keys]
    if not changes:
        return names
    prefix = engine + changes.to_bytes(8, "little")
    return [hashlib.sha256(prefix + name).digest() for name in names]


def of_all_ranks(mine: Any) -> list[Any]:
    """Returns what the ranks of tensor parallelism say, one of which is this process."""
    state = sys.modules.get("sglang.srt.distributed.parallel_state")
    group = state.get_tp_group() if state and state.model_parallel_is_initialized() else None
    return list(group.all_gather_object(mine)) if group and group.world_size > 1 else [mine]


def _before_update(*_: Any, **__: Any) -> None:
    global _changes
    _changes += 1


def _after_flush(_: Any, *__: Any, **___: Any) -> None:
    global _changes
    _changes += _changes > 0
