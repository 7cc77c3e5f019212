# SPDX-License-Identifier: Apache-2.0
"""torch tensors on CUDA devices: only where torch has a GPU (tests/gpu/python.sh runs them there)."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.devices import borrower, driver, eventually, is_simulated, on_device, settled

torch = pytest.importorskip("torch")

import onecopy
import onecopy.multiprocessing as mp
from onecopy.__main__ import command_to_start
from onecopy.multiprocessing.reductions import reduce_storage, reduce_tensor

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # the processes of other tests are forked from here

pytestmark = [
    pytest.mark.usefixtures("device_processes"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA GPU"),
    pytest.mark.skipif(driver() is not None and is_simulated(), reason="wants a CUDA GPU and its own driver"),
]

LONG = 1_000_000_000  # cycles of a GPU: about half a second


# --- what the other process does --------------------------------------------------------------------

kept: dict[str, object] = {}


def open_torch(handle: bytes, **keywords):
    return onecopy.open(handle, framework="torch", **keywords)


def describe(handle: bytes):
    tensor = open_torch(handle)
    assert tensor.is_cuda
    return tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device), tensor.cpu().tolist()


def leases() -> int:
    return onecopy.stats()["leases"]


def add_one(handle: bytes) -> None:
    open_torch(handle).add_(1)
    torch.cuda.synchronize()


def same_storage(first: bytes, second: bytes) -> bool:
    a, b = open_torch(first), open_torch(second)
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def keep(handle: bytes) -> None:
    kept["tensor"] = open_torch(handle)


def kept_values() -> list:
    return kept["tensor"].cpu().tolist()


def drop_kept() -> None:
    kept.clear()
    gc.collect()


def add_to(tensor, value):
    tensor.add_(value)
    torch.cuda.synchronize()
    return type(tensor).__name__, tensor.requires_grad, tensor.tolist()


def give_back(tensor):
    return tensor


def rebuild(function, arguments):
    tensor = function(*arguments)
    return str(tensor.device), tensor.tolist()


def clone_in_a_stream(handle: bytes):
    """Whether the host came back before the data was there, and what the stream then saw."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = open_torch(handle)
        was_quick = not stream.query()
        copied = tensor.clone()
        del tensor
    stream.synchronize()
    return was_quick, copied.unique().tolist()


def write_late(handle: bytes) -> None:
    """Puts a write into a stream behind something long, and lets go of the tensor at once."""
    stream = kept["stream"] = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = open_torch(handle)
        torch.cuda._sleep(LONG)
        tensor.fill_(9)
        del tensor


def is_still_writing() -> bool:
    return not kept["stream"].query()


def wait_for_event(event, handle: bytes) -> list:
    tensor = onecopy.open(handle, framework="torch")
    torch.cuda.current_stream().wait_event(event)
    return tensor.cpu().unique().tolist()


def open_state(handle: bytes):
    tree = onecopy.open(handle, framework="torch").tree()
    return {
        name: (type(value).__name__, str(value.device), float(value.detach().sum())) for name, value in tree.items()
    }


# --- sharing in place -------------------------------------------------------------------------------


@on_device
def test_a_torch_tensor_is_shared_where_it_is():
    tensor = torch.arange(12, dtype=torch.float32, device="cuda:0").reshape(3, 4)
    before = tensor.data_ptr()
    handle = onecopy.share(tensor)
    assert tensor.data_ptr() == before, "it was moved"
    expected = ((3, 4), (4, 1), "torch.float32", "cuda:0", tensor.tolist())
    assert borrower(describe, handle.to_bytes()) == expected
    borrower(add_one, handle.to_bytes())
    assert tensor.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


@on_device
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float8_e4m3fn", "complex64"])
def test_views_of_every_kind_of_element_cross(dtype):
    whole = torch.tensor([0, 1, 1, 0, 1, 0], device="cuda:0").to(getattr(torch, dtype)).reshape(2, 3)
    view = whole[:, 1:]
    handle = onecopy.share(view)
    shape, stride, name, _, values = borrower(describe, handle.to_bytes())
    assert (shape, stride, name) == ((2, 2), (3, 1), f"torch.{dtype}")
    assert values == view.cpu().tolist()


@on_device
def test_one_storage_is_one_block_and_one_storage_over_there():
    tensor = torch.zeros(100, device="cuda:0")
    first, second = onecopy.share(tensor[:10]), onecopy.share(tensor[50:])
    assert borrower(same_storage, first.to_bytes(), second.to_bytes())
    home = onecopy.open(first, framework="torch")
    assert home.untyped_storage()._cdata == tensor.untyped_storage()._cdata, "it is our own"


@on_device
def test_torchs_memory_is_kept_until_the_last_lease_ends():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    tensor = torch.full((1 << 20,), 5.0, device="cuda:0")
    handle = onecopy.share(tensor[:4])
    borrower(keep, handle.to_bytes())
    del tensor, handle
    gc.collect()
    torch.full((1 << 20,), 6.0, device="cuda:0")  # would take the place
    assert torch.cuda.memory_allocated() > before, "torch may use it again although a borrower has it"
    assert borrower(kept_values) == [5, 5, 5, 5]
    borrower(drop_kept)
    assert eventually(lambda: torch.cuda.memory_allocated() <= before)


@on_device
def test_a_handle_written_down_is_good_as_long_as_the_tensor():
    tensor = torch.full((4,), 5.0, device="cuda:0")
    data = onecopy.share(tensor).to_bytes()
    gc.collect()
    before = settled(lambda: borrower(leases))  # leases of earlier tests end later, and would hide this one
    assert borrower(describe, data)[4] == [5, 5, 5, 5]
    del tensor
    gc.collect()
    assert eventually(lambda: borrower(leases) <= before), "the borrower's own lease ends with a tick"
    onecopy.collect()
    with pytest.raises(onecopy.StaleHandle):
        borrower(describe, data)


def mean_of_kept() -> float:
    return kept["tensor"][::4096].float().mean().item()


def get_and_keep(queue) -> float:
    kept["tensor"] = queue.get(timeout=60)
    return mean_of_kept()


def mean_of_rebuilt(function, arguments) -> float:
    return function(*arguments)[::4096].float().mean().item()


def free_bytes() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


@on_device
def test_a_tensor_of_a_version_is_sent_without_a_copy(tmp_path):
    size = 1 << 28
    os.environ["ONECOPY_STORE_DIR"] = str(tmp_path / "store")
    try:
        store = onecopy.store.connect()
        store.publish("weights", {"w": torch.full((size,), 7, dtype=torch.uint8)}, device="cuda:0")
        version = store.open("weights")
        queue = onecopy.Queue()
        queue.put(torch.ones(1, device="cuda:0"))
        borrower(get_and_keep, queue)  # makes the contexts
        before = free_bytes()
        queue.put(version["w"])
        assert borrower(get_and_keep, queue) == 7
        for row in (version["w"], version["w"][5:]):
            assert borrower(mean_of_rebuilt, *reduce_tensor(row)) == 7
        assert before - free_bytes() < size // 4, "the card holds a copy"
        del version
        store.delete("weights")
        gc.collect()
        assert borrower(mean_of_kept) == 7
        borrower(drop_kept)
        assert eventually(lambda: free_bytes() - before > size // 2), "the version's memory is freed with its receiver"
    finally:
        subprocess.run([command_to_start(), "store", "stop"], check=True)


@on_device
def test_a_handle_of_a_followers_tensor_does_not_keep_the_version_that_it_showed(tmp_path):
    os.environ["ONECOPY_STORE_DIR"] = str(tmp_path / "store")
    try:
        store = onecopy.store.connect()
        for value in (1, 2):
            store.publish("weights", {"w": torch.full((1 << 20,), value, dtype=torch.uint8)}, device="cuda:0", keep=1)
            if value == 1:
                follower = store.follow("weights")
                onecopy.share(follower["w"])
        assert follower.update() == 2 and follower["w"][0].item() == 2
        gc.collect()

        def numbers():
            onecopy.collect()
            return [version["version"] for version in store.list()[0]["versions"]]

        assert eventually(lambda: numbers() == [2])
    finally:
        subprocess.run([command_to_start(), "store", "stop"], check=True)


@on_device
def test_onecopys_own_memory_is_a_torch_tensor_and_back():
    ours = onecopy.full((2, 3), 4, device="cuda:0")
    tensor = ours.torch()
    assert (str(tensor.device), tensor.data_ptr()) == ("cuda:0", ours.data_ptr)
    tensor[0, 0] = 1
    assert ours.tolist() == [[1, 4, 4], [4, 4, 4]]
    handle = onecopy.share(tensor)
    del ours, tensor
    assert borrower(describe, handle.to_bytes())[4] == [[1, 4, 4], [4, 4, 4]]
    by_dlpack = torch.from_dlpack(onecopy.full(3, 2, "int32", "cuda:0"))
    assert by_dlpack.tolist() == [2, 2, 2]
    imported = onecopy.from_dlpack(by_dlpack)
    assert (imported.device, imported.is_shared) == ("cuda:0", True)


@on_device
def test_copies_leave_the_original_alone():
    tensor = torch.ones(4, device="cuda:0", requires_grad=True)
    handle = onecopy.share(tensor * 2, copy=True)
    assert borrower(describe, handle.to_bytes())[4] == [2, 2, 2, 2]


@on_device
def test_a_module_is_shared_in_place_if_copying_is_refused():
    module = torch.nn.Linear(8, 4, device="cuda:0")
    before = [tensor.data_ptr() for tensor in module.parameters()]
    handle = onecopy.share(module, copy=False)
    assert [tensor.data_ptr() for tensor in module.parameters()] == before
    found = borrower(open_state, handle.to_bytes())
    assert set(found) == {"weight", "bias"}
    assert found["weight"][:2] == ("Parameter", "cuda:0")
    assert found["weight"][2] == pytest.approx(float(module.weight.detach().sum()), rel=1e-5)


class Tied(torch.nn.Module):
    """Linear layers of which two have one weight, a half of a larger storage, and a buffer."""

    def __init__(self):
        super().__init__()
        both = torch.randn(2, 64, 64, device="cuda:0")
        self.first, self.second = torch.nn.Parameter(both[0]), torch.nn.Parameter(both[1])
        self.layer, self.again = (torch.nn.Linear(64, 64, device="cuda:0") for _ in range(2))
        self.again.weight = self.layer.weight
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64, device="cuda:0"), persistent=False)


def is_ours(tensor):
    return onecopy._core.torch_is_shared(tensor.untyped_storage())


@on_device
def test_a_module_moves_into_memory_of_onecopy_and_stays_what_it_was():
    module = Tied()
    values = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    parameters = dict(module.named_parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    held = torch.cuda.memory_allocated()
    handle = onecopy.share(module)
    assert torch.cuda.memory_allocated() < held, "torch has its memory back"
    assert all(is_ours(tensor) for tensor in (*module.parameters(), *module.buffers()))
    assert all(parameters[name] is tensor for name, tensor in module.named_parameters())
    assert module.again.weight is module.layer.weight and module.layer.weight.requires_grad
    assert module.first.untyped_storage()._cdata == module.second.untyped_storage()._cdata
    assert all(torch.equal(tensor, values[name]) for name, tensor in module.state_dict().items())
    places = [tensor.data_ptr() for tensor in module.parameters()]
    module.layer(torch.ones(64, device="cuda:0")).sum().backward()
    optimizer.step()
    torch.cuda.synchronize()
    found = borrower(open_state, handle.to_bytes())
    assert found["layer.weight"][2] == pytest.approx(float(module.layer.weight.detach().sum()), rel=1e-4)
    assert not torch.equal(module.layer.weight, values["layer.weight"])
    onecopy.share(module)
    assert [tensor.data_ptr() for tensor in module.parameters()] == places, "it was moved again"


TRAINER = """
import sys, time, torch, onecopy
module = torch.nn.Linear(1000, 1000, device="cuda:0")
torch.nn.init.constant_(module.weight, 6)
torch.cuda.synchronize()
handle = onecopy.share(module, copy=COPY)
print(handle, flush=True)
time.sleep(600)
"""


def engine_of_a_killed_trainer(copy):
    program = f"COPY = {copy}\n{TRAINER}"
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        engine = torch.nn.Linear(1000, 1000, device="cuda:0")
        onecopy.open(owner.stdout.readline().strip()).load_into(engine)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    return engine


@on_device
def test_a_moved_module_outlives_its_killed_trainer_and_can_be_shared_again():
    engine = engine_of_a_killed_trainer(copy=None)
    torch.zeros(64 << 20, device="cuda:0")  # would take the place of freed memory
    assert engine.weight.unique().tolist() == [6.0]
    again = onecopy.share(engine.weight.detach()[:1, :2])
    assert borrower(describe, again.to_bytes())[4] == [[6.0, 6.0]]


@on_device
def test_a_module_that_was_not_moved_ends_with_its_trainer_and_the_log_says_so():
    said = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("onecopy").addHandler(listener)
    engine = engine_of_a_killed_trainer(copy=False)
    assert eventually(lambda: any("are invalid now" in text and "a module shared as a whole" in text for text in said))
    del engine


@on_device
@pytest.mark.parametrize("reason", ["a view outside", "a graph", "an earlier handle"])
def test_a_module_stays_where_it_is_while_others_use_its_memory(reason):
    module = torch.nn.Linear(64, 64, device="cuda:0")
    if reason == "a graph":
        graph, x = torch.cuda.CUDAGraph(), torch.ones(64, device="cuda:0")
        with torch.no_grad():
            module(x)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = module(x)
    kept = {
        "a view outside": lambda: module.weight.detach()[1:],
        "an earlier handle": lambda: onecopy.share(module.weight.detach()),
        "a graph": lambda: None,
    }[reason]()
    before = module.weight.data_ptr()
    handle = onecopy.share(module)
    assert module.weight.data_ptr() == before
    with torch.no_grad():
        module.weight.fill_(2)
        module.bias.fill_(0)
    torch.cuda.synchronize()
    assert borrower(open_state, handle.to_bytes())["weight"][2] == 2 * 64 * 64
    if reason == "a graph":
        graph.replay()
        assert y.unique().tolist() == [128.0]
    del kept


@on_device
def test_expandable_segments_are_shared_in_place():
    program = """
import sys, torch, onecopy, subprocess
if len(sys.argv) > 1:
    print(onecopy.open(sys.argv[1], framework="torch")[[0, -1]].tolist())
    sys.exit()
big = torch.empty(30 << 20, dtype=torch.uint8, device="cuda:0").fill_(3)  # lies in several chunks
big[-1] = 4
before = big.data_ptr()
handle = onecopy.share(big)
assert big.data_ptr() == before
print(subprocess.run([sys.executable, "-c", PROGRAM, str(handle)], capture_output=True, text=True, check=True).stdout)
"""
    program = f"PROGRAM = {program!r}\n" + program
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "[3, 4]"


@on_device
def test_a_cupy_array_is_shared_in_place():
    try:
        import cupy
    except ImportError:
        return
    array = cupy.arange(6, dtype=cupy.int32)
    handle = onecopy.share(array)
    assert borrower(describe, handle.to_bytes())[4] == [0, 1, 2, 3, 4, 5]
    borrower(add_one, handle.to_bytes())
    assert array.tolist() == [1, 2, 3, 4, 5, 6]
    ours = onecopy.full(4, 3, "int32", "cuda:0")
    assert cupy.asarray(ours).tolist() == [3, 3, 3, 3]
    assert cupy.from_dlpack(ours).tolist() == [3, 3, 3, 3]


# --- messages ---------------------------------------------------------------------------------------


@on_device
def test_tensors_parameters_and_gradients_flags_cross_pipes():
    tensor = torch.zeros(3, device="cuda:0")
    assert borrower(add_to, tensor, 2) == ("Tensor", False, [2, 2, 2])
    assert tensor.tolist() == [2, 2, 2]
    parameter = torch.nn.Parameter(torch.zeros(3, device="cuda:0"))
    name, requires_grad, _ = borrower(add_to_detached, parameter, 1)
    assert (name, requires_grad) == ("Parameter", True)
    assert parameter.tolist() == [1, 1, 1]
    back = borrower(give_back, tensor)
    assert back.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    empty = borrower(give_back, torch.empty(0, 3, device="cuda:0"))
    assert (tuple(empty.shape), str(empty.device)) == ((0, 3), "cuda:0")


def add_to_detached(parameter, value):
    parameter.detach().add_(value)
    torch.cuda.synchronize()
    return type(parameter).__name__, parameter.requires_grad, None


@on_device
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_tensors_cross_queues(kind):
    context = mp.get_context("spawn")
    there, back = getattr(context, kind)(), getattr(context, kind)()
    process = context.Process(target=echo, args=(there, back))
    process.start()
    try:
        for round_ in range(50):
            tensor = torch.full((16,), float(round_), device="cuda:0")
            there.put({"x": tensor, "round": round_})
            answer = back.get()
            assert answer["seen"] == 16.0 * round_
            assert answer["x"].data_ptr() == tensor.data_ptr()
            assert tensor.tolist() == [round_ + 1] * 16
    finally:
        there.put(None)
        process.join()
    assert process.exitcode == 0


def echo(there, back) -> None:
    while (message := there.get()) is not None:
        seen = float(message["x"].sum())
        message["x"].add_(1)
        back.put({"x": message["x"], "seen": seen})


@on_device
def test_reduced_tensors_name_their_device_at_index_six():
    tensor = torch.full((5,), 3.0, device="cuda:0")
    function, arguments = reduce_tensor(tensor)
    assert arguments[6] == 0
    assert borrower(rebuild, function, arguments) == ("cuda:0", [3.0] * 5)
    function, arguments = reduce_storage(tensor.untyped_storage())
    assert borrower(storage_bytes, function, arguments) == tensor.cpu().numpy().tobytes()


def storage_bytes(function, arguments) -> bytes:
    return bytes(function(*arguments).cpu().tolist())


@on_device
def test_reduced_tensors_open_by_the_uuid_at_index_six():
    """As an inference engine writes it there."""
    function, arguments = reduce_tensor(torch.full((5,), 3.0, device="cuda:0"))
    uuid = str(torch.cuda.get_device_properties(arguments[6]).uuid)
    assert borrower(rebuild, function, (*arguments[:6], uuid, *arguments[7:])) == ("cuda:0", [3.0] * 5)


@on_device(devices=2)
def test_reduced_tensors_open_on_another_card():
    tensor = torch.full((5,), 3.0, device="cuda:0")
    function, arguments = reduce_tensor(tensor)
    arguments = list(arguments)
    arguments[6] = 1
    assert borrower(rebuild_and_sum, function, arguments) == ("cuda:1", 15.0)


def rebuild_and_sum(function, arguments):
    """By a kernel, which finds less than a copy does."""
    tensor = function(*arguments)
    return str(tensor.device), float(tensor.sum())


@on_device(devices=2)
def test_tensors_opened_on_another_card_are_shared_again():
    tensor = torch.arange(10.0, device="cuda:0")
    function, arguments = reduce_tensor(tensor[2:])
    arguments = list(arguments)
    arguments[6] = 1
    assert borrower(share_again, function, arguments) == ("cuda:1", 44.0)


def share_again(function, arguments):
    """Opens a tensor on the second card, and again by a handle of its own."""
    tensor = function(*arguments)
    again = onecopy.open(str(onecopy.share(tensor)), device="cuda:1", framework="torch")
    assert again.data_ptr() == tensor.data_ptr()
    return str(again.device), float(again.sum())


@on_device
def test_tensors_count_as_shared_for_torch():
    tensor = torch.zeros(3, device="cuda:0")
    assert tensor.is_shared()
    assert tensor.share_memory_() is tensor


# --- the order of streams ---------------------------------------------------------------------------


@on_device
def test_the_stream_is_torchs_current_one():
    from onecopy import _core

    torch.zeros(1, device="cuda:0")
    assert _core._current_stream("cuda:0") == torch.cuda.default_stream(0).cuda_stream
    with torch.cuda.stream(torch.cuda.Stream()):
        assert _core._current_stream("cuda:0") == torch.cuda.current_stream(0).cuda_stream != 0
        assert onecopy.empty(1, device="cuda:0").__cuda_array_interface__["stream"] > 1


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index * index)


@on_device
def test_a_forked_loader_works_beside_cuda_that_is_in_use():
    """Its workers asked torch for their stream, which torch refuses in a child: no batch ever came."""
    torch.zeros(1, device="cuda").add_(1)
    queue = mp.get_context("fork").Queue()
    queue.put(1), queue.get()
    context = mp.get_context("fork")
    loader = torch.utils.data.DataLoader(Squares(), num_workers=2, multiprocessing_context=context)
    assert [int(batch) for batch in loader] == [index * index for index in range(8)]


@on_device
def test_what_the_sharers_stream_does_comes_before_what_the_openers_does():
    warm = torch.zeros(1 << 20, device="cuda:0")
    warm_handle = onecopy.share(warm)
    borrower(clone_in_a_stream, warm_handle.to_bytes())  # what has to be made once
    stream = torch.cuda.Stream()
    tensor = torch.zeros(1 << 20, device="cuda:0")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(4 * LONG)
        tensor.fill_(7)
        handle = onecopy.share(tensor)
    assert not stream.query(), "share() has waited for the stream"
    was_quick, values = borrower(clone_in_a_stream, handle.to_bytes())
    assert values == [7.0], "the data was seen before it was there"
    assert was_quick, "open() has waited for the stream"


@on_device
def test_memory_is_not_reused_before_the_borrowers_stream_is_done_with_it():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    tensor = torch.zeros(1 << 20, device="cuda:0")
    handle = onecopy.share(tensor)
    borrower(write_late, handle.to_bytes())
    del tensor, handle
    gc.collect()
    if borrower(is_still_writing):
        assert torch.cuda.memory_allocated() > before, "torch may use it although it is still written"
    assert eventually(lambda: torch.cuda.memory_allocated() <= before)
    assert not borrower(is_still_writing)


@on_device
def test_side_streams_are_recorded():
    ours = onecopy.zeros(10, device="cuda:0")
    onecopy.record_stream(ours, torch.cuda.Stream())
    onecopy.record_stream(ours.torch(), torch.cuda.Stream())
    theirs = torch.zeros(10, device="cuda:0")
    onecopy.record_stream(theirs, torch.cuda.Stream())
    onecopy.record_stream(theirs, torch.cuda.Stream().cuda_stream)
    assert ours.tolist() == theirs.tolist()


@on_device
def test_events_between_processes_travel():
    event = torch.cuda.Event(interprocess=True)
    tensor = torch.zeros(1 << 20, device="cuda:0")
    handle = onecopy.share(tensor)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    tensor.fill_(3)
    event.record()
    assert borrower(wait_for_event, event, handle.to_bytes()) == [3.0]


# --- torch's allocations in memory of onecopy -------------------------------------------------------


@on_device
def test_torch_allocates_from_memory_of_onecopy():
    before = onecopy.stats()
    with onecopy.torch.memory("cuda:0"):
        inside = torch.full((1 << 22,), 2.0, device="cuda:0")
    outside = torch.empty(1 << 22, device="cuda:0")
    after = onecopy.stats()
    assert after["live_blocks"] > before["live_blocks"]
    assert after["device_bytes"] - before["device_bytes"] >= 16 << 20
    handle = onecopy.share(inside[:4])
    assert borrower(describe, handle.to_bytes())[4] == [2, 2, 2, 2]
    with onecopy.torch.memory("cuda:0") as pool:
        again = torch.full((8,), 3.0, device="cuda:0")
    with onecopy.torch.memory(0) as same:
        assert same is pool
    assert again.tolist() == [3.0] * 8
    del outside


@on_device
def test_memory_that_torch_lets_go_of_serves_its_next_allocation_in_there():
    def allocate():
        with onecopy.torch.memory("cuda:0"):
            large = torch.full((64 << 20,), 1, dtype=torch.uint8, device="cuda:0")
        assert large[-1].item() == 1

    allocate()
    held = settled(lambda: onecopy.stats()["live_bytes"])
    for _ in range(5):
        allocate()
    assert eventually(lambda: onecopy.stats()["live_bytes"] == held)


@on_device
def test_such_memory_survives_the_death_of_its_owner():
    program = """
import sys, time, torch, onecopy
with onecopy.torch.memory("cuda:0"):
    tensor = torch.full((1000,), 6.0, device="cuda:0")
torch.cuda.synchronize()
print(onecopy.share(tensor), flush=True)
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        tensor = onecopy.open(owner.stdout.readline().strip(), framework="torch")
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert tensor.unique().tolist() == [6.0]


@on_device
def test_a_graphs_tensors_can_lie_in_it():
    with onecopy.torch.memory("cuda:0"):
        source = torch.zeros(1024, device="cuda:0")
        target = torch.zeros(1024, device="cuda:0")
    handle = onecopy.share(target)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source + 1)
    source.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert set(borrower(describe, handle.to_bytes())[4]) == {5.0}


# --- values, memory of torch in many chunks, and memory that lies idle --------------------------------


@on_device
@pytest.mark.parametrize("own_streams", [False, True], ids=["default streams", "own streams"])
def test_an_int_that_says_ready_comes_after_the_kernels_before_it(own_streams):
    queue, back = onecopy.Queue(), onecopy.Queue()
    tensor = torch.zeros(1 << 20, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    borrower(keep, onecopy.share(tensor).to_bytes())
    stream = torch.cuda.Stream() if own_streams else torch.cuda.current_stream()
    stale = 0
    for step in range(1, 201):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000)
            tensor.fill_(step)
            queue.put(step)
        borrower(get_and_read, queue, back, own_streams)
        got, first, last = back.get(timeout=60)
        assert got == step
        stale += (first, last) != (step, step)
    assert stale == 0, f"{stale} of 200 reads were stale"
    borrower(drop_kept)


def get_and_read(queue, back, own_streams: bool) -> None:
    stream = torch.cuda.Stream() if own_streams else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        got = queue.get(timeout=60)
        seen = kept["tensor"][[0, -1]].tolist()
    back.put((got, *seen))


LARGE_OWNER = """
import sys, torch, onecopy
tensor = torch.empty(6 << 30, dtype=torch.uint8, device="cuda:0")  # more than 252 chunks of 20 MiB
for chunk in range(0, 6 << 30, 20 << 20):
    tensor[chunk] = (chunk // (20 << 20)) % 251
tensor[-1] = 99
torch.cuda.synchronize()
print(onecopy.share(tensor), flush=True)
sys.stdin.read()
"""


@on_device
def test_one_tensor_of_6_gib_in_expandable_segments_is_opened_where_it_is():
    if torch.cuda.mem_get_info(0)[0] < 8 << 30:
        pytest.skip("wants 8 GiB of the card")
    settings = dict.fromkeys(["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:True")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", LARGE_OWNER]
    with subprocess.Popen(command, text=True, env=os.environ | settings, **pipes) as owner:
        tensor = onecopy.open(owner.stdout.readline().strip(), framework="torch")
        at = torch.arange(0, 6 << 30, 20 << 20, device="cuda:0")
        assert tensor[at].tolist() == [chunk % 251 for chunk in range(len(at))]
        assert tensor[-1].item() == 99
        assert tensor.numel() == 6 << 30
        owner.stdin.close()


@on_device
def test_trim_gives_back_what_torch_keeps_of_our_memory_and_leaves_what_is_in_use():
    onecopy.torch.trim()
    with onecopy.torch.memory("cuda:0"):
        small = torch.full((8,), 5.0, device="cuda:0")
        large = torch.full((256 << 20,), 1, dtype=torch.uint8, device="cuda:0")
    del large
    torch.cuda.synchronize()
    given: list[int] = []
    assert eventually(lambda: given.append(onecopy.torch.trim("cuda:0")) or sum(given) >= 256 << 20)
    assert small.tolist() == [5.0] * 8
    with onecopy.torch.memory("cuda:0") as pool:
        again = torch.full((8,), 6.0, device="cuda:0")
        onecopy.torch.trim()
        with onecopy.torch.memory("cuda:0") as same:
            assert same is pool, "a pool that a thread is in does not end"
            inner = torch.full((8,), 7.0, device="cuda:0")
    assert (small + again + inner).tolist() == [18.0] * 8


@on_device
def test_two_threads_allocate_from_memory_at_once():
    both_inside = threading.Barrier(2)

    def fill(value: float) -> tuple:
        with onecopy.torch.memory("cuda:0") as pool:
            both_inside.wait(60)
            return pool, torch.full((8,), value, device="cuda:0")

    with ThreadPoolExecutor(2) as threads:
        (one, first), (other, second) = threads.map(fill, (1.0, 2.0))
    assert one is not other
    assert (first + second).tolist() == [3.0] * 8
    with onecopy.torch.memory("cuda:0") as again:
        assert again in (one, other)


@on_device
def test_trim_leaves_a_pool_that_a_graph_uses():
    with onecopy.torch.memory("cuda:0") as pool:
        source = torch.zeros(1024, device="cuda:0")
        target = torch.zeros(1024, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        target.copy_(source + 1)
    onecopy.torch.trim()
    source.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert target.unique().tolist() == [5.0]
    with onecopy.torch.memory("cuda:0") as same:
        assert same is pool


@on_device
def test_reduce_tensor_says_in_one_call_what_it_says_in_many():
    whole = torch.arange(24.0, device="cuda:0").view(4, 6)
    for tensor in (whole, whole[1:, 2:5], whole.t(), whole[2, 3], torch.nn.Parameter(whole[2:])):
        rebuild_by, quick = reduce_tensor(tensor)
        slow_by, slow = mp._tensors._reduce_shared_tensor(tensor)
        assert rebuild_by is slow_by
        assert (quick[:7], quick[8:]) == (slow[:7], slow[8:]), "all but the handle"
        assert borrower(rebuild, rebuild_by, quick) == ("cuda:0", tensor.tolist())
        mp.reductions._core._end_hold(slow[7])
