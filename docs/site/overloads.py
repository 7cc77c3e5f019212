# SPDX-License-Identifier: Apache-2.0
"""An extension of griffe: a function of a stub that is overloads alone gets its place on the page, too."""

from __future__ import annotations

from typing import Any

import griffe


class Overloads(griffe.Extension):
    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        for name, overloads in mod.overloads.items():
            if overloads and name not in mod.members:
                function = griffe.Function(name, parameters=overloads[0].parameters, returns=overloads[0].returns)
                function.docstring = next((one.docstring for one in overloads if one.docstring), None)
                function.overloads = overloads
                mod.set_member(name, function)
