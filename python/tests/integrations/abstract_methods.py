# SPDX-License-Identifier: Apache-2.0
"""What an engine's own file says of the classes that a plug implements."""

import ast
from pathlib import Path


def abstract_methods(folder, path, classes):
    """Returns the abstract methods of each class by its name; None without the engine's folder.

    Args:
        folder: the folder of the engine's package, which need not be importable.
        path: the file of the classes in that folder.
        classes: the names of the classes.
    """
    if folder is None:
        return None
    nodes = ast.parse((Path(folder) / path).read_text()).body
    found = {one.name: one.body for one in nodes if isinstance(one, ast.ClassDef) and one.name in classes}
    return {name: {method.name for method in body if is_abstract(method)} for name, body in found.items()}


def is_abstract(node):
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(mark, ast.Name) and mark.id == "abstractmethod" for mark in node.decorator_list
    )
