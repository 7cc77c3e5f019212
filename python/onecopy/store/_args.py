# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of ``onecopy.store``, so that a wrong type is one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument


def text(value: Any, argument: str) -> str:
    """Returns a str. Raises TypeError for other types, and InvalidArgument for a str that is not text."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{argument} must be text that UTF-8 can encode, not {value!r}") from None
    return value


def texts(value: Any, argument: str) -> dict[str, str]:
    """Returns a dict of texts for a mapping or None. Raises as ``text()``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a mapping of str to str, not {type(value).__name__}")
    return {text(k, f"each field of {argument}"): text(v, f"{argument}[{k!r}]") for k, v in value.items()}


def number(value: Any, argument: str, least: int = 0) -> int:
    """Returns an int from ``least`` to 2**32 - 1. Raises TypeError for other types, InvalidArgument for others."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} must be an int, not {type(value).__name__}")
    found = value.__index__()
    if not least <= found < 2**32:
        raise InvalidArgument(f"{argument} must be from {least} to 2**32 - 1, not {found}")
    return int(found)


def version(value: Any, argument: str = "version") -> int | None:
    """Returns the number of a version, or None. Raises TypeError and InvalidArgument."""
    return None if value is None else number(value, argument, 1)


def layout(value: Any) -> tuple[list[str], list[Any], list[Any]]:
    """Returns the names, shapes and dtypes of a mapping of names to pairs. Raises TypeError for others."""
    if not isinstance(value, Mapping):
        raise TypeError(f"layout must be a mapping of names to (shape, dtype), not {type(value).__name__}")
    for name, pair in value.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"layout[{name!r}] must be (shape, dtype), not {pair!r}")
    pairs = list(value.values())
    names = [text(name, "the name of each tensor") for name in value]
    return names, [pair[0] for pair in pairs], [pair[1] for pair in pairs]
