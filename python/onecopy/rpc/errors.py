# SPDX-License-Identifier: Apache-2.0
"""Exceptions of one process, raised in another."""

from __future__ import annotations

import re
import traceback

import torch

from ..errors import Error, Timeout


class Cancelled(Error):
    """The call was cancelled by its caller, or its caller has ended."""

    code = "cancelled"


class Busy(Error):
    """As many calls to a member are under way as init() allows."""

    code = "busy"


class RemoteError(RuntimeError):
    """An exception of the callee that cannot be made here; its text has all of it."""


class RemoteFailure:
    """An exception of a handler, as it crosses: its class, and a text with the place and the cause."""

    __slots__ = ("kind", "text")

    def __init__(self, kind: type, text: str) -> None:
        self.kind, self.text = kind, text

    @classmethod
    def of(cls, error: BaseException, worker: object, unescaped: bool = False) -> RemoteFailure:
        """Makes the failure of a function that was called. `unescaped`: escapes in the text stand for their characters,
        as torch has it."""
        # torch does so, and torch.jit.Error is not a RuntimeError.
        kind = RuntimeError if isinstance(error, torch.jit.Error) else type(error)
        text = f"On {worker}:\n{error!r}\n{''.join(traceback.format_exception(error))}"
        text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot cross
        return cls(kind, _ESCAPE.sub(_character, text) if unescaped else text)

    def exception(self) -> Exception:
        """Makes the exception to raise here: of the same class, or a RemoteError that says why it cannot be."""
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
    """Returns the error of a call that took too long, in torch's words, with the reason behind them."""
    limit = f"{int(seconds * 1000)} ms" if seconds < 1e15 else "infinite"
    text = f"RPC ran for more than set timeout ({limit}) and will now be marked with an error"
    return Timeout(f"{text}: {reason}" if reason else text)
