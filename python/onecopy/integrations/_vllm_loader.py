# SPDX-License-Identifier: Apache-2.0
"""vLLM's ``--load-format onecopy``: a server loads its first weights from memory that another process shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .. import InvalidArgument, open as _open
from ._packages import need
from .vllm import PACKAGE, WHAT

_default = need("vllm.model_executor.model_loader.default_loader", PACKAGE, WHAT, "DefaultModelLoader")


class OnecopyModelLoader(_default.DefaultModelLoader):  # type: ignore[name-defined]
    """Loads weights from the text of a handle, e.g. the text that ``onecopy share FILE`` prints.

    The model copies the tensors into its own layout, and the memory is closed afterwards. vLLM's default loader checks
    that no parameter is missing.
    """

    def __init__(self, load_config: Any) -> None:
        extra = load_config.model_loader_extra_config
        if not isinstance(extra, dict) or not isinstance(extra.get("handle"), str):
            raise InvalidArgument("--load-format onecopy needs --model-loader-extra-config "
                                  """'{"handle": "onecopy:..."}', with the text of a handle""")  # fmt: skip
        others = {name: value for name, value in extra.items() if name != "handle"}
        super().__init__(dataclasses.replace(load_config, model_loader_extra_config=others))
        self._handle = extra["handle"]

    def download_model(self, model_config: Any) -> None:
        """Does nothing, since the weights are on this host."""

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """Yields the name and tensor of each weight.

        Raises:
            OwnerDied: the process that shared the weights has ended.
        """
        yield from _open(self._handle, framework="torch").items()
