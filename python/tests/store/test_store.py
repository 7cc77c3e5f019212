# SPDX-License-Identifier: Apache-2.0
"""Objects of the store: versions, drafts, followers, and the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import onecopy
from support.devices import eventually
from support.processes import beside, interpret as run


def values(version, count=3):
    return {f"layer.{i}": torch.full((4, 5), float(version)) for i in range(count)}


def test_another_process_reads_what_was_published_and_its_publisher_has_ended(store):
    program = "import sys, torch, onecopy; onecopy.store.connect().publish('a', {'x': torch.arange(6).reshape(2, 3)})"
    assert run(program).returncode == 0
    assert store.open("a")["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_every_dtype_and_shape_is_as_it_was(store):
    tensors = {
        "f": torch.rand(3, 7),
        "b": torch.ones(5, dtype=torch.bfloat16),
        "i": torch.arange(4, dtype=torch.int64),
        "t": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "strided": torch.arange(12).reshape(3, 4).t(),
    }
    store.publish("a", tensors)
    found = store.open("a")
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int1", "float4_e2m1fn_x2"])
def test_a_dtype_that_the_store_lacks_is_refused_by_its_name(store, dtype):
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch lacks {dtype}")
    for place in ("slot", "as_is"):
        with pytest.raises(onecopy.Unsupported, match=f'"t" has elements of torch.{dtype}'):
            store.publish("a", {"t": torch.empty(16, dtype=getattr(torch, dtype))}, place=place)
    assert store.list() == []


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: torch.eye(3).to_sparse(), "is a tensor of the layout torch.sparse_coo"),
        (lambda: torch.ones(2, device="meta"), "has elements of torch.float32 on the device meta"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "has no memory of its own"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_memory_of_its_own_is_refused_by_its_name(store, make, why):
    with pytest.raises(onecopy.Unsupported, match=f'"t" .*{why}'):
        store.publish("a", {"t": make()})


def test_tied_weights_are_stored_once(store):
    numpy = pytest.importorskip("numpy")
    weight, array = torch.rand(100, 100), numpy.ones(10_000, numpy.float32)
    tied = {"embed": weight, "head": weight, "view": weight.view(100, 100), "n": array, "m": array, "t": weight.t()}
    for place in ("slot", "as_is"):
        store.publish("a", {**tied, "u": weight.t()}, place=place, checksums=True)
        found = store.open("a")
        found.verify()
        assert found["embed"].data_ptr() == found["head"].data_ptr() == found["view"].data_ptr()
        assert found["n"].data_ptr() == found["m"].data_ptr()
        assert found["t"].data_ptr() == found["u"].data_ptr() != found["embed"].data_ptr()
        assert all(torch.equal(found[name], torch.as_tensor(tensor)) for name, tensor in tied.items())
    store.publish("a", tied, checksums=True)
    assert store.list()[0]["versions"][-1]["bytes"] < 3.5 * weight.nbytes
    with store.draft("a") as draft:
        draft["embed"].fill_(7)
    assert float(store.open("a")["head"][0, 0]) == 7
    store.open("a").verify()


def test_arrays_of_other_libraries_are_published_too(store):
    numpy = pytest.importorskip("numpy")
    store.publish("a", {"n": numpy.arange(5.0), "o": onecopy.full((2,), 3.0)})
    assert store.open("a")["n"].tolist() == [0, 1, 2, 3, 4]
    assert store.open("a")["o"].tolist() == [3, 3]


def test_a_version_is_a_number_and_the_newest_is_the_current_one(store):
    assert store.publish("a", values(1)) == 1
    assert store.publish("a", values(2)) == 2
    assert store.open("a").version == 2
    assert float(store.open("a", 1)["layer.0"][0, 0]) == 1


def test_a_reader_cannot_write(store):
    store.publish("a", values(1))
    program = "import torch, onecopy; onecopy.store.connect().open('a')['layer.0'].fill_(2)"
    assert run(program).returncode == -signal.SIGSEGV
    assert float(store.open("a")["layer.0"][0, 0]) == 1


def test_the_text_of_a_tensor_of_the_store_does_not_blame_another_library_alone(store):
    store.publish("a", values(1))
    tensor = onecopy.store.connect(framework="onecopy").open("a")["layer.0"]
    assert "read-only, memory of another library or of the store: [[1.0" in repr(tensor)


def test_a_publisher_cannot_write_to_what_it_has_published(store):
    program = """
import torch, onecopy
store = onecopy.store.connect()
store.publish("a", {"x": torch.ones(3)})
with store.draft("a") as draft:
    draft["x"].fill_(2)
print(draft.version, draft["x"].tolist(), flush=True)
draft["x"].fill_(3)
"""
    done = run(program)
    assert done.stdout == "2 [2.0, 2.0, 2.0]\n"
    assert done.returncode == -signal.SIGSEGV
    assert store.open("a")["x"].tolist() == [2, 2, 2]


def test_a_draft_that_raises_is_no_version(store):
    store.publish("a", values(1))
    with pytest.raises(ZeroDivisionError), store.draft("a") as draft:
        draft["layer.0"].fill_(9)
        raise ZeroDivisionError
    assert store.open("a").version == 1


def test_a_follower_shows_new_versions_at_the_same_addresses(store):
    store.publish("a", values(1))
    live = store.follow("a")
    tensors = list(live.values())
    places = [tensor.data_ptr() for tensor in tensors]
    for number in range(2, 6):
        with store.draft("a") as draft:
            for tensor in draft.values():
                tensor.fill_(number)
        assert live.update() == live.version == number
        assert all(torch.equal(tensor, torch.full((4, 5), float(number))) for tensor in tensors)
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert live.update() == 5


def test_threads_read_one_of_two_versions_while_a_follower_updates(store):
    for version in (1, 2):
        store.publish("a", {"large": torch.full((1 << 20,), float(version)), "small": torch.full((5,), float(version))})
    live = store.follow("a")
    tensors = list(live.values())
    ends, seen = threading.Event(), set()

    def read():
        while not ends.is_set():
            for tensor in tensors:
                seen.update(tensor.unique().tolist())

    with beside(read, (), ()):
        try:
            for update in range(2000):
                live.update(to=update % 2 + 1)
        finally:
            ends.set()
    assert seen <= {1.0, 2.0}


def test_update_shows_exactly_the_version_that_is_asked_for(store):
    for version in (1, 2, 3):
        store.publish("a", values(version), keep=3)
    live = store.follow("a")
    for version in (1, 2, 2, 3, 1):
        assert live.update(to=version) == live.version == version
        assert float(live["layer.2"][3, 4]) == version
    with pytest.raises(onecopy.StaleHandle):
        live.update(to=4)
    assert live.version == 1
    assert live.update() == 3


def test_a_version_that_is_as_it_is_cannot_be_followed(store):
    store.publish("a", values(1))
    live = store.follow("a")
    store.publish("a", values(2), place="as_is")
    for follow in (live.update, lambda: store.follow("a")):
        with pytest.raises(onecopy.InvalidArgument, match="published in place \\(as_is\\)"):
            follow()
    assert live.version == 1


def test_a_follower_refuses_another_layout_and_names_the_difference(store):
    store.publish("a", values(1))
    live = store.follow("a")
    kept = live["layer.0"]
    store.publish("a", {**values(2), "layer.1": torch.ones(7)})
    with pytest.raises(onecopy.InvalidArgument, match='"layer.1" is float32\\[7\\] and was float32\\[4, 5\\]'):
        live.update()
    assert live.version == 1
    assert float(kept[0, 0]) == 1
    assert store.follow("a").version == 2


def test_a_rollback_shows_an_earlier_version_and_the_next_one_has_a_new_number(store):
    store.publish("a", values(1))
    live = store.follow("a")
    store.publish("a", values(2))
    assert live.update() == 2
    store.rollback("a", to=1)
    assert live.update() == 1
    assert store.open("a").version == 1
    assert store.publish("a", values(3)) == 3


def test_old_versions_go_when_nobody_reads_them(store):
    store.publish("a", values(1), keep=1)
    reader = store.open("a")
    for version in (2, 3):
        store.publish("a", values(version), keep=1)
    assert eventually(lambda: [v["version"] for v in store.list()[0]["versions"]] == [1, 3])
    assert float(reader["layer.0"][0, 0]) == 1
    del reader
    assert eventually(lambda: [v["version"] for v in store.list()[0]["versions"]] == [3])


def test_a_reader_keeps_what_is_deleted(store):
    store.publish("a", values(1))
    reader = store.open("a")
    store.delete("a")
    assert store.list() == []
    assert float(reader["layer.2"][3, 4]) == 1
    with pytest.raises(onecopy.StaleHandle, match='no object "a"'):
        store.open("a")


def test_a_key_that_differs_is_refused_by_its_field(store):
    store.publish("a", values(1), key={"rank": "0", "dtype": "bf16"})
    assert store.open("a", key={"rank": "0"}).key == {"rank": "0", "dtype": "bf16"}
    with pytest.raises(onecopy.InvalidArgument, match='"0" for the field "rank" of its key, and "1" was asked for'):
        store.open("a", key={"rank": "1"})


def test_checksums_are_verified(store):
    store.publish("a", values(1), checksums=True)
    store.open("a").verify()
    with store.draft("a") as draft:
        draft["layer.1"].fill_(7)
    store.open("a").verify()
    store.publish("b", values(1))
    with pytest.raises(onecopy.InvalidArgument, match="without checksums"):
        store.open("b").verify()


def test_bytes_are_objects_too(store):
    data = os.urandom(10_000)
    store.put_bytes("cache/1", data)
    assert store.get_bytes("cache/1") == data
    store.put_bytes("nothing", b"")
    assert store.get_bytes("nothing") == b""
    store.publish("a", values(1))
    with pytest.raises(onecopy.InvalidArgument, match="holds tensors, not bytes"):
        store.get_bytes("a")


@pytest.mark.parametrize("data", [5, "text", None])
def test_bytes_that_are_not_bytes_are_refused(store, data):
    with pytest.raises(TypeError, match="data must be bytes or have the buffer protocol, not"):
        store.put_bytes("a", data)
    assert store.list() == []


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda s: s.publish(5, values(1)), "name must be a str, not int"),
        (lambda s: s.publish("a", {1: torch.ones(1)}), "the name of each tensor must be a str, not int"),
        (lambda s: s.publish("a", values(1), keep="2"), "keep must be an int, not str"),
        (lambda s: s.publish("a", values(1), keep=True), "keep must be an int, not bool"),
        (lambda s: s.publish("a", values(1), key=["rank"]), "key must be a mapping of str to str, not list"),
        (lambda s: s.publish("a", values(1), key={"rank": 0}), "key\\['rank'\\] must be a str, not int"),
        (lambda s: s.publish("a", values(1), attributes={0: "0"}), "each field of attributes must be a str, not int"),
        (lambda s: s.open(None), "name must be a str, not NoneType"),
        (lambda s: s.open("a", "1"), "version must be an int, not str"),
        (lambda s: s.open("a", key="rank"), "key must be a mapping of str to str, not str"),
        (lambda s: s.follow(b"a"), "name must be a str, not bytes"),
        (lambda s: s.draft("a", keep=1.5), "keep must be an int, not float"),
        (lambda s: s.delete("a", keep=None), "keep must be an int, not NoneType"),
        (lambda s: s.rollback("a", to="1"), "to must be an int, not str"),
    ],
)
def test_an_argument_of_a_wrong_type_is_one_sentence(store, call, sentence):
    with pytest.raises(TypeError, match=f"^{sentence}$"):
        call(store)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda s: s.publish("a", values(1), keep=-1), r"keep must be from 0 to 2\*\*32 - 1, not -1"),
        (lambda s: s.open("a", 0), r"version must be from 1 to 2\*\*32 - 1, not 0"),
        (lambda s: s.open("\ud800"), r"name must be text that UTF-8 can encode, not '\\ud800'"),
    ],
)
def test_an_impossible_argument_is_one_sentence(store, call, sentence):
    with pytest.raises(onecopy.InvalidArgument, match=f"^{sentence}$"):
        call(store)


def test_a_tensor_without_a_name_is_refused(store):
    with pytest.raises(onecopy.InvalidArgument, match="has no name; give each one a name"):
        store.publish("a", {"": torch.ones(2)})
    with pytest.raises(onecopy.InvalidArgument, match="has no name"):
        store.draft("a", {"": ((2,), "float32")})


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 1025, "\x7f"])
def test_a_bad_name_is_refused_with_the_rule(store, name):
    with pytest.raises(onecopy.InvalidArgument, match="1 to 1024 bytes of text without control characters"):
        store.publish(name, values(1))


def test_names_may_have_slashes_and_any_letters(store):
    for name in ("org/model", "größe 模型", "x" * 1024):
        assert store.publish(name, values(1)) == 1
    assert len(store.list()) == 3


def test_bad_tensors_are_refused(store):
    with pytest.raises(TypeError, match="mapping of names to tensors, such as module.state_dict"):
        store.publish("a", torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match='"x" must be a tensor or an array'):
        store.publish("a", {"x": "text"})
    with pytest.raises(onecopy.InvalidArgument, match="keep is 0"):
        store.publish("a", values(1), keep=0)
    assert store.list() == []


def test_a_module_takes_the_memory(store):
    model = torch.nn.Linear(3, 2)
    store.publish("a", model.state_dict())
    other = torch.nn.Linear(3, 2, device="meta")
    weights = store.open("a")
    weights.load_into(other)
    assert torch.equal(other(torch.ones(3)), model(torch.ones(3)))
    assert other.weight.data_ptr() == weights["weight"].data_ptr()


def test_watch_yields_each_version_that_becomes_current(store):
    store.publish("a", values(1))
    seen = store.watch("a", timeout=20)
    assert next(seen) == 1
    store.publish("a", values(2))
    assert next(seen) == 2
    store.rollback("a", to=1)
    assert next(seen) == 1
    assert list(store.watch("a", timeout=0.05)) == [1]


def test_without_autostart_the_error_names_the_command(store_place, monkeypatch):
    monkeypatch.setenv("ONECOPY_STORE_AUTOSTART", "0")
    with pytest.raises(onecopy.PeerDied, match="onecopy store serve"):
        onecopy.store.connect()


def test_a_keeper_is_started_once_however_many_ask(store_place):
    program = "import onecopy; print(sorted(onecopy.store.connect().keeper().values()))"
    started = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    answers = {process.communicate(timeout=100)[0] for process in started}
    assert len(answers) == 1


def test_a_limit_is_an_error_with_the_numbers(store_place):
    command = onecopy.store._command()
    assert (
        subprocess.run([command, "store", "serve", "--background", "--max-bytes", "8KiB"], timeout=60).returncode == 0
    )
    store = onecopy.store.connect()
    store.publish("a", {"x": torch.ones(1024)})
    with pytest.raises(onecopy.OutOfMemory, match="has 8192 bytes, and all versions and drafts have 4096 of the 8192"):
        store.publish("b", {"x": torch.ones(2048)})
    assert [entry["name"] for entry in store.list()] == ["a"]


def test_a_forked_child_reads_and_publishes(store):
    store.publish("a", values(1))
    reader = store.open("a")
    pid = os.fork()
    if pid == 0:
        ok = float(reader["layer.0"][0, 0]) == 1 and store.publish("a", values(2)) == 2
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.open("a").version == 2


def test_a_keeper_that_is_replaced_hands_everything_over(store):
    store.publish("a", values(1))
    live, before = store.follow("a"), store.keeper()
    subprocess.run([onecopy.store._command(), "store", "serve", "--replace", "--background"], timeout=60, check=True)
    assert eventually(lambda: not set(store.keeper().values()) & set(before.values()))
    store.publish("a", values(2))
    assert live.update() == 2
    assert [float(tensor[0, 0]) for tensor in live.values()] == [2, 2, 2]
    assert store.open("a", 1).version == 1


def test_the_command_puts_lists_rolls_back_and_removes(store, tmp_path):
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "x.npy"
    numpy.save(path, numpy.arange(4.0))
    command = onecopy.store._command()

    def call(*words):
        return subprocess.run([command, "store", *words], capture_output=True, text=True, timeout=60, check=True).stdout

    assert call("put", "a", str(path)) == "a version 1: 1 tensor, 32 B\n"
    call("put", "a", str(path))
    assert json.loads(call("ls", "--format", "json"))["objects"][0]["current"] == 2
    call("rollback", "a", "1")
    assert "1*" in call("ls")
    assert store.open("a")["array"].tolist() == [0, 1, 2, 3]
    call("rm", "a")
    assert call("ls") == "The store is empty.\n"


def test_the_keeper_ends_when_it_is_told_to(store, store_place):
    halves = store.keeper()
    store.stop()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in halves.values()))
    assert not (store_place / "keeper").exists()


def test_a_tensor_of_the_store_that_is_shared_otherwise_is_a_copy(store):
    store.publish("a", values(1))
    live = store.follow("a")
    tensor = live["layer.1"]
    place = tensor.data_ptr()
    other = onecopy.open(onecopy.share(tensor), framework="torch")
    assert torch.equal(other, tensor)
    with store.draft("a") as draft:
        draft["layer.1"].fill_(2)
    live.update()
    assert tensor.data_ptr() == place
    assert float(tensor[0, 0]) == 2
    assert float(other[0, 0]) == 1


def shared(value):
    return onecopy.full((4, 5), float(value))


def test_tensors_published_as_they_are_are_the_memory_that_readers_map(store):
    weight, module = torch.full((4, 5), 1.0), torch.nn.Linear(3, 2)
    tensors = {"onecopy": shared(1), "torch": weight, **module.state_dict()}
    store.publish("a", tensors, place="as_is")  # moves the torch tensors into shared memory
    assert store.publish("a", tensors, place="as_is", copy=False, checksums=True) == 2
    found = store.open("a")
    found.verify()
    assert torch.equal(found["weight"], module.weight)
    weight.fill_(2)  # as no publisher may
    assert float(found["torch"][0, 0]) == 2
    assert torch.equal(found["onecopy"], torch.ones(4, 5))


def test_memory_that_ends_with_its_maker_is_refused_if_it_may_not_be_copied(store):
    numpy = pytest.importorskip("numpy")
    for tensor in (torch.ones(3), torch.arange(12).reshape(3, 4).t(), numpy.ones(3)):
        with pytest.raises(onecopy.Unsupported, match='"x"'):
            store.publish("a", {"x": tensor}, place="as_is", copy=False)
    assert store.list() == []
    store.publish("a", {"x": numpy.ones(3), "y": torch.arange(12).reshape(3, 4).t()}, place="as_is")
    assert store.open("a")["y"].tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


def test_tensors_that_did_not_change_are_shared_with_the_version_before(store):
    store.publish("a", values(1))
    before = store.open("a")
    store.publish("a", {**before, "layer.1": shared(2)}, keep=1, place="as_is", copy=False)
    del before
    heads = [float(tensor[0, 0]) for tensor in store.open("a").values()]
    assert heads == [1, 2, 1]


def test_a_version_that_is_as_it_is_outlives_its_publisher(store):
    program = """
import onecopy, os, signal
onecopy.store.connect().publish("a", {"x": onecopy.full((4, 5), 3.0)}, place="as_is", copy=False)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(program).returncode == -signal.SIGKILL
    assert store.open("a")["x"].tolist() == [[3.0] * 5] * 4
