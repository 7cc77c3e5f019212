# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors on CUDA devices: only where torch has a GPU (tests/gpu/rpc.sh runs them there)."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from onecopy.distributed import rpc
from support.rpc_group import is_plain, shared_group

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # the processes of other tests are forked from here

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA GPU")

LONG = 1_000_000_000  # cycles of a GPU: about half a second


last = torch.cuda.device_count() - 1
pair = shared_group(2, device_maps={"worker1": {0: last}, "worker0": {last: 0}})


# --- run in members


def echo(value):
    return value


def add_five(tensor):
    return tensor.add_(5)


def slow_five(tensor):
    torch.cuda._sleep(LONG)
    return tensor.add_(5)


def device_of(tensor):
    return str(tensor.device)


def call(function, *args):
    return rpc.rpc_sync("worker1", function, args=args)


def natively_added():
    import onecopy.rpc as native

    return [str(native.call("worker1", torch.add, (torch.ones(1, device="cuda:0"), 1)).device) for _ in range(3)][-1]


def where_it_goes():
    return [call(device_of, torch.ones(1, device="cuda:0")) for _ in range(3)][-1]


def plain_with(shape, dtype):
    return is_plain(echo, torch.ones(shape, dtype=dtype, device="cuda:0"))


def values_of(function, *shape):
    mine = torch.zeros(*shape, device="cuda:0")
    for _ in range(3):
        theirs = call(function, mine)
    return mine.unique().tolist(), theirs.unique().tolist(), str(theirs.device)


def in_a_stream_of_ones_own():
    """The callee sees writes that its caller's stream has before the call; work after it in the stream sees the
    result.
    """
    stream, right = torch.cuda.Stream(), []
    call(slow_five, torch.zeros(4, device="cuda:0"))
    with torch.cuda.stream(stream):
        for i in range(5):
            torch.cuda._sleep(LONG // 10)
            mine = torch.full((1 << 16,), float(i), device="cuda:0")
            theirs = call(slow_five if i % 2 else add_five, mine)
            mine.fill_(-1)
            right.append(bool((theirs == i + 5).all()))
    return right


def views():
    matrix = torch.arange(12.0, device="cuda:0").reshape(3, 4)
    empty = torch.empty(0, 3, device="cuda:0")
    leaf = torch.ones(2, device="cuda:0", requires_grad=True)
    return [call(echo, t).tolist() for t in (matrix.t(), matrix[:, 1], matrix[1], leaf)], tuple(call(echo, empty).shape)


def many():
    made = {"a": [torch.full((3,), float(i), device="cuda:0") for i in range(40)], "b": torch.ones(2), "c": 7}
    back = call(echo, made)
    return [t.tolist() for t in back["a"]] == [t.tolist() for t in made["a"]] and back["b"].tolist() == [1, 1]


def twice_the_same():
    one = torch.zeros(2, device="cuda:0")
    first, second = call(echo, (one, one))
    return first is second


def memory_after(calls, nbytes):
    tensor = torch.ones(nbytes // 4, device="cuda:0")
    for i in range(calls):
        call(echo, tensor)
        if i % 10 == 0:
            torch.cuda.synchronize()  # a call is over once the cards have done its copies
        if i == 20:
            before = torch.cuda.memory_reserved()
    torch.cuda.synchronize()
    return (torch.cuda.memory_reserved() - before) / nbytes


# --- tests


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (1 << 20,)])
def test_calls_with_tensors_of_a_card_are_plain(pair, shape, dtype):
    assert pair[0](plain_with, shape, dtype)


def test_a_tensor_goes_to_the_card_that_the_map_says(pair):
    assert pair[0](where_it_goes) == f"cuda:{torch.cuda.device_count() - 1}"


def test_the_callee_may_change_what_it_got_and_the_caller_keeps_its_own(pair):
    assert pair[0](values_of, add_five, 1000) == ([0], [5], "cuda:0")


def test_work_in_streams_is_ordered_on_both_sides(pair):
    assert pair[0](in_a_stream_of_ones_own) == [True] * 5


def test_views_come_back_with_their_elements(pair):
    matrix = [[0.0, 4.0, 8.0], [1.0, 5.0, 9.0], [2.0, 6.0, 10.0], [3.0, 7.0, 11.0]]
    assert pair[0](views) == ([matrix, [1, 5, 9], [4, 5, 6, 7], [1, 1]], (0, 3))


def test_many_tensors_of_a_call_come_in_their_places(pair):
    assert pair[0](many)


def test_one_tensor_given_twice_is_one_there(pair):
    assert pair[0](twice_the_same)


def test_memory_of_calls_that_are_over_is_used_again(pair):
    assert pair[0](memory_after, 200, 64 << 20) <= 4


def test_a_group_without_maps_leaves_a_tensor_on_its_card(tmp_path):
    from support.rpc_group import NativeGroup

    with NativeGroup(tmp_path, 2, allow=["torch.add"]) as group:
        assert group[0](natively_added) == "cuda:0"
