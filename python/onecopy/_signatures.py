# SPDX-License-Identifier: Apache-2.0
"""``inspect.signature()`` of the functions in C++, from the texts that their stubs are made of."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

_DEFAULT = re.compile(r"\\(\d+)")


class _Spelled:
    """A default value or annotation that is shown as it is written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def of_function(function: Any) -> inspect.Signature:
    """The signature of a function, or of a method with its self; of several, the first that is documented."""
    all_of_it = function.__nb_signature__
    text, _, defaults = next((one for one in all_of_it if one[1]), all_of_it[0])
    numbered = _DEFAULT.sub(r"__default_\1", text)
    definition = ast.parse(f"{numbered}: ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    returns = inspect.Signature.empty if definition.returns is None else ast.unparse(definition.returns)
    return inspect.Signature(_parameters(definition.args, defaults), return_annotation=returns)


def of_bound(method: Any) -> inspect.Signature:
    """The signature of a method that has its object."""
    whole = of_function(method)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def _parameters(arguments: ast.arguments, defaults: Any) -> list[inspect.Parameter]:
    kinds = inspect.Parameter
    positional: list[tuple[ast.arg, Any]] = [(a, kinds.POSITIONAL_ONLY) for a in arguments.posonlyargs]
    positional += [(a, kinds.POSITIONAL_OR_KEYWORD) for a in arguments.args]
    values = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    made = [_parameter(a, kind, value, defaults) for (a, kind), value in zip(positional, values)]
    if arguments.vararg:
        made.append(_parameter(arguments.vararg, kinds.VAR_POSITIONAL, None, defaults))
    for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults):
        made.append(_parameter(a, kinds.KEYWORD_ONLY, value, defaults))
    return made


def _parameter(argument: ast.arg, kind: Any, value: ast.expr | None, defaults: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    annotation = empty if argument.annotation is None else ast.unparse(argument.annotation)
    default = empty if value is None else _default(value, defaults)
    return inspect.Parameter(argument.arg, kind, default=default, annotation=annotation)


def _default(value: ast.expr, defaults: Any) -> Any:
    text = ast.unparse(value)
    if text.startswith("__default_"):
        return defaults[int(text.removeprefix("__default_"))]
    try:
        return ast.literal_eval(value)
    except ValueError:
        return _Spelled(text)
