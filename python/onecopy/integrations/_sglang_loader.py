# SPDX-License-Identifier: Apache-2.0
"""SGLang's ``--load-format private``: a server loads weights from an object of the store."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, ClassVar

from .. import InvalidArgument, store as _store
from ._packages import need

_loader = need("sglang.srt.model_loader.loader", "sglang", "--load-format private", "DefaultModelLoader")


class OnecopyModelLoader(_loader.DefaultModelLoader):  # type: ignore[name-defined]
    """Loads the current version of an object. If there is none, SGLang's own loader reads the files, which are then
    published under the object's name.

    ``update_weights_from_disk(load_format="private")`` makes a loader without the server's extra configuration, so the
    name is kept from the first one. The constructor does not raise, since that would end SGLang's scheduler.
    """

    _object: ClassVar[str | None] = None

    def __init__(self, load_config: Any) -> None:
        extra = load_config.model_loader_extra_config or {}
        if isinstance(extra, str):
            try:
                extra = json.loads(extra)
            except ValueError:
                extra = {}
        extra = dict(extra) if isinstance(extra, dict) else {}
        if isinstance(name := extra.pop("store", None), str):
            OnecopyModelLoader._object = name
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config=extra))

    def download_model(self, model_config: Any) -> None:
        """Does nothing, since files are read only if the store lacks the weights."""

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
        """Returns an iterator over the name and tensor of each weight, with the names in the files."""
        if self._object is None:
            raise InvalidArgument("""--load-format private needs --model-loader-extra-config '{"store": "NAME"}', """
                                  """with the name of an object of the store""")  # fmt: skip
        of_files, prefix = super()._get_weights_iterator, getattr(source, "prefix", "")
        name = f"{self._object}/{prefix}" if prefix else self._object  # of a model with weights of several places
        weights = _store.connect(framework="torch").open_or_publish(name, lambda: dict(of_files(source)))
        return iter(weights.items())
