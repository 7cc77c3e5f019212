# SPDX-License-Identifier: Apache-2.0
"""The packages of onecopy.distributed have the public names of torch's, or the documentation names what is missing."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.rpc.is_available():
    pytest.skip("this torch has no rpc to compare with", allow_module_level=True)

# torch.distributed.optim compiles functions with torch.jit when it is imported, which torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "rpc-compatibility.md"
PACKAGES = ("rpc", "autograd", "optim", "nn")


def is_of_torchs_package(thing) -> bool:
    """Returns whether a name is the package's own, and not an import of its source file such as `os` or `torch`."""
    if inspect.ismodule(thing):
        return thing.__name__.startswith(tuple(f"torch.distributed.{package}." for package in PACKAGES))
    home = getattr(thing, "__module__", None) or ""
    return home.startswith(("torch.distributed", "torch._C._distributed"))


def public_names(package) -> set[str]:
    module = importlib.import_module(f"torch.distributed.{package}")
    own = {name for name in dir(module) if not name.startswith("_") and is_of_torchs_package(getattr(module, name))}
    return own | set(getattr(module, "__all__", ()))


def named_as_missing(package) -> set[str]:
    return set(re.findall(rf"`{package}\.(\w+)`", PAGE.read_text()))


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_of_torch_are_here_or_documented_as_missing(package):
    ours = importlib.import_module(f"onecopy.distributed.{package}")
    missing = {name for name in public_names(package) if not hasattr(ours, name)}
    assert missing - named_as_missing(package) == set()


def test_names_of_torch_that_rpc_does_not_concern_are_torchs_own():
    optim = importlib.import_module("onecopy.distributed.optim")
    assert optim.ZeroRedundancyOptimizer is torch.distributed.optim.ZeroRedundancyOptimizer
    nn = importlib.import_module("onecopy.distributed.nn")
    assert nn.all_reduce is torch.distributed.nn.functional.all_reduce
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        nn.no_such_name  # noqa: B018
