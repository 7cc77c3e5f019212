# SPDX-License-Identifier: Apache-2.0
"""Subclasses of torch.Tensor: their values are shared, and those without memory of their own are refused."""

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

import onecopy  # noqa: E402


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)


def masked():
    from torch.masked import masked_tensor

    return masked_tensor(torch.ones(2), torch.tensor([True, False]))


def two():
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.ones(2), torch.ones(2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [fake, masked, two])
@pytest.mark.parametrize("copy", [False, True])
def test_tensors_made_of_other_tensors_are_refused(make, copy):
    tensor = make()
    with pytest.raises(onecopy.Unsupported, match="^x is a .*no memory of its own; share the tensors"):
        onecopy.share(tensor, copy=copy)
    with pytest.raises(onecopy.Unsupported, match=r'^x at "a\.0" is a '):
        onecopy.share({"a": [tensor]}, copy=copy)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="wants torch.distributed")
def test_a_distributed_tensor_is_refused_and_its_local_part_is_not():
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, Replicate, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = distribute_tensor(torch.ones(2), DeviceMesh("cpu", [0]), [Replicate()])
        with pytest.raises(onecopy.Unsupported, match="to_local"):
            onecopy.share({"t": tensor})
        assert onecopy.open(onecopy.share(tensor.to_local())).tolist() == [1, 1]
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [masked, two])
def test_storages_without_memory_are_not_shared_and_are_refused(make):
    import onecopy.multiprocessing  # noqa: F401

    tensor = make()
    assert not tensor.is_shared()
    with pytest.raises(onecopy.Unsupported, match="no memory of its own"):
        tensor.share_memory_()
