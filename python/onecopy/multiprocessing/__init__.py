# SPDX-License-Identifier: Apache-2.0
"""A replacement for torch.multiprocessing that sends tensors by handle. Only the import changes.

The package exports everything that ``torch.multiprocessing`` and ``multiprocessing`` export, with the same signatures.
Importing it also makes the standard library's queues, pipes, listeners, clients, pools and managers send tensors by
handle, if both processes import the package. docs/reference/patches.md lists the changes to torch and the standard
library. uninstall() undoes them, and with ``ONECOPY_DISABLE=1`` nothing is changed.

Without PyTorch, the package exports the names of ``multiprocessing``, which send onecopy's own tensors by handle.
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

    # Helpers of torch, for programs that look for them here. Older versions of torch do not have them.
    globals().update(
        _torch_names.exports(
            "torch.multiprocessing", ("_get_thread_name", "_prctl_pr_set_pdeathsig", "_set_thread_name")
        )
    )

_aliases.install()
patches.install()  # after all names are defined, so that a failure changes nothing

if disabled():  # contexts make objects of the standard library's classes
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
