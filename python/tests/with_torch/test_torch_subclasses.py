# SPDX-License-Identifier: Apache-2.0
"""Subclasses of torch.Tensor: their values are shared, and subclasses without memory of their own are refused."""

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

import onecopy


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
    import onecopy.multiprocessing

    tensor = make()
    assert not tensor.is_shared()
    with pytest.raises(onecopy.Unsupported, match="no memory of its own"):
        tensor.share_memory_()


class Mine(torch.Tensor):
    pass


class MyParameter(torch.nn.Parameter):
    pass


def leaf():
    return torch.ones(2).as_subclass(Mine).requires_grad_()


def opened(value):
    return onecopy.open(onecopy.share({"a": value}), framework="torch").tree()["a"]


@pytest.mark.parametrize("make", [lambda: MyParameter(torch.ones(2)), lambda: torch.nn.Parameter(leaf().detach())])
@pytest.mark.parametrize("wants_grad", [False, True])
def test_a_parameter_of_a_subclass_is_shared_as_a_parameter(make, wants_grad):
    parameter = make().requires_grad_(wants_grad)
    other = opened(parameter)
    assert type(other) is torch.nn.Parameter and other.requires_grad == wants_grad and other.is_leaf
    with torch.no_grad():
        other[0] = 5
    assert parameter.tolist() == [5, 1], "one memory"
    assert onecopy.open(onecopy.share(parameter)).tolist() == [5, 1]


def test_a_leaf_of_a_subclass_still_requires_grad():
    tensor = leaf()
    other = opened(tensor)
    assert type(other) is torch.Tensor and other.requires_grad and other.is_leaf
    copied = onecopy.open(onecopy.share([tensor], copy=True), framework="torch").tree()[0]
    assert copied.requires_grad and copied.tolist() == [1, 1]
    (tensor * 2).sum().backward()
    assert tensor.grad.tolist() == [2, 2] and type(tensor) is Mine, "the original is what it was"


def test_a_tensor_of_a_subclass_in_a_graph_is_refused_and_its_copy_is_not():
    inside = leaf() * 2
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        onecopy.share(inside)
    assert onecopy.open(onecopy.share(inside, copy=True)).tolist() == [2, 2]


def test_a_module_with_parameters_of_a_subclass_is_shared():
    model = torch.nn.Linear(2, 2)
    model.weight = MyParameter(torch.ones(2, 2))
    bundle = onecopy.open(onecopy.share(model), framework="torch")
    assert bundle.tree()["weight"].requires_grad and bundle["weight"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("copy", [False, True])
def test_a_lazy_module_has_to_run_once_first(copy):
    model = torch.nn.LazyLinear(3)
    with pytest.raises(onecopy.InvalidArgument, match='^x at "weight" .*run the lazy module once first'):
        onecopy.share(model, copy=copy)
    model(torch.ones(1, 2))
    assert onecopy.open(onecopy.share(model, copy=copy))["weight"].shape == (3, 2)
