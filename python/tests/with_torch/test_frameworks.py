# SPDX-License-Identifier: Apache-2.0
"""share() and open() of torch tensors by hand, without onecopy.multiprocessing."""

import pytest

import onecopy

torch = pytest.importorskip("torch")

ADD_ONE = """
    import sys, torch, onecopy
    x = onecopy.open(sys.argv[1], framework="torch")
    x += 1
    print(type(x).__name__, x.tolist(), x.stride(), x.storage_offset(), x.requires_grad)
"""


def test_the_tensor_itself_is_shared(run_python):
    x = torch.arange(6.0).view(2, 3)
    row, flat = x[1], x.flatten()
    handle = onecopy.share(x)
    assert run_python(ADD_ONE, str(handle)) == "Tensor [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]] (3, 1) 0 False\n"
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert row.tolist() == [4, 5, 6] and flat[0] == 1, "views made before follow"


def test_a_view_goes_with_its_storage(run_python):
    x = torch.zeros(4, 4)
    assert run_python(ADD_ONE, str(onecopy.share(x[1:, 2]))) == "Tensor [1.0, 1.0, 1.0] (4,) 6 False\n"
    assert x.sum() == 3 and onecopy.share(x[1:, 2]).storage_nbytes == 64


def test_a_storage_is_moved_once():
    x = torch.ones(10)
    before = onecopy.stats()
    for tensor in (x, x, x[2:], x.view(2, 5), x.detach()):
        onecopy.share(tensor)
    after = onecopy.stats()
    moved = "torch_moved" if getattr(torch.UntypedStorage, "_swap_data_ptr_", None) else "torch_moved_by_torch"
    assert after[moved] == before[moved] + 1
    assert after["live_blocks"] == before["live_blocks"] + 1


def test_torch_keeps_the_memory():
    x = onecopy.full(3, 2.0).torch()
    onecopy.collect()
    assert x.tolist() == [2, 2, 2]
    blocks = onecopy.stats()["live_blocks"]
    del x
    assert onecopy.stats()["live_blocks"] == blocks - 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
                                   "float8_e8m0fnu", "bool", "uint16", "complex64"])  # fmt: skip
def test_every_dtype_of_torch(dtype):
    x = torch.ones(3).to(getattr(torch, dtype))
    t = onecopy.open(onecopy.share(x))
    assert t.dtype == dtype and t.tolist() == [1, 1, 1]
    assert t.torch().dtype == x.dtype and t.torch().data_ptr() == x.data_ptr()
    assert onecopy.empty(1, x.dtype, x.device).dtype == dtype


def test_leaves_that_require_grad_open_as_plain_tensors():
    x = torch.ones(3, requires_grad=True)
    opened = onecopy.open(onecopy.share(x), framework="torch")
    assert not opened.requires_grad and opened.data_ptr() == x.data_ptr() and x.requires_grad


@pytest.mark.parametrize(
    "tensor, error, message",
    [
        (lambda: torch.eye(2).to_sparse(), onecopy.Unsupported, r"\bx\b"),
        (lambda: torch.eye(2, device="meta"), onecopy.Unsupported, r"\bx\b"),
        (lambda: torch.tensor([1j]).conj(), onecopy.Unsupported, "resolve_conj"),
        (lambda: torch.tensor([1j]).conj().imag, onecopy.Unsupported, "resolve_conj"),
        (lambda: torch.ones(1, requires_grad=True) * 2, RuntimeError, "non-leaf tensor which requires_grad"),
    ],
)
def test_what_a_handle_cannot_say_is_refused(tensor, error, message):
    with pytest.raises(error, match=message):
        onecopy.share(tensor())


def test_copy_leaves_the_original_where_it_is():
    x = torch.ones(3, requires_grad=True)
    address, y = x.data_ptr(), x * 2
    for tensor, values in ((x, [1, 1, 1]), (y, [2, 2, 2]), (torch.tensor([1j]).conj(), [-1j])):
        assert onecopy.open(onecopy.share(tensor, copy=True)).tolist() == values
    assert x.data_ptr() == address
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_subclasses_are_moved_in_place():
    class Mine(torch.Tensor):
        pass

    mine = torch.zeros(3).as_subclass(Mine)
    onecopy.open(onecopy.share(mine))[0] = 4
    assert mine.tolist() == [4, 0, 0] and type(mine) is Mine


def test_foreign_memory_to_torch():
    array = bytearray(8)
    x = onecopy.from_dlpack(torch.frombuffer(array, dtype=torch.uint8)).torch()
    x[0] = 3
    assert array[0] == 3


def test_tensors_are_copied_from_torch():
    t = onecopy.zeros((2, 2), "bfloat16")
    t.copy_from(torch.arange(4, dtype=torch.bfloat16).view(2, 2).t())
    assert t.tolist() == [[0, 2], [1, 3]]
    t[0] = torch.tensor([8, 9], dtype=torch.bfloat16)
    assert t.tolist() == [[8, 9], [1, 3]]


def test_read_only_opens_share_nothing_that_could_be_written(run_python):
    program = """
        import sys, torch, onecopy
        x = onecopy.open(sys.argv[1], access="read", framework="torch")
        print(x.sum().item())
        try:
            onecopy.open(onecopy.share(x))
        except onecopy.ReadOnly as error:
            print(error.code)
    """
    t = onecopy.full(3, 2)
    assert run_python(program, str(onecopy.share(t))) == "6.0\nread_only\n"
