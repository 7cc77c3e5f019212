# SPDX-License-Identifier: Apache-2.0
"""Exceptions of one process, raised in another."""

import traceback

import torch

from ..errors import Error


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

    def __init__(self, kind, text):
        self.kind, self.text = kind, text

    @classmethod
    def of(cls, error, worker):
        """REQUIRES: `error` is being handled."""
        # As torch has it; and torch.jit.Error is no RuntimeError.
        kind = RuntimeError if isinstance(error, torch.jit.Error) else type(error)
        return cls(kind, f"On {worker}:\n{error!r}\n{traceback.format_exc()}")

    def exception(self):
        """The exception to raise here: of the same class, or a RemoteError that says why it cannot be."""
        text = self.text.encode("utf-8", "backslashreplace").decode("unicode_escape")
        try:
            made = self.kind(text)
            if not isinstance(made, Exception):
                raise TypeError(f"{self.kind!r} makes no exception")
            return made
        except BaseException as error:
            return RemoteError(
                f"Failed to create original exception type. Error msg was {error} Original exception on "
                f"remote side was {text}"
            )
