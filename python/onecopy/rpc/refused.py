# SPDX-License-Identifier: Apache-2.0
"""The error of a value that cannot cross, with its place in the arguments of a call."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any


class RefusedValue(TypeError):
    """A value cannot cross. The message names where in the arguments the value is."""

    def __init__(self, why: str, value: object = None) -> None:
        super().__init__(why)
        self.why, self.value = why, value

    def located(self, **arguments: object) -> RefusedValue:
        """Adds the place of the value in the arguments of a call."""
        path = _path_to(self.value, arguments)
        if path is not None:
            self.args = (f"{path}: {self.why}",)
        self.value = None
        return self

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return TypeError, self.args


def _path_to(value: object, arguments: dict[str, object]) -> str | None:
    for name, argument in arguments.items():
        path = name if argument is value else _path_within(value, argument, name, 0)
        if path is not None:
            return path
    return None


def _path_within(value: object, container: Any, path: str, depth: int) -> str | None:
    for part, item in _items(container) if depth < 40 else ():
        found = path + part if item is value else _path_within(value, item, path + part, depth + 1)
        if found is not None:
            return found
    return None


def _items(container: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(container, dict):
        yield from ((f"[{key!r}]", item) for key, item in container.items())
        yield from (("['key']", key) for key in container)
    elif isinstance(container, (list, tuple, set, frozenset, deque)):
        yield from ((f"[{i!r}]", item) for i, item in enumerate(container))
    elif isinstance(container, functools.partial):
        yield from ((".func", container.func), (".args", container.args), (".keywords", container.keywords))
    elif isinstance(container, BaseException):
        yield (".args", container.args)
    elif dataclasses.is_dataclass(container) and not isinstance(container, type):
        yield from ((f".{f.name}", getattr(container, f.name, None)) for f in dataclasses.fields(container))
