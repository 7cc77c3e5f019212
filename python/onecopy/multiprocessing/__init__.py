# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing, with tensors that travel by handle: change the import, nothing else.

Everything that ``torch.multiprocessing`` and ``multiprocessing`` export is here with the same signatures.
Importing the package also makes the standard library's queues, pipes, listeners, clients, pools and
managers carry tensors by handle, in processes that import it on both sides. docs/reference/patches.md lists the
changes; uninstall() takes them back, and ``ONECOPY_DISABLE=1`` leaves everything as it is.

Without PyTorch the names of ``multiprocessing`` are here, and carry onecopy's own tensors.
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from typing import Any

from . import _aliases, context, patches, reductions as reductions
from ._state import disabled, has_torch
from .patches import (
    init_reductions as init_reductions,
    install as install,
    installed as installed,
    uninstall as uninstall,
)
from .spawn import spawn as spawn, start_processes as start_processes
from .strategies import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy

__all__ = [  # noqa: PLE0604
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    *multiprocessing.__all__,
]

for _name in multiprocessing.__all__:
    globals()[_name] = getattr(context._default_context, _name)

SUBDEBUG = multiprocessing.SUBDEBUG
SUBWARNING = multiprocessing.SUBWARNING

if has_torch():
    import torch  # noqa: F401

    from . import _torch_names
    from .spawn import *  # noqa: F403

    # torch's own helpers, for programs that look for them here; a torch without them has no such programs
    globals().update(
        _torch_names.exports(
            "torch.multiprocessing", ("_get_thread_name", "_prctl_pr_set_pdeathsig", "_set_thread_name")
        )
    )

_aliases.install()
patches.install()  # with all names there: a failure has changed nothing

if disabled():  # contexts make objects of the standard library's classes then
    import multiprocessing.pool
    import multiprocessing.queues

    sys.modules[f"{__name__}.pool"] = multiprocessing.pool
    sys.modules[f"{__name__}.queues"] = multiprocessing.queues

_MODULES = _aliases.NAMES | {"pool", "queue", "queues"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
