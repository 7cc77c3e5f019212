# SPDX-License-Identifier: Apache-2.0
"""Exceptions of one process, raised in another, and the error of a value that cannot cross."""

from __future__ import annotations

import dataclasses
import functools
import re
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import Error, Timeout


class Cancelled(Error):
    """The call was cancelled by its caller, or its caller has ended."""


class Busy(Error):
    """The number of pending calls to a member has reached the limit of init()."""


class RemoteError(RuntimeError):
    """An exception of the callee whose class this process cannot make. The text describes the exception."""


class RemoteFailure:
    """An exception of a handler in a message: its class, and a text with the traceback and the cause."""

    __slots__ = ("kind", "text")
    kind: type
    text: str

    def __init__(self, kind: type, text: str) -> None:
        self.kind, self.text = kind, text

    @classmethod
    def of(cls, error: BaseException, worker: object, unescaped: bool = False) -> RemoteFailure:
        """Makes the failure of a called function. With `unescaped`, escapes in the text are replaced by their
        characters, as in torch."""
        # As in torch; torch.jit.Error does not derive from RuntimeError.
        kind = RuntimeError if isinstance(error, torch.jit.Error) else type(error)
        text = f"On {worker}:\n{error!r}\n{''.join(traceback.format_exception(error))}"
        text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot cross
        return cls(kind, _ESCAPE.sub(_character, text) if unescaped else text)

    def exception(self) -> Exception:
        """Makes the exception to raise, of the same class, or a RemoteError that says why the class cannot be made."""
        try:
            made = self.kind(self.text)
            if not isinstance(made, Exception):
                raise TypeError(f"{self.kind!r} makes no exception")
            return made
        except BaseException as error:
            return RemoteError(
                f"Failed to create original exception type. Error msg was {error} Original exception on "
                f"remote side was {self.text}"
            )


_ESCAPE = re.compile(r"\\(?:[abfnrtv\\\"']|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})")


def _character(escape: re.Match[str]) -> str:
    try:
        made = escape[0].encode("ascii").decode("unicode_escape")
        return escape[0] if "\ud800" <= made <= "\udfff" else made
    except UnicodeDecodeError:  # beyond the last character
        return escape[0]


def late(seconds: float, reason: object = None) -> Timeout:
    """Returns the error of a call that took too long, with torch's text followed by the reason."""
    limit = f"{int(seconds * 1000)} ms" if seconds < 1e15 else "infinite"
    text = f"RPC ran for more than set timeout ({limit}) and will now be marked with an error"
    return Timeout(f"{text}: {reason}" if reason else text)


# --- values that cannot cross


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
