# SPDX-License-Identifier: Apache-2.0
"""Makes ``inspect.signature()`` work for functions in C++, from the texts that nanobind makes their stubs of."""

from __future__ import annotations

import inspect
import re
from typing import Any


class _Spelled(dict[str, Any]):
    """Maps the names of default values: to the values that nanobind has numbered, and others to their own text."""

    def __missing__(self, name: str) -> Any:
        return type("", (), {"__repr__": lambda _: name})()


def of_function(function: Any) -> inspect.Signature:
    """Returns the signature of a function, or of a method with its self; of several, the first documented one."""
    all_of_it = function.__nb_signature__
    text, _, defaults = next((one for one in all_of_it if one[1]), all_of_it[0])
    names = _Spelled({f"default_{number}": value for number, value in enumerate(defaults or ())})
    definition = re.sub(r"\\(\d+)", r"default_\1", text)
    exec(f"from __future__ import annotations\n{definition}: ...", {}, names)
    return inspect.signature(next(value for value in names.values() if inspect.isfunction(value)))


def of_bound(method: Any) -> inspect.Signature:
    """Returns the signature of a bound method."""
    whole = of_function(method)
    return whole.replace(parameters=list(whole.parameters.values())[1:])
