# SPDX-License-Identifier: Apache-2.0
"""torch's own rebuild functions open what our reducers named.

Inference engines drop the function from what ``reduce_tensor()`` gives and call torch's with the arguments, in
processes that have not imported the package, too. Arguments of devices are made of memory of the CPU here: a handle
says itself where its memory is.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch.multiprocessing import reductions as torch_reductions

import onecopy
import onecopy.multiprocessing as mp
from onecopy.multiprocessing import _storages, _tensors, reductions


def as_of_a_device(tensor: torch.Tensor) -> tuple:
    handle, begin = _storages.block_handle(tensor.untyped_storage(), tensor.dtype)
    return _tensors._device_arguments(tensor, handle, begin)


def part_of_a_block() -> torch.Tensor:
    """A storage that begins in the middle of a block."""
    block = onecopy.empty(8, "float32")
    tensor = torch.from_dlpack(block[2:6])
    tensor.copy_(torch.arange(4.0))
    return tensor[1:]


TENSORS = {
    "whole": lambda: torch.arange(3.0) + 1,
    "view": lambda: torch.arange(6.0).view(2, 3).t()[1:],
    "part of a block": part_of_a_block,
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
}


def with_a_hook() -> torch.Tensor:
    """More than the flags of a handle can say."""
    tensor = torch.ones(3, requires_grad=True)
    tensor.register_hook(torch.utils.hooks.unserializable_hook(lambda gradient: gradient))
    return tensor


def check_same(arrived: torch.Tensor, tensor: torch.Tensor) -> None:
    assert type(arrived) is type(tensor) and arrived.requires_grad == tensor.requires_grad
    assert arrived.tolist() == tensor.tolist() and arrived.stride() == tensor.stride()
    with torch.no_grad():
        arrived.add_(1)
    assert arrived.tolist() == tensor.tolist(), "it is not the same memory"


# --- both have imported the package -----------------------------------------------------------------


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS.keys())
def test_torchs_rebuild_cuda_tensor_opens_our_arguments(make, strategy):
    tensor = make()
    check_same(torch_reductions.rebuild_cuda_tensor(*as_of_a_device(tensor)), tensor)


@pytest.mark.parametrize("make", [*TENSORS.values(), with_a_hook], ids=[*TENSORS, "with a hook"])
def test_torchs_rebuild_tensor_opens_our_arguments(make, strategy):
    tensor = make()
    check_same(torch_reductions.rebuild_tensor(*reductions.reduce_tensor(tensor)[1]), tensor)


def test_torchs_rebuild_functions_of_storages_open_our_arguments(strategy):
    storage = torch.arange(3.0).untyped_storage()
    _, arguments = torch_reductions.reduce_storage(storage)
    theirs = {
        "file_descriptor": torch_reductions.rebuild_storage_fd,
        "file_system": torch_reductions.rebuild_storage_filename,
    }
    assert theirs[strategy](*arguments)._cdata == storage._cdata


def test_arguments_of_torchs_own_are_still_torchs_to_open(run_python):
    program = """
        import torch
        from torch.multiprocessing import reductions
        tensor = torch.arange(3.0)
        named, arguments = reductions.reduce_storage(tensor.untyped_storage())
        import onecopy.multiprocessing as mp
        assert mp.installed()
        torch.empty(0).set_(named(*arguments)).add_(1)
        print(tensor.tolist())
    """
    assert run_python(program, stderr=None) == "[1.0, 2.0, 3.0]\n"


# --- the sender alone has ---------------------------------------------------------------------------

RECEIVER = """
import pickle, sys
import torch
from torch.multiprocessing.reductions import {function} as rebuild
torch.cuda._lazy_init = lambda: None  # there need be no GPU: the memory is the CPU's
assert "onecopy" not in sys.modules
arguments = pickle.load(sys.stdin.buffer)
try:
    arrived = rebuild(*arguments)
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
else:
    tensor = torch.empty(0).set_(arrived) if isinstance(arrived, torch.UntypedStorage) else arrived
    with torch.no_grad():
        tensor.mul_(2)
    print(tensor.tolist())
"""


def receive(function: str, arguments: tuple, **environment: str) -> str:
    """In a program that imports nothing but torch."""
    command = [sys.executable, "-c", RECEIVER.format(function=function)]
    pickled = pickle.dumps(arguments)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(command, input=pickled, capture_output=True, timeout=120, env=variables)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.mark.parametrize("disabled", ["", "1"])
@pytest.mark.parametrize("make", [TENSORS["view"], TENSORS["part of a block"]], ids=["view", "part of a block"])
def test_a_receiver_that_imports_torch_alone_opens_a_tensor_of_a_device(make, disabled):
    tensor = make()
    before = tensor.tolist()
    seen = receive("rebuild_cuda_tensor", as_of_a_device(tensor), ONECOPY_DISABLE=disabled)
    assert seen == str((torch.tensor(before) * 2).tolist()) == str(tensor.tolist())


def test_a_receiver_that_imports_torch_alone_opens_a_storage(strategy):
    tensor = torch.ones(2)
    function = {"file_descriptor": "rebuild_storage_fd", "file_system": "rebuild_storage_filename"}[strategy]
    assert receive(function, reductions.reduce_storage(tensor.untyped_storage())[1]) == "[2.0, 2.0]"
    assert tensor.tolist() == [2, 2]


def test_a_receiver_that_has_the_package_switched_off_is_told_what_to_import(strategy):
    function = {"file_descriptor": "rebuild_storage_fd", "file_system": "rebuild_storage_filename"}[strategy]
    arguments = reductions.reduce_storage(torch.ones(2).untyped_storage())[1]
    said = receive(function, arguments, ONECOPY_DISABLE="1")
    assert said.startswith("Unsupported") and "import onecopy.multiprocessing" in said


def test_a_receiver_without_the_package_is_told_that_it_lacks_it():
    arguments = as_of_a_device(torch.ones(2))
    command = [
        sys.executable,
        "-c",
        "import sys; sys.modules['onecopy'] = None; import pickle; pickle.load(sys.stdin.buffer)",
    ]
    done = subprocess.run(command, input=pickle.dumps(arguments), capture_output=True, timeout=120)
    assert done.returncode == 1 and b"ModuleNotFoundError" in done.stderr and b"onecopy" in done.stderr


assert mp.installed()
