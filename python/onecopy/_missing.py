# SPDX-License-Identifier: Apache-2.0
"""The error for a name that a bundle does not contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import Bundle

_MAX_NEAR = 3


class MissingName(KeyError):
    """A KeyError that suggests similar names.

    The names are searched only when the error is printed, since a program may try many missing names.
    """

    def __init__(self, name: str, bundle: Bundle, is_tree: bool) -> None:
        super().__init__(name)
        self._bundle = bundle
        self._is_tree = is_tree

    def __str__(self) -> str:
        import difflib

        names = self._bundle.keys()
        near = difflib.get_close_matches(self.args[0], names, _MAX_NEAR)
        text = f"none of the bundle's {len(names)} tensors is named {self.args[0]!r}"
        text += f"; similar names are {', '.join(map(repr, near))}" if near else "; keys() returns the names"
        return text + (
            "; tree() returns the whole value, with the values that are not tensors" if self._is_tree else ""
        )

    def __reduce__(self) -> tuple[type[KeyError], tuple[str]]:
        """Pickles the text of the error, since a bundle cannot be sent to another process."""
        return KeyError, (str(self),)
