# SPDX-License-Identifier: Apache-2.0
"""The documented and tested behaviour of torch.multiprocessing, by every way in which a tensor can be sent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Client, Listener

import pytest
import torch

import onecopy
import onecopy.multiprocessing as mp
from conftest import has_ended
from support.devices import eventually
from support.processes import refuse_to_rebuild, run, running, running_all, same_storage

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(autouse=True)
def torch_cannot_rebuild(monkeypatch):
    """Makes torch's rebuild functions raise, in this process and in children forked from it."""
    refuse_to_rebuild(monkeypatch.setattr)


@pytest.fixture(params=METHODS)
def context(request):
    """Contexts of every start method."""
    return mp.get_context(request.param)


@pytest.fixture
def fork():
    """The context that is quick."""
    return mp.get_context("fork")


@pytest.fixture(
    params=[
        ("fork", "file_descriptor"),
        ("fork", "file_system"),
        ("spawn", "file_descriptor"),
        ("forkserver", "file_system"),
    ],
    ids="-".join,
)
def way(request):
    """Contexts of every start method, with both strategies."""
    method, strategy = request.param
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(strategy)
    yield mp.get_context(method)
    mp.set_sharing_strategy(before)


QUEUES = ["Queue", "SimpleQueue", "JoinableQueue"]


@pytest.fixture(params=QUEUES)
def make_queue(request, fork):
    """Makes queues of every kind."""
    made = []

    def make(*arguments):
        made.append(getattr(fork, request.param)(*arguments))
        return made[-1]

    yield make
    for q in made:
        q.close()


# --- queues, every start method, both strategies ----------------------------------------------------


def fill_first(q, event):
    data = q.get()
    data[0][:] = 4
    event.set()


def put_twice(q, event):
    tensor = torch.ones(5, 5)
    q.put(tensor)
    q.put(tensor)
    event.wait()


def test_the_receiver_writes_into_the_senders_memory(way):
    tensor = torch.zeros(5, 5)
    q, event = way.Queue(), way.Event()
    data = [tensor, tensor[:, 1]]
    q.put(data)
    run(way, fill_first, q, event)
    assert event.is_set()
    assert bool(data[0].eq(4).all()) and bool(data[1].eq(4).all())
    q.close()


def test_one_tensor_put_twice_arrives_on_one_storage(way):
    q, event = way.Queue(), way.Event()
    with running(way, put_twice, q, event):
        first, second = q.get(), q.get()
        assert bool(first.eq(1).all())
        assert same_storage(first, second)
        event.set()
    q.close()


def test_put_and_get_in_one_process_give_the_same_storage(make_queue, strategy):
    tensor = torch.randn(5, 5)
    views = [tensor, tensor[2], tensor[:, 1]]
    q = make_queue()
    q.put([tensor.untyped_storage(), *views])
    storage, *arrived = q.get()
    assert storage._cdata == tensor.untyped_storage()._cdata
    assert all(same_storage(a, tensor) for a in arrived)
    assert all(torch.equal(a, b) for a, b in zip(arrived, views))


def test_a_tensor_keeps_what_autograd_knows_of_it(make_queue):
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * 2).sum()
    optimizer = torch.optim.SGD([weight], lr=0.5)
    version = weight._version
    q = make_queue()
    q.put(weight)
    arrived = q.get()
    assert type(arrived) is torch.nn.Parameter and arrived.requires_grad
    loss.backward()
    optimizer.step()
    assert weight.grad.tolist() == [2, 2, 2]
    assert arrived.tolist() == weight.tolist() == [0, 0, 0]
    assert weight._version >= version


def test_a_tensor_inside_a_graph_is_refused_before_it_is_put(make_queue):
    q = make_queue()
    inside = torch.ones(3, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        q.put(inside)
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        q.put({"in": [inside]})
    q.put(1)
    assert q.get() == 1


def test_things_of_every_kind_go_through_a_queue(make_queue):
    q = make_queue()
    base = torch.arange(6.0)
    things = [
        torch.empty(0), torch.tensor(3.5), base.view(2, 3).t(), base[:1].expand(4, 1), base > 2,
        base.to(torch.bfloat16), base.to(torch.float8_e4m3fn), torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag, torch.empty(4, 3, device="meta")[:, 1], torch.eye(3).to_sparse(),
    ]  # fmt: skip
    for thing in things:
        q.put(thing)
        arrived = q.get()
        assert (arrived.dtype, arrived.shape, arrived.device) == (thing.dtype, thing.shape, thing.device)
        assert arrived.layout is thing.layout and (
            thing.layout is not torch.strided or arrived.stride() == thing.stride()
        )
        if not thing.is_meta:
            assert torch.equal(comparable(arrived), comparable(thing))


def comparable(tensor):
    dense = tensor.to_dense()
    return dense if dense.is_complex() else dense.float()


def test_what_is_no_tensor_arrives_as_it_is(make_queue):
    q = make_queue()
    for thing in (None, 3, "text", b"bytes", (1, [2, {"three": 4.0}]), {1, 2}, ValueError("x"), test_main_is_named):
        q.put(thing)
        arrived = q.get()
        assert type(arrived) is type(thing)
        assert repr(arrived) == repr(thing)


def test_main_is_named():
    assert test_main_is_named.__name__ == "test_main_is_named"


# --- the producer is gone ---------------------------------------------------------------------------


def count_descriptors(to, back):
    while (tensor := to.get()) is not None:
        del tensor
        back.put(onecopy.stats()["descriptors"])


def test_memory_of_torchs_own_that_has_come_and_gone_leaves_no_descriptors(fork):
    """Each in a file of its own: the receiver kept two descriptors for each as long as the sender lived."""
    to, back = fork.Queue(), fork.Queue()
    with running(fork, count_descriptors, to, back):
        counts = []
        for i in range(500):
            to.put(torch.full((16,), i).share_memory_())
            counts.append(back.get())
        to.put(None)
    assert max(counts) < counts[0] + 200


def put_and(end, q, tensor_bytes):
    q.put(torch.full((tensor_bytes,), 7, dtype=torch.uint8))
    if end == "os._exit":
        os._exit(0)
    if end == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("end", ["return", "os._exit", "SIGKILL"])
@pytest.mark.parametrize("size", [1, 1 << 12, 1 << 20, 64 << 20])
def test_what_was_put_is_delivered_though_the_producer_is_gone(make_queue, fork, end, size):
    q = make_queue()
    run(fork, put_and, end, q, size, exitcode=None)
    tensor = q.get()
    assert tensor.numel() == size and bool((tensor == 7).all())


@pytest.mark.fresh_interpreters
@pytest.mark.parametrize("end", ["return", "os._exit", "SIGKILL"])
def test_the_same_of_fresh_interpreters(end):
    context = mp.get_context("spawn")
    q = context.Queue()
    run(context, put_and, end, q, 1000, exitcode=None)
    assert q.get(timeout=60).sum() == 7000
    q.close()


def test_a_gibibyte_is_delivered_though_its_producer_was_killed(fork):
    q = fork.Queue()
    run(fork, put_and, "SIGKILL", q, 1 << 30, exitcode=None)
    tensor = q.get()
    assert tensor.numel() == 1 << 30 and tensor[::4096].eq(7).all()
    q.close()


def test_a_tensor_whose_owner_has_died_can_be_sent_on(fork, spawned):
    q = fork.Queue()
    run(fork, put_and, "return", q, 1000)
    orphan = q.get()
    assert spawned(torch.Tensor.sum, orphan) == 7000
    q.put(orphan)
    assert same_storage(q.get(), orphan)
    q.close()


def pass_everything_on(source, target, count):
    for _ in range(count):
        target.put(source.get())


def test_tensors_pass_through_a_process_in_between(context):
    source, target = context.Queue(), context.Queue()
    tensors = [torch.full((3,), float(i)) for i in range(5)]
    for tensor in tensors:
        source.put(tensor)
    run(context, pass_everything_on, source, target, len(tensors))
    for tensor in tensors:
        assert same_storage(target.get(), tensor)
    source.close()
    target.close()


# --- pipes, pools, executors, managers, listeners ---------------------------------------------------


def add_one_over(pipe):
    tensor = pipe.recv()
    tensor.add_(1)
    pipe.send(tensor)
    pipe.recv()


def test_a_pipe_carries_tensors_both_ways(way):
    ours, theirs = way.Pipe()
    with running(way, add_one_over, theirs):
        tensor = torch.zeros(3)
        ours.send(tensor)
        arrived = ours.recv()
        assert same_storage(arrived, tensor) and tensor.tolist() == [1, 1, 1]
        ours.send("done")
    ours.close()
    theirs.close()


def fill_and_add(tensor):
    tensor.fill_(4)
    return tensor.add(1)


def pid_and_tensor(index):
    return os.getpid(), torch.full((3,), float(index))


def test_a_pool_works_on_the_callers_memory(way):
    buffers = [torch.zeros(2, 2) for _ in range(4)]
    with way.Pool(2) as pool:
        results = pool.map(fill_and_add, buffers, 1)
        pool.close()
        pool.join()
    assert all(torch.equal(r, torch.full((2, 2), 5.0)) for r in results)
    assert all(torch.equal(b, torch.full((2, 2), 4.0)) for b in buffers)


def test_results_of_workers_that_are_gone_are_there(fork):
    with fork.Pool(2, maxtasksperchild=1) as pool:
        results = pool.map(pid_and_tensor, range(12), chunksize=1)
        pool.close()
        pool.join()
    assert [int(tensor[0]) for _, tensor in results] == list(range(12))
    assert len({pid for pid, _ in results}) == 12


def raise_with(tensor):
    raise ValueError(float(tensor.sum()))


def test_every_way_to_ask_a_pool(fork):
    tensors = [torch.full((2,), float(i)) for i in range(6)]
    with fork.Pool(2) as pool:
        assert pool.apply(torch.Tensor.sum, (tensors[3],)) == 6
        assert [float(t.sum()) for t in pool.imap(torch.neg, tensors)] == [-2.0 * i for i in range(6)]
        assert sorted(float(t.sum()) for t in pool.imap_unordered(torch.neg, tensors))[0] == -10
        assert float(pool.starmap(torch.add, [(tensors[1], tensors[2])])[0][0]) == 3
        pending = pool.apply_async(torch.Tensor.add_, (tensors[0], 5))
        assert same_storage(pending.get(60), tensors[0]) and tensors[0].tolist() == [5, 5]
        with pytest.raises(ValueError, match="5.0"):
            pool.apply(raise_with, (tensors[5] / 2,))
        pool.close()
        pool.join()


def test_a_worker_of_a_pool_killed_at_work_does_not_take_the_pool_along(fork):
    with fork.Pool(2) as pool:
        pool.apply_async(os.kill, (pool._pool[0].pid, signal.SIGKILL))
        for _ in range(5):
            assert pool.apply(torch.neg, (torch.ones(2),)).tolist() == [-1, -1]
        pool.terminate()
        pool.join()


KILLED_POOL = """
    import os, signal
    import onecopy.multiprocessing as mp

    if __name__ == "__main__":
        pool = mp.get_context("fork").Pool(2)
        assert pool.map(abs, [-1, -2]) == [1, 2]
        print(*[worker.pid for worker in pool._pool], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_when_their_pool_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(KILLED_POOL))
    output = tmp_path / "output"
    with output.open("w") as file:
        subprocess.run([sys.executable, str(program)], stdout=file, timeout=60)
    for pid in output.read_text().split():
        while not has_ended(pid):
            time.sleep(0.02)


@pytest.mark.parametrize("method", METHODS)
def test_an_executor_works_on_the_callers_memory(method):
    tensor = torch.zeros(3)
    with ProcessPoolExecutor(1, mp_context=mp.get_context(method)) as executor:
        result = executor.submit(torch.Tensor.add_, tensor, 2).result()
        assert tensor.tolist() == [2, 2, 2]
        assert same_storage(result, tensor)
        assert [int(t) for t in executor.map(torch.neg, [torch.tensor(i) for i in range(5)])] == [0, -1, -2, -3, -4]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_queues_lists_and_dicts_of_a_manager_carry_tensors(method):
    context = mp.get_context(method)
    tensor = torch.zeros(3)
    with context.Manager() as manager:
        q, items, table = manager.Queue(), manager.list(), manager.dict()
        q.put(tensor)
        assert same_storage(q.get(), tensor)
        items.append(tensor)
        table["t"] = tensor[1:]
        items[0].fill_(3)
        assert table["t"].tolist() == [3, 3] and tensor.tolist() == [3, 3, 3]
        namespace = manager.Namespace()
        namespace.tensor = tensor
        assert same_storage(namespace.tensor, tensor)
        q.put(torch.full((2,), 8.0))
        gc.collect()
        assert q.get().tolist() == [8, 8]


def connect_and_add(address):
    with Client(address, authkey=b"between us") as connection:
        tensor = connection.recv()
        tensor.add_(1)
        connection.send("done")


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET"])
def test_listeners_and_clients_carry_tensors(fork, family, tmp_path):
    address = str(tmp_path / "socket") if family == "AF_UNIX" else ("127.0.0.1", 0)
    with Listener(address, family, authkey=b"between us") as listener:
        with running(fork, connect_and_add, listener.address):
            tensor = torch.zeros(3)
            with listener.accept() as connection:
                connection.send(tensor)
                assert connection.recv() == "done"
    assert tensor.tolist() == [1, 1, 1]


# --- many at once -----------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)


def test_many_living_tensors_cost_few_descriptors_and_mappings(fork):
    """torch opens a descriptor for each, and ends with "received 0 items of ancdata"."""
    q = fork.Queue()
    count = 20_000
    q.put(torch.zeros(1)), q.get()
    before = descriptors(), mappings()
    with running(fork, put_many, q, count):
        kept = [q.get() for _ in range(count)]
        assert descriptors() - before[0] <= 64
        assert mappings() - before[1] <= 64
        assert all(int(t[0]) == i for i, t in enumerate(kept))
    q.close()


def put_many(q, count):
    for index in range(count):
        q.put(torch.full((16,), index))


def test_a_queue_with_tensors_in_it_leaves_nothing_behind(fork):
    before = onecopy.stats()["live_blocks"]
    q = fork.Queue()
    for _ in range(100):
        q.put(torch.zeros(1000))
    q.close()
    del q
    gc.collect()
    for _ in range(600):  # a receiver may be on its way for ten seconds
        onecopy.collect()
        if onecopy.stats()["live_blocks"] <= before:
            break
        time.sleep(0.1)
    assert onecopy.stats()["live_blocks"] <= before


# --- the rest of what PyTorch's own suite checks (pytorch_suite.py runs it) -------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_tensors_of_no_elements_cross(make_queue, dtype):
    q = make_queue()
    for empty in (torch.tensor([], dtype=dtype), torch.empty(3, 0, 2, dtype=dtype), torch.ones(4, dtype=dtype)[4:]):
        q.put(empty)
        arrived = q.get()
        assert (arrived.shape, arrived.dtype, arrived.stride()) == (empty.shape, dtype, empty.stride())
        q.put([empty, empty.untyped_storage()])
        assert q.get()[1].nbytes() == empty.untyped_storage().nbytes()


@pytest.mark.parametrize("shared", [False, True])
def test_share_memory_does_nothing_to_a_file_that_torch_mapped(tmp_path, shared):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(64))
    tensor = torch.from_file(str(path), shared=shared, size=16)
    address = tensor.data_ptr()
    assert tensor.share_memory_() is tensor
    assert tensor.data_ptr() == address and tensor.is_shared()
    tensor[0] = 1
    assert any(path.read_bytes()) == shared


def test_share_memory_says_so(strategy):
    tensor, empty = torch.randn(5, 5), torch.tensor([])
    row = tensor[2]
    assert not tensor.is_shared() and not row.is_shared()
    assert tensor.share_memory_() is tensor and empty.share_memory_() is empty
    assert tensor.is_shared() and row.is_shared() and tensor.untyped_storage().is_shared()


NAMED_FILES = """
    import os, time
    import onecopy
    import onecopy.multiprocessing as mp

    os.mkdir(os.environ["ONECOPY_SHM_DIR"])
    q = mp.Queue()
    q.put(onecopy.zeros(4))
    print(len(os.listdir(os.environ["ONECOPY_SHM_DIR"])))
    q.get()
    mp.set_sharing_strategy("file_system")
    q.put(onecopy.zeros(4))
    print(len(os.listdir(os.environ["ONECOPY_SHM_DIR"])))
    q.get()
    while os.listdir(os.environ["ONECOPY_SHM_DIR"]):
        time.sleep(0.1)
"""


def test_only_file_system_makes_names_and_they_go_with_the_memory(run_python, tmp_path):
    assert run_python(NAMED_FILES, env={"ONECOPY_SHM_DIR": str(tmp_path / "shm")}) == "0\n1\n"


POOLS = """
    import os, time
    import onecopy, onecopy.multiprocessing as mp

    def make(tensor):
        return onecopy.zeros(5)

    def use_pool():
        pool = mp.get_context("fork").Pool(2)
        assert len(pool.map(make, [onecopy.zeros(3) for _ in range(4)], 1)) == 4
        pool.close()
        pool.join()

    os.mkdir(os.environ["ONECOPY_SHM_DIR"])
    mp.set_sharing_strategy("file_system")
    for _ in range(5):
        use_pool()
    while os.listdir(os.environ["ONECOPY_SHM_DIR"]):
        time.sleep(0.1)
"""


def test_workers_of_pools_leave_no_files(run_python, tmp_path):
    """The parent drops it while the next pool's workers, forked since, still have it."""
    assert run_python(POOLS, env={"ONECOPY_SHM_DIR": str(tmp_path / "shm")}) == ""


def square_after_backward(a):
    weight = torch.rand(3).requires_grad_()
    weight.mean().backward()
    return a**2, weight.grad


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_autograd_runs_in_workers_after_it_ran_here(method):
    if method == "fork" and torch.cuda.is_available():
        pytest.skip("wants a machine without a GPU: torch's threads for devices refuse a fork")
    square_after_backward(1)
    with mp.get_context(method).Pool(2) as pool:
        results = pool.map(square_after_backward, [1, 2, 3])
        pool.close()
        pool.join()
    assert [square for square, _ in results] == [1, 4, 9]
    assert all(torch.allclose(gradient, torch.full((3,), 1 / 3)) for _, gradient in results)


def have_a_gradient_of_ones(q, ready, changed, is_parameter):
    leaf = q.get()
    ready.set()
    changed.wait()
    expected = torch.arange(1.0, 26).view(5, 5)
    expected[0, 0] = 1000
    kind = torch.nn.Parameter if is_parameter else torch.Tensor
    ok = leaf.data.equal(expected) and type(leaf) is kind and leaf.grad is None and not leaf._backward_hooks
    leaf.data[:] = torch.ones(5, 5)
    leaf.grad = torch.ones(5, 5)
    q.put(bool(ok))


LEAVES = {
    "plain": lambda: torch.arange(1.0, 26).view(5, 5),
    "leaf": lambda: torch.arange(1.0, 26).view(5, 5).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch.arange(1.0, 26).view(5, 5)),
}


@pytest.mark.parametrize("kind", LEAVES)
def test_values_are_shared_and_gradients_are_each_processes_own(fork, kind):
    leaf, q, ready, changed = LEAVES[kind](), fork.Queue(), fork.Event(), fork.Event()
    is_parameter = kind == "parameter"
    process = fork.Process(target=have_a_gradient_of_ones, args=(q, ready, changed, is_parameter))
    process.start()

    @torch.utils.hooks.unserializable_hook
    def hook(*unused):
        """A closure, which no pickle can carry."""
        return leaf

    if leaf.requires_grad:
        leaf.register_hook(hook)
    leaf.grad = torch.zeros(5, 5) if leaf.requires_grad else None
    q.put(leaf)
    ready.wait()
    leaf.data[0, 0] = 1000
    if leaf.grad is not None:
        leaf.grad.data[:] = 4
    changed.set()
    process.join()
    assert q.get() is True
    assert leaf.data.equal(torch.ones(5, 5))
    assert leaf.grad is None or leaf.grad.eq(4).all()
    process.close()
    q.close()


def put_and_drop(q, count):
    for index in range(count):
        q.put(torch.full([5], index))


def clone_all(source, target, count):
    for _ in range(count):
        target.put(source.get().clone())


def sum_all(source, target, count):
    total = torch.zeros(5, dtype=torch.int64)
    for _ in range(count):
        total += source.get()
    target.put(total)


def test_a_chain_of_processes_loses_and_doubles_nothing(fork, strategy):
    """Each tensor is dropped by its maker at once and lives in the queue alone."""
    count = 1000
    queues = [fork.Queue() for _ in range(3)]
    targets = [(put_and_drop, queues[:1]), (clone_all, queues[:2]), (sum_all, queues[1:])]
    with running_all(fork, *[(target, *between, count) for target, between in targets]):
        assert queues[2].get().tolist() == [count * (count - 1) // 2] * 5
    for q in queues:
        q.close()


def put_states(q, count):
    network = torch.nn.LSTM(1, 1)
    for _ in range(count):
        if not q.full():
            q.put({name: value.clone() for name, value in network.state_dict().items()})


def take_states(q, count):
    for _ in range(count):
        if not q.empty():
            q.get()


def test_one_that_polls_full_and_one_that_polls_empty_never_wait_for_each_other(fork):
    """The only consumer asks before it gets, the only producer before it puts: neither may block."""
    q = fork.Queue(1)
    with running_all(fork, (put_states, q, 300), (take_states, q, 300)):
        pass
    q.close()


def test_many_pools_cost_no_more_descriptors_than_one(fork, strategy):
    def one_pool():
        buffers = [torch.zeros(2, 2) for _ in range(4)]
        with fork.Pool(1) as pool:
            assert all(result.eq(5).all() for result in pool.map(fill_and_add, buffers, 1))
            pool.close()
            pool.join()
        assert all(buffer.eq(4).all() for buffer in buffers)

    one_pool()
    before = settled_descriptors()
    for _ in range(20):
        one_pool()
    assert eventually(lambda: settled_descriptors() <= before + 4)


def settled_descriptors() -> int:
    """Once what the dead had is given back."""
    numbers = []
    for _ in range(40):
        gc.collect()
        onecopy.collect()
        numbers.append(descriptors())
        if len(numbers) > 3 and len(set(numbers[-3:])) == 1:
            break
        time.sleep(0.05)
    return numbers[-1]


EXITS = """
    import sys, threading, os
    import torch
    import onecopy.multiprocessing as mp

    def forever(q):
        while True:
            q.get()

    def child(q, how):
        q.put(torch.ones(3))
        if how == "exit":
            sys.exit(0)

    if __name__ == "__main__":
        context = mp.get_context("fork")
        q, simple, joinable = context.Queue(), context.SimpleQueue(), context.JoinableQueue()
        for each in (q, simple, joinable):
            each.put(torch.ones(3))
            threading.Thread(target=forever, args=(each,), daemon=True).start()
        keep = [torch.ones(3).share_memory_() for _ in range(10)]
        globals()["cycle"] = cycle = [keep, q]
        cycle.append(cycle)
        process = context.Process(target=child, args=(context.Queue(), sys.argv[1]))
        process.start()
        process.join()
        assert process.exitcode == 0
        pool = context.Pool(2)
        assert pool.apply(torch.neg, (keep[0],)).tolist() == [-1, -1, -1]
        pool.terminate()
        if sys.argv[1] == "raise":
            raise SystemExit(0)
        print("ok")
"""


@pytest.mark.parametrize("how", ["end", "exit", "raise"])
def test_a_program_ends_without_a_word(run_python, how):
    """Threads in get(), queues in cycles, tensors of all sorts alive: no traceback, no warning, no crash."""
    assert run_python(EXITS, how) == ("" if how == "raise" else "ok\n")
