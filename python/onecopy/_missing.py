# SPDX-License-Identifier: Apache-2.0
"""The error for a name that a bundle does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import Bundle

_MOST_NEAR = 3


class MissingName(KeyError):
    """A KeyError that names near names. It looks for them when it is printed: programs may try many missing names."""

    def __init__(self, name: str, bundle: Bundle, is_tree: bool) -> None:
        super().__init__(name)
        self._bundle = bundle
        self._is_tree = is_tree

    def __str__(self) -> str:
        import difflib

        names = self._bundle.keys()
        near = difflib.get_close_matches(self.args[0], names, _MOST_NEAR)
        text = f"{self.args[0]!r} is the name of none of the bundle's {len(names)} tensors"
        text += f"; near it are {', '.join(map(repr, near))}" if near else "; keys() has their names"
        return text + ("; tree() gives the whole value, with values that are no tensors" if self._is_tree else "")

    def __reduce__(self) -> tuple[type[KeyError], tuple[str]]:
        """Bundles do not cross processes; the text of the error does."""
        return KeyError, (str(self),)
