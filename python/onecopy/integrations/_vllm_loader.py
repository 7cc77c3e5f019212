# SPDX-License-Identifier: Apache-2.0
"""vLLM's ``--load-format onecopy``: a server loads its first weights from memory of this host, not from files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from .. import InvalidArgument, open as _open, store as _store
from ._packages import need
from .vllm import PACKAGE, WHAT, sleep_of

_default = need("vllm.model_executor.model_loader.default_loader", PACKAGE, WHAT, "DefaultModelLoader")

_NEEDS_A_SOURCE = (
    """--load-format onecopy needs --model-loader-extra-config '{"handle": "onecopy:..."}', with a handle, """
    """or '{"store": "NAME"}', with the name of an object of the store"""
)


class OnecopyModelLoader(_default.DefaultModelLoader):  # type: ignore[name-defined]
    """Loads weights from the text of a handle, or from the current version of an object of the store.

    If the store does not contain the object, vLLM's own loader reads the files, and the weights are published under the
    object's name. The model copies the tensors into its own layout, and the memory is closed afterwards. vLLM's default
    loader checks that no parameter is missing.
    """

    def __init__(self, load_config: Any) -> None:
        extra = load_config.model_loader_extra_config
        given = dict(extra) if isinstance(extra, dict) else {}
        self._handle, self._object = given.pop("handle", None), given.pop("store", None)
        if sum(isinstance(source, str) for source in (self._handle, self._object)) != 1:
            raise InvalidArgument(_NEEDS_A_SOURCE)
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config=given))

    def download_model(self, model_config: Any) -> None:
        """Does nothing, since files are read only if the store lacks the weights."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads the first weights of a model."""
        if sleep := sleep_of(model_config):
            sleep.watch(model)
        super().load_weights(model, model_config)

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """Returns an iterator over the name and tensor of each weight, with the names in the files.

        All of them are opened before it returns, so that vLLM has not touched the model yet if that fails.

        Raises:
            OwnerDied: the process that shared the weights has ended.
            OutOfMemory: the store has no room for the weights.
        """
        self.counter_before_loading_weights = time.perf_counter()  # for the line that vLLM logs
        weights = _open(self._handle, framework="torch") if self._handle else self._of_store(model_config, model)
        if sleep := sleep_of(model_config):
            sleep.offer(model, model_config, weights)
        return iter(weights.items())

    def _of_store(self, model_config: Any, model: Any) -> Any:
        """Opens the object. If the store does not contain the object, vLLM's own loader reads the weights, which are
        then published."""
        of_files = super().get_all_weights

        def read() -> dict[str, Any]:
            self.local_expert_ids = None  # the other workers need the experts that this one does not
            return dict(of_files(model_config, model))

        return _store.connect(framework="torch").open_or_publish(self._object, read)
