# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of vLLM from the store: the path ``onecopy:NAME@VERSION``."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from .. import InvalidArgument, store as _store
from ._packages import need

_SCHEME = "onecopy:"
_CONFIG = "adapter_config.json"
_PREFIX = "onecopy-lora-"


def install(manager: Any) -> None:
    """Makes vLLM's ``WorkerLoRAManager`` load adapters from the store. A second call has no effect."""
    load = manager._load_adapter
    if getattr(load, "is_of_onecopy", False):
        return

    def _load_adapter(self: Any, request: Any) -> Any:
        if not request.lora_path.startswith(_SCHEME):
            return load(self, request)
        with _folder(request.lora_path) as folder:
            of_folder = copy.copy(request)
            of_folder.lora_path = folder
            return load(self, of_folder)

    _load_adapter.is_of_onecopy = True  # type: ignore[attr-defined]
    manager._load_adapter = _load_adapter


@contextlib.contextmanager
def _folder(path: str) -> Iterator[str]:
    """Writes a version into a folder as PEFT does, since vLLM scales tensors in place, which a version forbids.

    All of the adapter is read and checked by vLLM before vLLM removes the last one of its name.
    """
    name, _, number = path.removeprefix(_SCHEME).rpartition("@")
    if not name or not number.isdigit():
        raise InvalidArgument(f"the path of an adapter is onecopy:NAME@VERSION, not {path!r}; publish() returns the "
                              f"version, which is the same in all workers")  # fmt: skip
    version = _store.connect(framework="torch").open(name, int(number))
    if _CONFIG not in version:
        raise InvalidArgument(f"{name!r} version {number} is not an adapter; publish its tensors together with the "
                              f"bytes of its {_CONFIG} under that name")  # fmt: skip
    files = need("safetensors.torch", "safetensors", "an adapter of the store")
    _remove_abandoned()
    with _locked_folder() as folder:
        tensors = {each: value for each, value in version.items() if not isinstance(value, bytes)}
        files.save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))
        with open(os.path.join(folder, _CONFIG), "wb") as file:
            file.write(version[_CONFIG])
        yield folder


@contextlib.contextmanager
def _locked_folder() -> Iterator[str]:
    """Makes a folder with a lock that ends with this process."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        file = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield folder
        finally:
            os.close(file)


def _remove_abandoned() -> None:
    """Removes the folders of processes that were killed. A folder without a lock may be a new one for a minute."""
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}*")):
        with contextlib.suppress(OSError):  # of another user, locked, or removed meanwhile
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(file).st_mtime > 60:
                    shutil.rmtree(folder)
            finally:
                os.close(file)
