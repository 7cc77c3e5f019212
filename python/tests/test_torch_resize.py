# SPDX-License-Identifier: Apache-2.0
"""Storages in shared memory can be emptied and filled again, as FSDP does with parameters."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed._functional_collectives  # what those of utils look for
from torch.distributed.utils import _alloc_storage, _free_storage

import onecopy
import onecopy.multiprocessing  # noqa: F401  torch knows our storages from here on

pytestmark = pytest.mark.skipif(
    not hasattr(torch.UntypedStorage, "_swap_data_ptr_"), reason="torch 2.12 exchanges storages"
)


def test_a_shared_tensor_can_be_freed_and_allocated_and_the_borrower_keeps_the_memory():
    tensor = torch.arange(6.0)
    view = tensor[2:]
    with_borrower = onecopy.open(onecopy.share(tensor))
    _free_storage(tensor)
    assert tensor.untyped_storage().nbytes() == view.untyped_storage().nbytes() == 0
    assert not tensor.is_shared()
    assert with_borrower.tolist() == [0, 1, 2, 3, 4, 5]
    _alloc_storage(tensor, tensor.size())
    tensor.fill_(7)
    assert view.tolist() == [7] * 4
    assert with_borrower.tolist() == [0, 1, 2, 3, 4, 5]


def test_what_is_shared_after_that_is_another_block():
    tensor = torch.zeros(1000)
    first = onecopy.share(tensor)
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(4000)
    tensor.fill_(2)
    again = onecopy.share(tensor)
    assert again != first
    assert onecopy.open(again)[0].tolist() == 2 and onecopy.open(first)[0].tolist() == 0
    opened = onecopy.open(first, framework="torch")
    assert opened.data_ptr() != tensor.data_ptr() and opened[0] == 0


def test_memory_that_is_freed_so_comes_back():
    gc.collect()
    onecopy.collect()
    before = onecopy.stats()["live_bytes"]
    tensor = torch.zeros(1 << 20)
    onecopy.share(tensor)
    assert onecopy.stats()["live_bytes"] >= before + (4 << 20)
    tensor.untyped_storage().resize_(0)
    assert onecopy.stats()["live_bytes"] == before


def test_other_sizes_are_refused_with_advice():
    tensor = torch.zeros(10)
    onecopy.share(tensor)
    for size in (20, 80):
        with pytest.raises(onecopy.Unsupported, match=r"from 40 to \d+ bytes; resize a clone\(\)"):
            tensor.untyped_storage().resize_(size)
    assert tensor.tolist() == [0] * 10
    tensor.untyped_storage().resize_(40)
    plain = torch.zeros(10)
    assert plain.untyped_storage().resize_(80).nbytes() == 80
