# SPDX-License-Identifier: Apache-2.0
"""The namespace of a KV pool: a digest of all that must be equal for blocks of two engines to mean the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument

#: What each plug says of its blocks. "weights" names the content of the loaded weights, and never a path.
FIELDS = frozenset(
    (
        *("engine", "engine_version", "weights", "dtype", "layout", "kv_scales", "tokens_per_block", "world_size"),
        *("rank", "key_group", "draft_model", "block_bytes"),
    )
)


def space_of(fields: Mapping[str, Any]) -> str:
    """Returns the name of the namespace.

    Raises:
        InvalidArgument: a field is missing or None, since blocks could then be exchanged between engines whose bytes
            differ.
    """
    unknown = sorted(FIELDS.symmetric_difference(fields))
    unknown += [name for name in sorted(FIELDS.intersection(fields)) if fields[name] is None]
    if unknown:
        raise InvalidArgument(
            f"an engine must say all of its blocks to share them in a KV pool, and this one lacks {', '.join(unknown)}"
        )
    text = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), default=str)
    return f"{fields['engine']}/{hashlib.sha256(text.encode()).hexdigest()}"


def weights_of(extra: Mapping[str, Any]) -> str:
    """Returns what the option ``onecopy.weights`` says of the weights.

    Raises:
        InvalidArgument: the option is missing.
    """
    weights = extra.get("onecopy.weights")
    if not isinstance(weights, str) or not weights:
        raise InvalidArgument(
            'set "onecopy.weights" to a text that names the content of the loaded weights, such as a name and a '
            "version or a checksum: engines with equal texts use each other's blocks"
        )
    return weights
