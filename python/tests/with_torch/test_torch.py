# SPDX-License-Identifier: Apache-2.0
"""The bridge to torch: storages move into shared memory in place, and one block is one storage."""

import gc
import os
import sys
import textwrap
import threading
import weakref

import pytest

from support.devices import eventually, needs_simulator

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import _core, errors
from support.processes import TESTS, in_threads

PLAIN = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


wants_exchange = pytest.mark.skipif(
    getattr(torch.UntypedStorage, "_swap_data_ptr_", None) is None,
    reason="wants torch 2.12: before, torch moves the storage, frees what numpy sees, and resizes it to death",
)


def storage(tensor):
    return tensor.untyped_storage()


def share(tensor):
    shared = _core.torch_share(tensor)
    assert shared is not None
    return shared


def through(tensor):
    return _core.torch_open(*share(tensor))


def live_blocks():
    gc.collect()
    _core.collect()
    return _core.stats()["live_blocks"]


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_every_dtype_arrives_with_its_bytes(dtype):
    tensor = torch.arange(48, dtype=torch.uint8).view(dtype)
    expected = tensor.view(torch.uint8).clone()
    received = through(tensor)
    assert received.dtype == dtype
    assert torch.equal(received.view(torch.uint8), expected)


def test_aliases_made_before_follow():
    base = torch.arange(6.0)
    view = base[2:]
    row = base.view(2, 3)[1]
    received = through(view)
    received.fill_(7)
    assert base.tolist() == [0, 1, 7, 7, 7, 7]
    assert view.tolist() == [7] * 4
    assert row.tolist() == [7] * 3


def test_identity_gradient_version_and_pending_backward_survive():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), 2.0)
    loss = (parameter * parameter).sum()
    identity, version = id(parameter), parameter._version
    share(parameter)
    assert id(parameter) == identity and parameter._version == version
    assert parameter.grad.tolist() == [2.0] * 3
    loss.backward()
    assert parameter.grad.tolist() == [4.0] * 3


def test_an_optimizer_goes_on_with_moved_parameters():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    received = {name: through(value) for name, value in model.state_dict().items()}
    optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(received[name], value)


def test_state_dict_values_alias_their_parameters():
    model = torch.nn.Linear(2, 2)
    received = through(model.state_dict()["weight"])
    received.zero_()
    assert model.weight.abs().sum() == 0


def test_one_block_is_one_storage():
    tensor = torch.zeros(8)
    received = through(tensor)
    part = through(tensor[3:5])
    assert storage(received)._cdata == storage(tensor)._cdata == storage(part)._cdata
    assert part.storage_offset() == 3


def test_sharing_again_copies_nothing():
    tensor = torch.zeros(1000)
    share(tensor)
    address, before = tensor.data_ptr(), _core.torch_counters()
    share(tensor)
    share(tensor.view(10, 100).t())
    assert tensor.data_ptr() == address
    assert _core.torch_counters() == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(24.0).view(4, 6)[1:, ::2],
        lambda: torch.arange(3.0).expand(4, 3),
        lambda: torch.tensor(5.0),
        lambda: torch.empty(0, 3),
        lambda: torch.empty(3, 0, 2).transpose(0, 2),
        lambda: torch.arange(5.0)[5:],
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
)
def test_shape_strides_and_values_arrive(make):
    tensor = make()
    received = through(tensor)
    assert received.shape == tensor.shape and received.stride() == tensor.stride()
    assert torch.equal(received, tensor)


def test_conjugated_and_negated_tensors_arrive_as_such():
    tensor = torch.randn(4, dtype=torch.complex64)
    for lazy in (tensor.conj(), tensor.conj().imag, tensor.conj()[1:3]):
        received = through(lazy)
        assert received.is_conj() == lazy.is_conj() and received.is_neg() == lazy.is_neg()
        assert torch.equal(received, lazy)


def test_parameters_and_leaves_arrive_as_such():
    parameter = through(torch.nn.Parameter(torch.ones(2)))
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad
    frozen = through(torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False))
    assert type(frozen) is torch.nn.Parameter and not frozen.requires_grad
    leaf = through(torch.ones(2, requires_grad=True))
    assert leaf.requires_grad and leaf.is_leaf


def test_a_tensor_inside_a_graph_is_refused_in_torchs_words():
    inside = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        _core.torch_share(inside)
    assert not _core.torch_is_shared(storage(inside))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {})),
        lambda: [1, 2],
    ],
)
def test_what_flags_cannot_say_is_left_to_the_reducers(make):
    assert _core.torch_share(make()) is None


@wants_exchange
def test_memory_that_numpy_had_goes_with_the_next_call_while_the_main_thread_waits(run_python):
    program = """
        import threading, weakref
        import numpy, onecopy, torch

        other, queue = onecopy.empty(1), onecopy.Queue()
        handle = onecopy.share(other)
        queue.put(1)
        calls = {
            "share": lambda: onecopy.share(other), "share many": lambda: onecopy.share([other]),
            "open": lambda: onecopy.open(handle), "empty": lambda: onecopy.empty(1),
            "put": lambda: queue.put(other), "get": queue.get,
        }

        def is_gone_after(call):
            array = numpy.ones(1 << 20, dtype=numpy.float32)
            former = weakref.ref(array)
            tensor = torch.from_numpy(array)
            onecopy.share(tensor)
            del array, tensor
            call()
            return former() is None

        def work():
            print([name for name, call in calls.items() if not is_gone_after(call)])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    pytest.importorskip("numpy")
    assert run_python(program) == "[]\n"


@wants_exchange
def test_a_numpy_view_made_before_stays_valid():
    tensor = torch.arange(4.0)
    array = tensor.numpy()
    received = through(tensor)
    array[0] = 9  # memory that only ours uses now
    assert received.tolist() == [0, 1, 2, 3]
    del tensor, received
    gc.collect()
    assert array.tolist() == [9, 1, 2, 3]


@wants_exchange
def test_memory_that_numpy_had_goes_with_the_tensor_that_was_moved_from_it():
    """Without another call of ours, which may be long off."""
    array = pytest.importorskip("numpy").zeros(1000)
    gone = weakref.ref(array)
    tensor = torch.from_numpy(array)
    share(tensor)
    del array
    assert gone() is not None
    del tensor
    gc.collect()
    assert eventually(lambda: gone() is None)


@wants_exchange
def test_collect_frees_memory_that_numpy_had_on_any_thread(run_python):
    """The main thread, which would do so at its next step, makes none."""
    run_python("""
        import gc, threading, weakref
        import numpy, onecopy, torch

        seen = []

        def run():
            array = numpy.zeros(1000)
            gone = weakref.ref(array)
            tensor = torch.from_numpy(array)
            onecopy.share(tensor)
            del array, tensor
            gc.collect()
            onecopy.collect()
            seen.append(gone() is None)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [True]
    """)


def test_memory_that_torch_shares_already_is_adopted_not_copied():
    tensor = torch.arange(100.0)
    torch._C.StorageBase._share_fd_cpu_(storage(tensor))
    before = _core.torch_counters()
    received = through(tensor)
    after = _core.torch_counters()
    assert after["adopted"] == before["adopted"] + 1 and after["moved"] == before["moved"]
    tensor[3] = 33
    assert received[3] == 33


@pytest.fixture
def file(tmp_path):
    """A file of sixteen float32."""
    path = tmp_path / "numbers"
    path.write_bytes(torch.arange(16.0).numpy().tobytes())
    return path


@wants_exchange
def test_a_file_that_torch_mapped_privately_is_shared_like_other_memory(file):
    tensor = torch.from_file(str(file), shared=False, size=16)
    view = tensor[3:]
    received = through(tensor)
    received.add_(1)
    assert torch.equal(tensor, torch.arange(1.0, 17.0)) and view[0] == 4
    assert _core.torch_is_shared(storage(tensor))
    assert file.read_bytes() == torch.arange(16.0).numpy().tobytes()


def test_a_file_that_torch_mapped_shared_is_refused_by_name_and_stays_the_file(file):
    tensor = torch.from_file(str(file), shared=True, size=16)
    with pytest.raises(errors.Unsupported, match=f"{file}.*torch.from_file.*clone"):
        share(tensor)
    tensor[0] = 7
    assert torch.from_file(str(file), size=16)[0] == 7
    assert torch.equal(through(tensor.clone()), tensor)


def test_our_memory_that_came_to_torch_through_numpy_or_dlpack_is_shared_where_it_is():
    ours = _core.zeros((4, 5), "float32")
    for there in (torch.from_numpy(ours.numpy()), torch.from_dlpack(ours[1:]), torch.from_numpy(ours.numpy()[2])):
        before = _core.torch_counters()
        received = through(there)
        assert _core.torch_counters() == before and _core.torch_is_shared(storage(there))
        received.add_(1)
    assert [ours[i, 0].item() for i in range(4)] == [1, 2, 3, 2]


def test_what_begins_in_the_middle_of_an_element_is_refused_and_not_read_from_elsewhere():
    ours = _core.zeros(16, "uint8")
    for begin in (2, 5):
        with pytest.raises(errors.Unsupported, match="not a multiple of its element size"):
            through(torch.from_numpy(ours.numpy()[begin : begin + 8].view("float32")))


def test_storages_are_shared_whole():
    tensor = torch.arange(10.0)[3:]
    block = _core.torch_share_storage(storage(tensor))
    assert block.nbytes == 40
    assert _core.torch_open_storage(block)._cdata == storage(tensor)._cdata
    new = _core.torch_new_shared(100)
    assert new.nbytes() == 100 and _core.torch_is_shared(new)
    assert not _core.torch_is_shared(storage(torch.zeros(2)))


@wants_exchange
def test_resizing_shared_memory_is_refused_as_torch_does():
    tensor = torch.zeros(4)
    share(tensor)
    with pytest.raises(RuntimeError, match="resizable|resize"):
        storage(tensor).resize_(1000)
    assert storage(tensor).nbytes() == 16 and tensor.tolist() == [0] * 4


def test_flags_that_contradict_the_tensor_are_refused():
    block, _ = share(torch.zeros(2, dtype=torch.int64))
    for flags in (0, 2, 1 | 2, 1 << 20 | 1):
        with pytest.raises(errors.BadHandle):
            _core.torch_open(block, flags)


def test_memory_is_given_back_with_the_last_alias():
    before = live_blocks()
    tensors = [torch.zeros(10) for _ in range(50)]
    opened = [through(t) for t in tensors]
    assert live_blocks() >= before + 50
    del tensors
    assert live_blocks() >= before + 50
    del opened
    assert live_blocks() == before


def test_threads_sharing_one_tensor_agree_on_its_memory():
    for _ in range(20):
        tensor = torch.zeros(200_000)
        barrier = threading.Barrier(4)
        received = []

        def run():
            barrier.wait()
            received.append(through(tensor))

        in_threads(run, [()] * 4)
        tensor[7] = 1
        assert len(received) == 4 and all(r[7] == 1 for r in received)


MANY_MOVERS = """
import sys, threading
import torch
import onecopy.multiprocessing as mp
from onecopy import _core

queue = mp.get_context("fork").SimpleQueue()
ways = {
    "share_memory_": lambda x: x.share_memory_(),
    "put": lambda x: queue.put(x[1:]),
    "put_storage": lambda x: queue.put(x.untyped_storage()),
}
move = ways[sys.argv[1]]
for _ in range(3):
    x = torch.ones(32 << 20)  # 128 MiB: the first is done while the others are in the middle of it
    start = threading.Barrier(3)
    threads = [threading.Thread(target=lambda: (start.wait(), move(x))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = [queue.get() for _ in threads if sys.argv[1] != "share_memory_"]
    assert bool((x == 1).all())
    x.fill_(7)
    _core.torch_open(*_core.torch_share(x))[-1] = 8
    for got in received:
        got = got if torch.is_tensor(got) else torch.empty(0).set_(got)
        assert got[0] == 7 and got[-1] == 8
    assert x[-1] == 8
"""


@pytest.mark.parametrize("way", ["share_memory_", "put", "put_storage"])
def test_threads_may_share_one_large_storage_for_the_first_time_together(run_python, way):
    run_python(MANY_MOVERS, way)


WITHOUT_AN_EXCHANGE = """
import gc, sys
import torch
torch.UntypedStorage._swap_data_ptr_ = None  # as before torch 2.12
import onecopy
from onecopy import _core

def through(tensor):
    return _core.torch_open(*_core.torch_share(tensor))

def moves(tensor):
    before = _core.torch_counters()
    received = through(tensor)
    assert torch.equal(received, tensor) and received.data_ptr() == tensor.data_ptr()
    assert received.stride() == tensor.stride() and received.storage_offset() == tensor.storage_offset()
    after = _core.torch_counters()
    return {key: after[key] - before[key] for key in after if after[key] != before[key]}

BY_US, BY_TORCH = {"moved": 1}, {"moved_by_torch": 1}
"""


@pytest.fixture
def without_an_exchange(run_python):
    """Runs the rest of a program that begins with WITHOUT_AN_EXCHANGE."""
    return lambda program: run_python(WITHOUT_AN_EXCHANGE + textwrap.dedent(program))


def test_without_an_exchange_a_tensor_that_has_its_storage_to_itself_costs_no_descriptor(without_an_exchange):
    without_an_exchange("""
    descriptors = _core.stats()["descriptors"]
    kept = []
    for make in [
        lambda: torch.arange(6.0),
        lambda: torch.ones(3, 4, dtype=torch.bfloat16),
        lambda: torch.empty_strided((3, 4), (1, 3)).fill_(5),
        lambda: torch.tensor(7),
        lambda: torch.empty(8, dtype=torch.uint16).fill_(9),
        lambda: torch.ones(4, dtype=torch.complex64),
        lambda: torch.full((1 << 20,), 3.0),  # copied without the interpreter's lock
    ]:
        kept.append(make())
        assert moves(kept[-1]) == BY_US, kept[-1]
        assert moves(kept[-1]) == {}, "shared already"
    assert _core.stats()["descriptors"] <= descriptors + 8
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()  # keeps the tensor for the backward pass
    version = weight._version
    weight.grad = torch.ones(3)
    assert moves(weight) == BY_US
    assert weight._version == version and weight.requires_grad and weight.is_leaf
    through(weight.detach()).mul_(2)  # the gradient of 2w, for the w of now
    loss.backward()
    assert weight.grad.tolist() == [5.0] * 3
    """)


def test_without_an_exchange_whoever_else_has_the_storage_sees_writes(without_an_exchange):
    without_an_exchange("""
    def view(base): return base.view(2, 3)
    def held_storage(base): return base.untyped_storage()
    def saved_for_backward(base): return (torch.ones(6, requires_grad=True) * base).sum()
    for other in [view, torch.Tensor.detach, held_storage, saved_for_backward]:
        base = torch.arange(6.0)
        has = other(base)
        received = through(base)
        received.fill_(7)
        assert base.tolist() == [7.0] * 6
        if torch.is_tensor(has) and has.numel() == 6:
            assert (has == 7).all(), other
        elif not torch.is_tensor(has):
            assert torch.empty(0).set_(has).tolist() == [7.0] * 6
    part = torch.arange(6.0)[2:]  # its base lives on in it
    assert moves(part) == BY_TORCH
    with torch.inference_mode():
        frozen = torch.ones(4)
    assert moves(frozen) == BY_TORCH and frozen.is_inference()
    """)


def test_without_an_exchange_threads_sharing_one_tensor_agree_on_its_memory(without_an_exchange):
    """And end: four once waited for each other for ever."""
    without_an_exchange("""
    import threading
    for size in [10, 1 << 20] * 10:
        tensor = torch.zeros(size)
        received = []
        start = threading.Barrier(4)
        threads = [threading.Thread(target=lambda: (start.wait(), received.append(through(tensor)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tensor[7] = 1
        assert len(received) == 4 and all(r[7] == 1 for r in received)
    """)


def test_without_an_exchange_a_thread_that_looked_first_does_not_copy_what_another_has_moved(without_an_exchange):
    """torch's methods let other threads run: one moved the storage, torch freed its memory, and the copy read that."""
    without_an_exchange("""
    import threading
    is_inference = torch.Tensor.is_inference
    received = []

    def other_thread_first(tensor):
        if threading.current_thread() is threading.main_thread() and tensor is contested and not other.ident:
            other.start()
            other.join(0.5)  # it waits for this thread by now, or is through
        return is_inference(tensor)

    torch.Tensor.is_inference = other_thread_first
    contested = torch.zeros(1 << 20)
    other = threading.Thread(target=lambda: received.append(through(contested)))
    received.append(through(contested))
    other.join()
    contested[7] = 1
    assert len(received) == 2 and all(r[7] == 1 for r in received)
    """)


def test_without_an_exchange_a_child_does_not_wait_for_its_parents_threads(without_an_exchange):
    """It inherited word of a copy that no thread of its is making."""
    without_an_exchange("""
    import os, threading, time
    torch.set_num_threads(1)  # torch's own do not survive a fork
    through(torch.ones(1))
    tensor = torch.ones(1 << 26)
    copier = threading.Thread(target=through, args=(tensor,))
    copier.start()
    time.sleep(0.02)  # most of the copy is still to come
    child = os.fork()
    if child == 0:
        os._exit(0 if through(tensor)[-1] == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    copier.join()
    """)


def test_without_an_exchange_tensors_stay_what_they_are_whatever_mode_shares_them(without_an_exchange):
    """A tensor that torch makes in inference mode, or inside a transform, cannot stand in for a plain one."""
    without_an_exchange("""
    through(torch.ones(1))
    for make in [lambda: torch.ones(3), lambda: torch.empty_strided((3, 4), (1, 3)).fill_(1)]:
        weight = torch.nn.Parameter(make())
        with torch.inference_mode():
            through(weight)
        assert not weight.is_inference()
        (weight.view(-1) if weight.is_contiguous() else weight.t()).square().sum().backward()
        assert (weight.grad == 2).all()

        weight = torch.nn.Parameter(make())

        def share_and_square(x):
            _core.torch_share(weight)
            return (x * x).sum()

        torch.func.grad(share_and_square)(torch.ones(3))
        assert weight.untyped_storage().nbytes() == weight.nbytes and weight.sum() == weight.numel()
    """)


def test_without_an_exchange_a_finalizer_may_share_what_is_being_shared(without_an_exchange):
    """Making containers may run the collector: the thread then waited for itself."""
    without_an_exchange("""
    class Finalized:
        def __init__(self):
            self.me = self

        def __del__(self):
            through(tensor)

    through(torch.ones(2))
    gc.disable()
    gc.collect()
    gc.freeze()
    for threshold in range(1, 40):
        tensor = torch.empty_strided((3, 4), (1, 3)).fill_(5)
        gc.collect()
        gc.set_threshold(threshold)
        Finalized()
        gc.enable()
        received = through(tensor)
        gc.disable()
        received.fill_(threshold)
        assert (tensor == threshold).all()
    """)


def test_without_an_exchange_many_tensors_live_with_few_descriptors(without_an_exchange):
    without_an_exchange("""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    queue = onecopy.Queue()
    kept = [torch.full((300,), float(i)) for i in range(500)]
    for tensor in kept:
        queue.put(tensor)
    assert all(torch.equal(queue.get(), tensor) for tensor in kept)
    blocks = _core.stats()["live_blocks"]
    del kept, tensor
    gc.collect()
    onecopy.collect()
    assert _core.stats()["live_blocks"] <= blocks - 499
    """)


def test_without_an_exchange_torch_moves_the_storage_and_we_adopt_it(run_python):
    program = """
import torch
torch.UntypedStorage._swap_data_ptr_ = None  # as before torch 2.12
from onecopy import _core
base = torch.arange(6.0)
view = base[2:]
received = _core.torch_open(*_core.torch_share(view))
received.fill_(7)
assert base.tolist() == [0, 1, 7, 7, 7, 7], base
assert received.untyped_storage()._cdata == base.untyped_storage()._cdata
assert _core.torch_counters() == {"moved": 0, "moved_by_torch": 1, "adopted": 0}
for i in range(300):  # torch maps the next file where the last one was
    fresh = torch.full((10 + i,), float(i))[1:]
    shared = _core.torch_open(*_core.torch_share(fresh))
    assert torch.equal(shared, fresh) and shared.untyped_storage()._cdata == fresh.untyped_storage()._cdata
    del fresh, shared
"""
    run_python(program)


def test_without_an_exchange_what_was_shared_once_is_shared_again(run_python, tmp_path):
    """torch has its own mapping of the memory then: the tensor's address is not the block's."""
    reader = tmp_path / "reader.py"
    reader.write_text("""
import sys, onecopy
bundle = onecopy.open(sys.argv[1])
print([onecopy.open(text).tolist() for text in sys.argv[2:]])
print([bundle[str(i)].tolist() for i in range(len(sys.argv) - 2)])
""")
    program = """
import subprocess, sys, torch
torch.UntypedStorage._swap_data_ptr_ = None  # as before torch 2.12
import onecopy
base = torch.arange(6.0)
views = [base, base, base[2:], base.view(2, 3), base[:0], base.detach()]
handles = [onecopy.share(x) for x in views]
bundle = onecopy.share({str(i): x for i, x in enumerate(views)})
base[3] = 9
for x in views:
    assert torch.equal(onecopy.open(onecopy.share(x).to_bytes(), framework="torch"), x)
texts = [str(handle) for handle in (bundle, *handles)]
seen = subprocess.run([sys.executable, sys.argv[1], *texts], capture_output=True, text=True)
values = str([x.tolist() for x in views])
assert seen.stdout.splitlines() == [values, values], (seen.stdout, seen.stderr)
"""
    run_python(program, str(reader))


LOOKED_AT = """
    import ctypes, gc, sys
    import onecopy, torch
    from support.devices import CUDA, open_driver
    from onecopy import _core

    look = torch.UntypedStorage._new_with_weak_ptr
    meanwhile = [lambda: None]

    def look_and_be_interrupted(weak):
        storage = look(weak)
        meanwhile.pop()() if meanwhile else None
        return storage

    torch.UntypedStorage._new_with_weak_ptr = look_and_be_interrupted
    if sys.argv[1] == "moved by torch":
        torch.UntypedStorage._swap_data_ptr_ = None  # as before torch 2.12
        make = lambda: torch.zeros(10).untyped_storage()
        is_known = lambda storage, block: _core.torch_open_storage(block)._cdata == storage._cdata
    else:
        driver = open_driver(CUDA)
        is_known = lambda storage, block: block.data_ptr == storage.data_ptr()

        class OnDevice(torch.UntypedStorage):
            device = property(lambda self: torch.device("cuda", 0))

        def make():
            memory = (ctypes.c_byte * 64).from_address(driver.memory(64))
            storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
            storage.__class__ = OnDevice
            return storage

    def share_many(count):
        storages = [make() for _ in range(count)]
        for storage in storages:
            _core.torch_share_storage(storage)
        return storages

    def drop_and_share():
        onecopy.collect()
        kept.extend(share_many(500))

    kept = share_many(20)
    share_many(40)
    gc.collect()
    meanwhile.append(drop_and_share)
    onecopy.collect()
    assert not meanwhile and len(kept) == 520
    share_many(1000)
    onecopy.collect()
    assert all(is_known(storage, _core.torch_share_storage(storage)) for storage in kept)
"""


@pytest.mark.parametrize("kind", ["moved by torch", "of a device"])
def test_storages_may_be_shared_and_dropped_while_others_are_looked_at(run_python, kind):
    """As finalizers do, which may run wherever Python code does."""
    environment = needs_simulator() | {"PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    run_python(LOOKED_AT, kind, env=environment)


TABLE = """
import threading, weakref
import onecopy
from onecopy import _core

class Call:
    pass

def is_found():
    \"\"\"Whether a table takes the call in: it can look at the key's tensors.\"\"\"
    import torch
    table, call = _core._GraphCallTable("cpu", [0], 8), Call()
    known = weakref.ref(call)
    table.add([torch.ones(3)], call)
    del call
    return known() is not None
"""

EARLY = (
    TABLE
    + """
tree = onecopy.open(onecopy.share({"a": onecopy.full(3, 1.0)}))  # without torch
assert "torch" not in __import__("sys").modules
del tree
assert is_found()
"""
)

TWO_THREADS = (
    TABLE
    + """
import torch
empty, others = torch.empty, []

def empty_while_another_asks(*arguments, **named):
    if not others:
        others.append(threading.Thread(target=lambda: found.append(is_found())))
        others[0].start()
        others[0].join()
    return empty(*arguments, **named)

found = []
torch.empty = empty_while_another_asks
assert is_found() and found == [True] and others
"""
)


def test_the_c_interface_of_torch_is_found_after_it_was_asked_for_without_torch(run_python):
    run_python(EARLY, env={"PYTHONUNBUFFERED": "1"})  # an interpreter of its own, without torch


def test_two_threads_may_look_for_the_c_interface_of_torch_at_once(run_python):
    run_python(TWO_THREADS, env={"PYTHONUNBUFFERED": "1"})  # which nothing has looked for
