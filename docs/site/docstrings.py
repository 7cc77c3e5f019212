# SPDX-License-Identifier: Apache-2.0
"""Extensions of griffe, which reads the sources for the pages of the Python API."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Overloads(griffe.Extension):
    """A function of a stub that is overloads alone gets its place on the page, too."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        for name, overloads in mod.overloads.items():
            if overloads and name not in mod.members:
                function = griffe.Function(name, parameters=overloads[0].parameters, returns=overloads[0].returns)
                function.docstring = next((one.docstring for one in overloads if one.docstring), None)
                function.overloads = overloads
                mod.set_member(name, function)


class Examples(griffe.Extension):
    """Examples that begin with ``>>>`` are shown as code, where Markdown would see quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_code(obj.docstring.value)


def as_code(docstring: str) -> str:
    """Returns the docstring with each example, up to the next empty line, between fences."""
    return re.sub(r"^>>> .*?(?=\n\n|\Z)", r"```pycon\n\g<0>\n```", docstring, flags=re.MULTILINE | re.DOTALL)
