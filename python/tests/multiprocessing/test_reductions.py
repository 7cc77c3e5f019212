# SPDX-License-Identifier: Apache-2.0
"""Pickling for another process keeps the memory of a tensor and all its properties.

torch's own rebuild functions raise throughout: every tensor that arrives came by handle.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import types
import warnings
import weakref
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.multiprocessing import reductions as torch_reductions

import onecopy
import onecopy.multiprocessing as mp
from onecopy.multiprocessing import _storages, _tensors, reductions
from onecopy.multiprocessing.reductions import reduce_storage, reduce_tensor
from support.devices import eventually
from support.processes import refuse_to_rebuild, run, same_storage

DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.quint"))
    },
    key=str,
)
SPARSE = ["to_sparse", "to_sparse_csr", "to_sparse_csc"]


@pytest.fixture(autouse=True)
def torch_cannot_rebuild(monkeypatch):
    """Makes torch's rebuild functions raise, in this process and in children forked from it."""
    refuse_to_rebuild(monkeypatch.setattr)


@pytest.fixture(autouse=True)
def quiet():
    """torch warns of storages and of prototypes that these tests are about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        warnings.filterwarnings("ignore", message=".*nested tensors is in prototype")
        warnings.filterwarnings("ignore", message="B?Complex(Half|32) support")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly")
        warnings.filterwarnings("ignore", message="Sparse .* tensor support is in beta")
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
        yield


def sent(value):
    """`value` as it arrives, here in the same process."""
    return pickle.loads(ForkingPickler.dumps(value))


# --- plain tensors ----------------------------------------------------------------------------------


def test_a_tensor_arrives_on_the_same_memory(strategy):
    tensor = torch.arange(6.0).view(2, 3)
    arrived = sent(tensor)
    arrived.add_(1)
    assert torch.equal(tensor, torch.arange(1.0, 7.0).view(2, 3))
    assert same_storage(tensor, arrived)
    assert tensor.is_shared() and arrived.is_shared()


def test_handles_carry_no_elements():
    tensor = torch.zeros(1 << 20)
    assert len(ForkingPickler.dumps(tensor)) < 1000


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives(dtype):
    tensor = torch.empty(4, 3, dtype=dtype)
    raw = tensor.view(torch.uint8)
    raw.copy_(torch.arange(raw.numel(), dtype=torch.uint8).view(raw.shape))
    arrived = sent(tensor)
    assert arrived.dtype is dtype
    assert torch.equal(arrived.view(torch.uint8), raw)


VIEWS = {
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[1:, ::2],
    "one row": lambda t: t[2],
    "0-d": lambda t: t[1, 1],
    "expanded": lambda t: t[:1].expand(5, 6),
    "empty": lambda t: t[4:],
    "of another dtype": lambda t: t.view(torch.int32),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_arrives_as_a_view_of_the_whole_storage(view):
    base = torch.arange(24.0).view(4, 6)
    tensor = view(base)
    arrived = sent(tensor)
    assert torch.equal(arrived, tensor)
    assert arrived.stride() == tensor.stride()
    assert arrived.storage_offset() == tensor.storage_offset()
    assert same_storage(arrived, base)


def test_views_and_storages_in_one_message_keep_sharing_one_storage(strategy):
    base = torch.randn(5, 5)
    data = [base.storage(), base, base[2], base[:, 1], base.untyped_storage()]
    arrived = sent(data)
    assert {s._cdata for s in (arrived[0], arrived[4])} == {base.untyped_storage()._cdata}
    assert all(same_storage(a, base) for a in arrived[1:4])
    assert all(torch.equal(a, b) for a, b in zip(arrived[1:4], data[1:4]))


def test_the_same_tensor_can_be_sent_many_times():
    tensor = torch.zeros(3)
    arrived = [sent(tensor) for _ in range(50)]
    arrived[17].fill_(7)
    assert all(same_storage(a, tensor) for a in arrived)
    assert tensor.tolist() == [7, 7, 7]


def test_bytes_opened_once_hold_nothing_more():
    message = bytes(ForkingPickler.dumps(torch.ones(3)))
    assert pickle.loads(message).tolist() == [1, 1, 1]
    onecopy.collect()  # torch before 2.12 does not tell us when a storage is gone: we look
    with pytest.raises(onecopy.errors.StaleHandle):
        pickle.loads(message)


# --- memory of onecopy that torch has from elsewhere --------------------------------------------------

LENT = {
    "dlpack": torch.from_dlpack,
    "numpy": lambda ours: torch.from_numpy(ours.numpy()),
    "a part by dlpack": lambda ours: torch.from_dlpack(ours[1:]),
    "a part by numpy": lambda ours: torch.from_numpy(ours.numpy()[1:, 1:]),
}


@pytest.fixture(params=LENT.values(), ids=LENT.keys())
def lent(request):
    """A tensor of ours, and one of torch's on the same memory or on a part of it, up to the last element."""
    ours = onecopy.zeros((3, 2), dtype="float32")
    yield ours, request.param(ours)


def test_memory_of_ours_that_came_by_dlpack_or_numpy_stays_where_it_is_when_it_is_shared(lent):
    ours, tensor = lent
    tensor.share_memory_()
    tensor.fill_(9)
    assert ours[2, 1].item() == 9


def test_memory_of_ours_that_came_by_dlpack_or_numpy_is_what_arrives(lent, forked, spawned):
    ours, tensor = lent
    for peer in (forked, spawned):
        peer(change, tensor)
    arrived = sent(tensor)
    assert torch.equal(arrived, tensor) and arrived.stride() == tensor.stride()
    arrived[-1, -1] += 1
    assert ours[2, 1].item() == 3


def test_memory_of_ours_that_came_by_dlpack_or_numpy_is_what_a_new_process_gets(lent):
    ours, tensor = lent
    run(mp.get_context("spawn"), torch.Tensor.fill_, tensor, 4.0)
    assert ours[2, 1].item() == 4


def test_a_storage_on_a_whole_block_of_ours_arrives_on_it():
    ours = onecopy.zeros((3, 2), dtype="float32")
    for tensor in (torch.from_dlpack(ours), torch.from_numpy(ours.numpy())):
        arrived = sent(tensor.untyped_storage())
        torch.empty(0).set_(arrived).add_(1)
    assert ours.numpy().tolist() == [[2, 2]] * 3


def test_a_storage_on_a_part_of_a_block_of_ours_is_refused_and_stays_there():
    ours = onecopy.zeros((3, 2), dtype="float32")
    tensor = torch.from_dlpack(ours[1:])
    with pytest.raises(onecopy.errors.Unsupported, match="part of a block"):
        sent(tensor.untyped_storage())
    tensor.fill_(9)
    assert ours[2, 1].item() == 9


def test_a_tensor_that_begins_in_the_middle_of_an_element_is_refused():
    ours = onecopy.zeros(16, dtype="uint8")
    tensor = torch.from_numpy(ours.numpy()[2:10].view("float32"))
    with pytest.raises(onecopy.errors.Unsupported, match="in the middle of an element"):
        reduce_tensor(tensor)


# --- descriptions of a tensor --------------------------------------------------------------------


def test_requires_grad_arrives_and_the_gradient_does_not():
    tensor = torch.ones(3, requires_grad=True)
    tensor.grad = torch.ones(3)
    arrived = sent(tensor)
    assert arrived.requires_grad and arrived.is_leaf and arrived.grad is None


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_parameter_arrives_as_a_parameter(requires_grad):
    arrived = sent(torch.nn.Parameter(torch.ones(3), requires_grad=requires_grad))
    assert type(arrived) is torch.nn.Parameter
    assert arrived.requires_grad is requires_grad


def test_a_tensor_inside_a_graph_is_refused_with_torchs_words():
    inside = torch.ones(3, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        sent(inside)
    assert sent(inside.detach()).tolist() == [2, 2, 2]


def test_hooks_stay_behind_with_torchs_warning():
    tensor = torch.ones(3, requires_grad=True)
    tensor.register_hook(lambda gradient: gradient)
    with pytest.warns(UserWarning, match="backward hook"):
        arrived = sent(tensor)
    assert not arrived._backward_hooks


def test_conjugate_and_negative_bits_arrive():
    """torch drops them without a word."""
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for lazy in (tensor.conj(), tensor.conj().imag, tensor.imag, torch._neg_view(tensor.real)):
        arrived = sent(lazy)
        assert arrived.is_conj() == lazy.is_conj() and arrived.is_neg() == lazy.is_neg()
        assert torch.equal(arrived, lazy)
        assert same_storage(arrived, tensor)


def test_a_lazily_conjugated_parameter_keeps_requires_grad():
    tensor = torch.tensor([1 + 2j]).conj().requires_grad_()
    arrived = sent(tensor)
    assert arrived.is_conj() and arrived.requires_grad and arrived.is_leaf


class Labelled(torch.Tensor):
    """A tensor with something written on it."""


def test_a_subclass_arrives_with_its_attributes_on_the_same_memory():
    tensor = torch.arange(3.0).as_subclass(Labelled)
    tensor.label = "three numbers"
    arrived = sent(tensor)
    assert type(arrived) is Labelled and arrived.label == "three numbers"
    assert same_storage(arrived, tensor)


def test_a_meta_tensor_arrives_without_memory():
    tensor = torch.empty(4, 6, device="meta")[1:, ::2]
    arrived = sent(tensor)
    assert arrived.is_meta and arrived.shape == tensor.shape and arrived.stride() == tensor.stride()
    parameter = sent(torch.nn.Parameter(torch.empty(2, device="meta")))
    assert type(parameter) is torch.nn.Parameter and parameter.is_meta


def test_quantized_tensors_arrive():
    """torch loses their scales."""
    values = torch.randn(3, 4)
    per_tensor = torch.quantize_per_tensor(values, 0.1, 3, torch.quint8)
    per_channel = torch.quantize_per_channel(values, torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0, torch.qint8)
    for tensor in (per_tensor, per_channel):
        arrived = sent(tensor)
        assert torch.equal(arrived.dequantize(), tensor.dequantize())
        assert arrived.qscheme() == tensor.qscheme()
        assert same_storage(arrived, tensor)


@pytest.mark.parametrize("make", SPARSE)
def test_a_sparse_tensor_arrives_on_the_same_values(make):
    tensor = getattr(torch.eye(4) * 3, make)()
    arrived = sent(tensor)
    assert arrived.layout is tensor.layout
    assert torch.equal(arrived.to_dense(), tensor.to_dense())
    arrived._values().mul_(2) if make == "to_sparse" else arrived.values().mul_(2)
    assert torch.equal(tensor.to_dense(), torch.eye(4) * 6)


@pytest.mark.parametrize("make", ["to_sparse_bsr", "to_sparse_bsc"])
def test_a_block_sparse_tensor_arrives(make):
    tensor = getattr(torch.eye(4), make)((2, 2))
    assert torch.equal(sent(tensor).to_dense(), torch.eye(4))


def test_a_coalesced_tensor_stays_coalesced():
    tensor = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,))
    assert not sent(tensor).is_coalesced()
    assert sent(tensor.coalesce()).is_coalesced()


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_arrives(layout):
    parts = [torch.ones(2, 3), torch.zeros(4, 3)]
    arrived = sent(torch.nested.nested_tensor(parts, layout=layout))
    assert arrived.is_nested
    assert all(torch.equal(a, b) for a, b in zip(arrived.unbind(), parts))


# --- storages ---------------------------------------------------------------------------------------


def test_storages_of_every_kind_arrive_on_the_same_memory():
    tensor = torch.arange(4.0)
    for storage in (tensor.untyped_storage(), tensor.storage(), torch.FloatStorage([1.0, 2.0])):
        arrived = sent(storage)
        assert type(arrived) is type(storage)
        assert arrived.data_ptr() == storage.data_ptr()
        assert arrived.nbytes() == storage.nbytes()
        assert arrived.dtype == storage.dtype if hasattr(storage, "dtype") else True


def test_an_empty_storage_arrives():
    assert sent(torch.UntypedStorage(0)).nbytes() == 0
    assert len(sent(torch.FloatStorage())) == 0


def test_storages_of_devices_are_refused_with_torchs_words():
    with pytest.raises(RuntimeError, match="Cannot pickle meta storage"):
        reduce_storage(torch.UntypedStorage(3, device="meta"))


# --- the arguments in one's own hands ---------------------------------------------------------------


PLAIN = {
    "whole": lambda x: x,
    "view": lambda x: x[1:, 2:5],
    "transposed": lambda x: x.t(),
    "element": lambda x: x[2, 3],
    "requires_grad": lambda x: x.requires_grad_(),
    "parameter": torch.nn.Parameter,
    "detached": lambda x: torch.nn.Parameter(x, requires_grad=False)[1:],
    "part of ours": lambda x: torch.from_numpy(onecopy.empty(24, "float32").numpy()[4:]).copy_(x.flatten()[:20]),
}


# The arguments of CUDA tensors; a tensor of the CPU can have them as well, where every machine can look.
@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_what_is_said_of_a_plain_tensor_in_one_call_rebuilds_it(make):
    tensor = make(torch.arange(24.0).view(4, 6))
    said = onecopy._core._reduce_plain(tensor, reductions.SharedStorage)
    assert said[:6] == (
        type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset(), reductions.SharedStorage, torch.float32
    )  # fmt: skip
    assert (said[6], said[8], said[10]) == (-1, tensor.untyped_storage().nbytes(), tensor.requires_grad)
    assert said[11:] == (b"", -1, b"", False)
    arrived = reductions.rebuild_shared_tensor(*said)
    assert torch.equal(arrived, tensor)
    assert type(arrived) is type(tensor)
    assert arrived.requires_grad == tensor.requires_grad
    assert arrived.data_ptr() == tensor.data_ptr()


def test_of_a_tensor_of_which_there_is_more_to_say_one_call_says_nothing():
    class Tagged(torch.Tensor):
        pass

    hooked = torch.zeros(2, requires_grad=True)
    hooked.register_hook(lambda gradient: gradient)
    many = [torch.zeros(2, dtype=torch.complex64).conj(), torch.zeros(0, 3), torch.zeros(2).as_subclass(Tagged), hooked]
    many += [torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"), None, 3]
    assert [onecopy._core._reduce_plain(one, reductions.SharedStorage) for one in many] == [None] * len(many)


def test_arguments_of_a_tensor_of_the_cpu_are_as_few_as_torchs():
    tensor = torch.arange(24.0).view(4, 6)[1:, ::2]
    rebuild, arguments = reduce_tensor(tensor)
    cls, handle, _ = arguments
    assert cls is torch.Tensor
    assert onecopy.Handle.from_bytes(handle).shape == (3, 3)
    arrived = rebuild(*arguments)
    assert torch.equal(arrived, tensor) and same_storage(arrived, tensor)


def arguments_of_a_device(tensor):
    """As torch's tensors of CUDA have them, of memory of the CPU: a handle says itself where it is."""
    return _tensors._device_arguments(tensor, *_storages.block_handle(tensor.untyped_storage(), tensor.dtype))


def test_what_is_written_into_the_arguments_counts():
    cls, _, _, _, *rest = arguments_of_a_device(torch.arange(6.0))
    assert reductions.rebuild_shared_tensor(cls, (2,), (3,), 1, *rest).tolist() == [1, 4]


def test_a_size_beyond_the_storage_is_refused():
    cls, _, *rest = arguments_of_a_device(torch.arange(6.0))
    with pytest.raises(RuntimeError):
        reductions.rebuild_shared_tensor(cls, (7,), *rest)


def test_a_handle_that_is_none_is_refused():
    rebuild, (cls, _, flags) = reduce_tensor(torch.arange(6.0))
    with pytest.raises(onecopy.errors.BadHandle):
        rebuild(cls, b"not a handle", flags)


def test_an_engine_that_writes_uuids_to_index_six_leaves_tensors_of_the_cpu_alone(monkeypatch):
    """The published patch of an inference engine, in our words."""

    def modify(arguments, index, modifier):
        if len(arguments) <= index:
            return arguments
        return (*arguments[:index], modifier(arguments[index]), *arguments[index + 1 :])

    def uuid_of(device):
        return str(torch.cuda.get_device_properties(device).uuid)

    def wrapper(tensor):
        rebuild, arguments = original(tensor)
        return rebuild, modify(arguments, 6, uuid_of)

    original = torch_reductions.reduce_tensor
    monkeypatch.setattr(torch_reductions, "reduce_tensor", wrapper)
    torch_reductions.init_reductions()
    try:
        for tensor in (torch.ones(3), torch.ones(3, dtype=torch.complex64).conj(), torch.empty(0)):
            arrived = sent(tensor)
            assert torch.equal(arrived, tensor) and arrived.is_conj() == tensor.is_conj()
    finally:
        monkeypatch.undo()
        torch_reductions.init_reductions()


def test_a_device_can_be_asked_for_by_its_uuid(monkeypatch):
    cards = ["1d6a5a4e-0000-0000-0000-000000000000", "5f6b2c1e-0000-0000-0000-000000000001"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: types.SimpleNamespace(uuid=cards[i]))
    assert _storages.device_asked(None, cards[1], 0) == "cuda:1"
    assert _storages.device_asked(None, f"GPU-{cards[0]}", 1) == "cuda:0"
    with pytest.raises(onecopy.Unsupported, match="no CUDA device of this process has the UUID"):
        _storages.device_asked(None, "5f6b", 0)


def test_a_library_that_registers_its_own_wrapper_still_sends_by_handle(monkeypatch):
    """As inference engines: wrap torch's function, register again."""
    seen = []

    def wrapper(tensor):
        rebuild, arguments = original(tensor)
        seen.append(rebuild.__name__)
        return rebuild, arguments

    original = torch_reductions.reduce_tensor
    monkeypatch.setattr(torch_reductions, "reduce_tensor", wrapper)
    torch_reductions.init_reductions()
    tensor = torch.ones(3)
    assert same_storage(sent(tensor), tensor)
    monkeypatch.undo()
    torch_reductions.init_reductions()
    assert seen == ["rebuild_cpu_tensor"]


# --- other objects ----------------------------------------------------------------------------------


def test_our_own_tensors_and_handles_travel():
    tensor = onecopy.zeros((2, 3), "float32")
    arrived = sent(tensor)
    arrived.numpy()[1, 2] = 5
    assert tensor.numpy()[1, 2] == 5
    handle = sent(onecopy.share(tensor))
    assert onecopy.open(handle).numpy()[1, 2] == 5


def test_modules_and_state_dicts_arrive_on_the_same_memory(forked):
    model = torch.nn.Linear(3, 2)
    assert forked(set_all, model.state_dict(), 4.0) == 2
    assert all(bool((p == 4).all()) for p in model.parameters())
    assert forked(set_all, dict(model.named_parameters()), 5.0) == 2
    assert all(bool((p == 5).all()) for p in model.parameters())


def set_all(tensors, value):
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(value)
    return len(tensors)


# --- another process --------------------------------------------------------------------------------


def change(tensor):
    tensor.add_(1)
    return onecopy.stats()["opened_total"]


def pass_on(tensor):
    return tensor


def test_a_change_over_there_is_seen_here(forked, strategy):
    tensor = torch.zeros(3)
    assert forked(change, tensor) >= 1
    assert tensor.tolist() == [1, 1, 1]


def test_a_fresh_interpreter_changes_the_same_memory(spawned):
    tensor = torch.zeros(2, 3)[1]
    assert spawned(change, tensor) >= 1
    assert tensor.tolist() == [1, 1, 1]


def test_what_comes_back_is_the_storage_that_was_sent(forked):
    tensor = torch.zeros(3)
    assert same_storage(forked(pass_on, tensor), tensor)


def test_what_one_process_received_a_third_can_have(forked, spawned):
    tensor = forked(torch.full, (3,), 2.0)
    assert spawned(change, tensor) >= 1
    assert tensor.tolist() == [3, 3, 3]
    assert forked(torch.Tensor.tolist, tensor) == [3, 3, 3]


def test_errors_of_the_other_side_name_the_cause(forked):
    with pytest.raises(AttributeError, match="add_"):
        forked(change, "no tensor")
    message = bytes(ForkingPickler.dumps(torch.ones(1)))
    pickle.loads(message)
    onecopy.collect()  # as above
    with pytest.raises(onecopy.StaleHandle, match="freed"):
        forked(pickle.loads, message)


# --- events -----------------------------------------------------------------------------------------


class Event:
    """As torch.cuda.Event: the object of its handle is there as long as the event is."""

    there: set[bytes] = set()
    device = torch.device("cuda", 0)

    def __init__(self, handle: bytes = b"event") -> None:
        self.handle = handle
        self.there.add(handle)
        weakref.finalize(self, self.there.discard, handle)

    def ipc_handle(self) -> bytes:
        return self.handle

    @classmethod
    def from_ipc_handle(cls, device, handle):
        assert device == cls.device
        return "opened", handle


@pytest.fixture
def events(monkeypatch):
    """torch's own reducer for its events, for ours: this torch may have none."""
    monkeypatch.setitem(ForkingPickler._extra_reducers, Event, ForkingPickler._extra_reducers[torch.cuda.Event])
    monkeypatch.setattr(torch.cuda, "Event", Event)


def open_and_say(queue, said, go_on):
    go_on.recv()
    said.send(queue.get())


@pytest.mark.parametrize("make", [mp.Queue, mp.SimpleQueue, multiprocessing.SimpleQueue, onecopy.Queue])
def test_lmcache_3236_an_event_that_its_sender_dropped_is_there_until_it_was_opened(events, make):
    """The event was once freed with its sender's object, so a slow receiver could not open the handle."""
    queue = make()
    mine, theirs = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    receiver = fork.Process(target=open_and_say, args=(queue, theirs, theirs), daemon=True)
    receiver.start()
    queue.put([Event(), 1])
    gc.collect()
    assert Event.there == {b"event"}
    mine.send("go on")
    assert mine.recv() == [("opened", b"event"), 1]
    assert eventually(lambda: gc.collect() is not None and not Event.there), "and no longer"
    receiver.join()


def test_an_event_that_nobody_opens_goes_with_what_holds_handles(events):
    ForkingPickler.dumps(Event(b"lost"))
    assert Event.there == {b"lost"}
    onecopy.collect(older_than=0)
    assert eventually(lambda: gc.collect() is not None and not Event.there)


def test_an_event_may_be_opened_again_while_its_maker_has_it(events):
    event = Event(b"kept")
    data = ForkingPickler.dumps(event)
    assert pickle.loads(data) == pickle.loads(data) == ("opened", b"kept")
    del event
    assert eventually(lambda: gc.collect() is not None and not Event.there)
