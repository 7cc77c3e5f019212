# SPDX-License-Identifier: Apache-2.0
"""onecopy.Queue: any process gets any object that was put."""

import gc
import multiprocessing
import pickle
import select
import signal
import threading
import time

import numpy as np
import pytest

import onecopy
from onecopy import _core
from support.processes import errors_of_waits, interrupted, running

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def queue():
    return _core.Queue()


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "text",
        b"x" * 1000,
        (1, [2.5, {"a": None}]),
        {1, 2, 3},
        Point(3),
        [Point(1), {"p": Point(2)}],
        range(10),
        print,
        Point,
        b"x" * 5_000_000,
        ["y" * 100_000, {1}],
    ],
    ids=lambda v: repr(v)[:20],
)
def test_any_object_crosses(queue, value):
    queue.put(value)
    assert queue.get() == value


def test_numpy_arrays_cross_by_value(queue):
    array = np.arange(12).reshape(3, 4)
    queue.put(array)
    array[0, 0] = 100
    copy = queue.get()
    assert copy.tolist() == np.arange(12).reshape(3, 4).tolist()


def test_order_is_kept_among_all_forms(queue):
    sent = [1, {1}, "x" * 100_000, (1, 2), Point(1), None]
    for value in sent:
        queue.put(value)
    assert [queue.get() for _ in sent] == sent


def test_a_onecopy_tensor_crosses_without_a_copy(queue):
    tensor = onecopy.zeros((3, 4), dtype="float32")
    queue.put(tensor)
    queue.put([tensor, {"in a pickle": {1}, "tensor": tensor}])
    alone = queue.get()
    first, rest = queue.get()
    assert isinstance(alone, onecopy.Tensor) and alone.shape == (3, 4)
    alone.numpy()[1, 2] = 7
    assert first.numpy()[1, 2] == 7 and rest["tensor"].numpy()[1, 2] == 7
    assert first is rest["tensor"]


def test_messages_of_cpp_programs(queue):
    tensor = onecopy.zeros((2,), dtype="int64")
    for tag in (0x700, 1, 2, 3, 0xFFFFFFFF):  # all of a tag is the program's
        queue.put(_core.Message(tag, b"data", [tensor]))
        message = queue.get()
        assert (message.tag, message.data, len(message.tensors)) == (tag, b"data", 1)
        assert message.tensors[0].shape == (2,)


@pytest.mark.parametrize("tag", [0, 4, 0x7F, 0x102, 0x103, 0x82, 0x84, 0x181, 2])
def test_a_message_that_none_of_us_wrote_is_refused(tag):
    bytes_, floats = onecopy.zeros((3,), dtype="uint8"), onecopy.zeros((3,), dtype="float32")
    for data, tensors in ((b"x\xff", []), (b"", []), (b"", [floats]), (b"x", [bytes_]), (b"", [bytes_] * 3)):
        with pytest.raises(onecopy.errors.BadHandle):
            _core._decode_message(tag, data, tensors)


def test_get_waits_for_its_timeout_only(queue):
    start = time.monotonic()
    with pytest.raises(onecopy.errors.Timeout, match="0.25"):
        queue.get(timeout=0.25)
    assert time.monotonic() - start >= 0.25
    with pytest.raises(TimeoutError):
        queue.get(timeout=0)
    with pytest.raises(TimeoutError):
        queue.get(timeout=-5)


@pytest.mark.parametrize("timeout", ["1", float("nan"), [], object()])
def test_a_timeout_that_is_no_number_is_refused(queue, timeout):
    queue.put(1)
    with pytest.raises((TypeError, ValueError)):
        queue.get(timeout=timeout)
    assert queue.get() == 1


def test_try_get_tells_nothing_from_none(queue):
    nothing = object()
    assert queue.try_get(nothing) is nothing
    queue.put(None)
    assert queue.try_get(nothing) is None


def test_maxsize_bounds_it():
    queue = _core.Queue(maxsize=2)
    assert queue.try_put(1) and queue.try_put(2) and not queue.try_put(3)
    with pytest.raises(onecopy.errors.Timeout, match="full"):
        queue.put(3, timeout=0.05)
    assert (len(queue), queue.maxsize) == (2, 2)
    waiting = threading.Thread(target=queue.put, args=(3,))
    waiting.start()
    assert queue.get() == 1
    waiting.join()
    assert [queue.get(), queue.get()] == [2, 3]


def test_closing_is_for_all_and_drains(queue):
    other = _core._connect_queue(queue._handle_bytes())
    queue.put(1)
    other.close()
    assert queue.closed
    with pytest.raises(onecopy.errors.Closed):
        queue.put(2)
    assert queue.get() == 1
    with pytest.raises(EOFError):
        queue.get()


def test_closing_wakes_who_waits(queue):
    assert len(errors_of_waits(queue.get, queue.close, onecopy.errors.Closed, 3)) == 3


def test_waiting_lets_other_threads_run(queue):
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.get()))
    thread.start()
    while thread.is_alive():
        queue.put("for the other thread")
        thread.join()
    assert got == ["for the other thread"]


def test_what_cannot_be_pickled_raises_and_leaves_nothing(queue):
    with pytest.raises(Exception, match="pickle"):
        queue.put(lambda: None)
    with pytest.raises(Exception, match="pickle"):
        queue.put([1, threading.Lock()])
    assert queue.empty()


class Unloadable:
    def __reduce__(self):
        return fail, ()


def fail():
    raise RuntimeError("will not be loaded")


def test_what_cannot_be_unpickled_raises_and_is_gone(queue):
    queue.put(Unloadable())
    queue.put(2)
    with pytest.raises(RuntimeError, match="will not be loaded"):
        queue.get()
    assert queue.get() == 2


class Getting:
    """Gets and puts other objects while it is being pickled and unpickled."""

    def __init__(self, inner):
        self.inner = inner

    def __reduce__(self):
        box = _core.Queue()
        box.put([Point(1), onecopy.zeros((1,), dtype="uint8")])
        box.get()
        return Getting._load, (self.inner,)

    @staticmethod
    def _load(inner):
        box = _core.Queue()
        box.put([{1}, onecopy.zeros((9,), dtype="uint8")])
        assert box.get()[1].shape == (9,)
        return Getting(inner)


def test_queues_may_be_used_while_pickling_and_unpickling(queue):
    tensor = onecopy.zeros((5,), dtype="uint8")
    queue.put([tensor, Getting(tensor), tensor])
    first, getting, last = queue.get()
    assert first.shape == (5,) and first is last and getting.inner is first


class PutsWhenFreed:
    def __init__(self, queue):
        self.queue = queue

    def __del__(self):
        self.queue.put("freed")


def test_finalizers_may_put_while_something_is_put(queue):
    """The garbage collector runs anywhere: also inside of put."""
    box = _core.Queue()
    for _ in range(50):
        cycle = [PutsWhenFreed(box)]
        cycle.append(cycle)
        del cycle
        queue.put([{1}, [object] * 10])
        queue.get()
    gc.collect()
    assert box.size() == 50


def test_it_is_pickled_with_a_hold(queue):
    queue.put("before")
    copy = pickle.loads(pickle.dumps(queue))
    assert copy.get() == "before"
    copy.put("after")
    assert queue.get() == "after"


def test_a_child_inherits_it(queue):
    def child():
        queue.put(queue.get() + 1)

    with running(FORK, child):
        queue.put(1)
    assert queue.get() == 2


def answer(questions, answers):
    for _ in range(3):
        answers.put([questions.get()])


def test_a_fresh_interpreter_is_given_it():
    questions, answers = _core.Queue(), _core.Queue()
    tensor = onecopy.zeros((4,), dtype="float64")
    with running(SPAWN, answer, questions, answers):
        for value in (1, "two", tensor):
            questions.put(value)
        assert answers.get(timeout=60) == [1] and answers.get(timeout=60) == ["two"]
        back = answers.get(timeout=60)[0]
    back.numpy()[0] = 5
    assert tensor.numpy()[0] == 5


def test_its_descriptor_is_readable_while_there_is_something(queue):
    fd = queue.fileno()

    def readable(timeout):
        return bool(select.select([fd], [], [], timeout)[0])

    assert not readable(0)
    queue.put(1)
    assert readable(10)
    queue.get()
    assert not readable(0)
    timer = threading.Timer(0.1, queue.put, (2,))
    timer.start()
    assert readable(10) and queue.get() == 2
    timer.join()
    queue.close()
    assert readable(10)


def test_signals_are_handled_while_waiting(queue):
    """A handler that raises ends the wait, one that does not goes unnoticed."""
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(onecopy.errors.Timeout):
            queue.get(timeout=0.4)
        assert calls == [1]
        with interrupted():
            queue.get(timeout=60)
    finally:
        signal.signal(signal.SIGALRM, before)
    queue.put(1)
    assert queue.get() == 1


def test_keyboard_interrupt_ends_a_put_that_waits():
    queue = _core.Queue(maxsize=1)
    queue.put(1)
    with interrupted():
        queue.put(2)
    assert queue.size() == 1


def test_its_repr_says_what_is_in_it(queue):
    queue.put(1)
    assert repr(queue) == "<onecopy.Queue 1 objects>"
    assert bool(_core.Queue()) and len(queue) == 1


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr()


def test_a_torch_tensor_alone_is_the_same_memory(queue, torch):
    tensor = torch.arange(6.0).reshape(2, 3)
    queue.put(tensor.t())
    got = queue.get()
    got[0, 1] = 50
    assert type(got) is torch.Tensor and got.shape == (3, 2) and tensor[1, 0] == 50
    assert storage_of(got) == storage_of(tensor)


SMALL = [f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)]


@pytest.mark.parametrize("name", [*SMALL, "bits8", "float4_e2m1fn_x2"])
def test_a_torch_tensor_of_few_bits_arrives_as_what_it_is(queue, torch, name):
    """DLPack has no word for most of them, and torch calls them int8 or uint8 there."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip("this torch has no such dtype")
    tensor = torch.arange(6, dtype=torch.uint8).view(dtype)
    for value in (tensor, [tensor], {1: (tensor, {1})}):
        queue.put(value)
        got = queue.get()
        got = got if got.__class__ is torch.Tensor else got[0] if type(got) is list else got[1][0]
        assert got.dtype is dtype and storage_of(got) == storage_of(tensor)
        assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8))
    for value in (tensor, {"x": tensor}):
        with pytest.raises(onecopy.errors.Unsupported, match=f"torch.{name} on the device cpu"):
            onecopy.share(value)


def test_torch_tensors_among_plain_values(queue, torch):
    base = torch.zeros(4)
    parameter = torch.nn.Parameter(torch.ones(2))
    value = {"view": base[1:], "all": (base, parameter), "n": 3, "again": base}
    queue.put(value)
    got = queue.get()
    assert got["n"] == 3 and got["all"][0] is got["again"]
    assert storage_of(got["view"]) == storage_of(base)
    assert type(got["all"][1]) is torch.nn.Parameter and got["all"][1].requires_grad
    assert not got["view"].requires_grad


def test_torch_tensors_and_storages_in_a_pickle_cross_by_handle(queue, torch):
    tensor = torch.zeros(1000)
    earlier = onecopy.stats()["in_transit"]
    queue.put([{1}, tensor, tensor.untyped_storage(), onecopy.zeros((2,), dtype="uint8"), tensor])
    held = onecopy.stats()["in_transit"] - earlier
    _, got, storage, ours, again = queue.get()
    got[5] = 1
    assert tensor[5] == 1 and storage.data_ptr() == storage_of(tensor)
    assert got is again and ours.shape == (2,)
    assert held <= 3, "the tensors were held one by one"


def test_torch_s_own_errors_reach_the_putter(queue, torch):
    inside_a_graph = torch.ones(2, requires_grad=True) * 2
    for value in (inside_a_graph, [inside_a_graph], [{1}, inside_a_graph]):
        with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
            queue.put(value)
    assert queue.empty()


def test_a_state_dict_crosses_without_pickle(queue, torch):
    state = torch.nn.Linear(3, 2).state_dict()
    plain = dict(state)
    assert _core._encode_values(plain) is not None
    queue.put(plain)
    got = queue.get()
    assert got.keys() == plain.keys()
    assert all(storage_of(got[name]) == storage_of(plain[name]) for name in plain)


TOO_MANY = """
import sys
import onecopy
if sys.argv[1] == "torch":
    import torch
    tensors = [torch.zeros(1)[0:1] for _ in range(65_537)]
else:
    tensors = [onecopy.zeros(1) for _ in range(65_537)]
try:
    onecopy.Queue().put(tensors)
except onecopy.InvalidArgument as error:
    print("bundle" in str(error))
"""


@pytest.mark.parametrize("library", ["torch", "onecopy"])
def test_more_tensors_than_a_message_takes_are_refused_with_advice(run_python, library, torch):
    """Where onecopy.multiprocessing was not imported, which pickles what has no place."""
    if library == "torch" and getattr(torch.UntypedStorage, "_swap_data_ptr_", None) is None:
        pytest.skip("wants torch 2.12: before, torch takes a descriptor a storage, and has too few for so many")
    assert run_python(TOO_MANY, library) == "True\n"


NO_TORCH = """
    import sys
    from onecopy import _core
    queue = _core._connect_queue(bytes.fromhex(sys.argv[1]))
    assert "torch" not in sys.modules
    assert queue.get(timeout=60) == 5 and "torch" not in sys.modules
    tensor = queue.get(timeout=60)
    assert "torch" in sys.modules and type(tensor) is sys.modules["torch"].Tensor
    tensor += 1
"""


def test_a_receiver_imports_torch_when_it_is_sent_a_torch_tensor(queue, torch, run_python):
    tensor = torch.zeros(3)
    queue.put(5)
    queue.put(tensor)
    run_python(NO_TORCH, queue._handle_bytes().hex())
    assert tensor.tolist() == [1, 1, 1]


DAEMON = """
    import os, threading, time
    import onecopy
    from onecopy import _core

    queue, full, (a, b) = _core.Queue(), _core.Queue(1), _core.Pipe()
    full.put(1)
    listener = _core.Listener("unix:@onecopy-exit-%d" % os.getpid(), b"key")
    timeouts = [0.0005 * i for i in range(40)]
    for wait in (queue.get, a.recv, listener.accept, lambda: full.put(2)):
        threading.Thread(target=wait, daemon=True).start()

    def again(timeout):
        while True:
            try:
                queue.get(timeout=timeout)
            except onecopy.errors.Timeout:
                pass

    for timeout in (0.0001, 0.001, 0.003):
        threading.Thread(target=again, args=(timeout,), daemon=True).start()
    time.sleep(0.1)
    print("end")
"""


def test_daemon_threads_that_wait_do_not_disturb_the_exit(run_python):
    for _ in range(5):
        assert run_python(DAEMON) == "end\n"


AFTER_FORK = """
    import os
    import torch
    import onecopy

    class DefaultStream:
        cuda_stream = 0

    def current_stream(device=None):
        if os.getpid() != parent:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        asked.append(device)
        return DefaultStream

    parent, asked = os.getpid(), []
    torch.cuda._initialized = True  # as where a device is in use
    torch.cuda.is_initialized = lambda: os.getpid() == parent
    torch.cuda.current_stream = current_stream
    torch.Tensor.__dlpack_c_exchange_api__ = None  # a torch without devices answers there, whatever it is asked
    there, back = onecopy.Queue(), onecopy.Queue()
    there.put(0), there.get()
    assert asked
    child = os.fork()
    if child == 0:
        back.put(there.get() + 1)
        os._exit(0)
    there.put(41)
    assert back.get(timeout=60) == 42
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_of_a_process_that_uses_a_device_gets(run_python):
    """A get() asks torch for its stream, and torch refuses to answer in a forked child of a process that uses CUDA:
    workers of loaders got no index."""
    pytest.importorskip("torch", reason="wants torch installed")
    run_python(AFTER_FORK)


BUSY = """
    import random, threading, time
    import onecopy
    from onecopy import _core

    def pass_on(make):
        queue = _core.Queue()
        while True:
            queue.put(make())
            queue.get()

    def wait(timeout):
        queue = _core.Queue()
        while True:
            try:
                queue.get(timeout=timeout)
            except onecopy.errors.Timeout:
                pass

    for make in (int, set, lambda: [{1}] * 50, lambda: onecopy.zeros((3,), dtype="uint8")):
        threading.Thread(target=pass_on, args=(make,), daemon=True).start()
    for timeout in (1e-5, 1e-4, 1e-3):
        threading.Thread(target=wait, args=(timeout,), daemon=True).start()
    time.sleep(random.uniform(0.02, 0.05))
"""


@pytest.mark.parametrize("imports", ["", "torch"])
def test_daemon_threads_that_are_busy_do_not_disturb_the_exit(run_python, imports):
    """The interpreter ends them inside of pickling, unpickling, torch's code, or on the way back from a wait."""
    if imports:
        pytest.importorskip(imports, reason=f"wants {imports} installed")
    for _ in range(10):
        run_python((f"    import {imports}" if imports else "") + BUSY)


FIRST_USES = """
    import sys
    import onecopy

    queue, (here, there) = onecopy.Queue(maxsize=1), onecopy.Pipe()
    imported = set(sys.modules)
    for item in (1, {1}, [{1}] * 50, b"1" * 100_000, ValueError("1"), onecopy.zeros((3,), dtype="uint8")):
        queue.put(item), queue.get()
        here.send(item), there.recv()
    for late in (
        lambda: queue.get(timeout=0.001),
        lambda: there.recv(timeout=0.001),
        lambda: [queue.put(item, timeout=0.001) for item in range(2)],
    ):
        try:
            late()
        except onecopy.errors.Timeout:
            continue
        raise AssertionError("it did not wait")
    assert set(sys.modules) == imported, set(sys.modules) - imported
"""


def test_a_thread_that_uses_a_queue_for_the_first_time_imports_nothing(run_python):
    """An interpreter that ends frees the lock of imports, and a daemon thread that waits for it crashed the process."""
    run_python(FIRST_USES)
