# SPDX-License-Identifier: Apache-2.0
"""The namespace of a KV pool: a digest of all that must be equal for blocks of two engines to mean the same.

The options of an engine's plug whose names begin with ``onecopy.`` are the same for all engines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .. import store
from ..errors import InvalidArgument

_DEFAULT_GIB = 8.0

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


def open_pool(options: Mapping[str, Any], *, layout: Any, parts: int = 1, **fields: Any) -> store.KvPool:
    """Opens the namespace of an engine's blocks in the KV pool that the options name.

    Args:
        options: the options of the engine's plug.
        layout: what the engine says of the layout of a block.
        parts: how many processes write a block.
        fields: the other FIELDS, without those that the options say.

    Raises:
        InvalidArgument: an option or field is missing, or the KV pool has another size.
    """
    space = space_of({
        **fields,
        "weights": weights_of(options),
        "layout": [layout, options.get("onecopy.layout", "")],
        "kv_scales": options.get("onecopy.kv_scales", "none"),
        "draft_model": options.get("onecopy.draft_model", "none"),
    })  # fmt: skip
    return open_named(options, block_bytes=fields["block_bytes"], parts=parts, space=space)


def open_named(options: Mapping[str, Any], **sizes: Any) -> store.KvPool:
    """Opens a namespace of the KV pool that the options name."""
    return store.connect(framework="torch").kv_pool(
        options.get("onecopy.pool", "kv"), **sizes,
        budget=int(float(options.get("onecopy.max_gib", _DEFAULT_GIB)) * (1 << 30)),
        extent_bytes=int(options.get("onecopy.extent_bytes", 0)),
        outlives_keeper=bool(options.get("onecopy.outlives_keeper", False)),
    )  # fmt: skip


def copy_pages(
    pool: store.KvPool, blocks: Sequence[int], rows: Sequence[int], pages: Any, offset: int, to_pool: bool
) -> None:
    """Copies rows of an engine's tensor into blocks at an offset, or out of them, and waits for the copies."""
    if pages.device.type == "cpu":
        return pool.copy_blocks(blocks, rows, pages, offset=offset, to_pool=to_pool)
    size = pages.shape[1] * pages.element_size()
    for block, row in zip(blocks, rows):
        there = pool.block(block)[offset : offset + size].view(pages.dtype)
        there.copy_(pages[row]) if to_pool else pages[row].copy_(there)
    return None
