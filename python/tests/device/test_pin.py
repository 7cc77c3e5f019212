# SPDX-License-Identifier: Apache-2.0
"""Memory of the host that cards copy at the speed of the link: pin(), loaders, to_device() and load()."""

from __future__ import annotations

import gc
import json
import os
import queue
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import onecopy
from onecopy import _core
from onecopy.__main__ import command_to_start
from support.devices import borrower, eventually, is_simulated, on_device

MIB = 1 << 20


def torch_has_cuda() -> bool:
    import torch

    return torch.version.cuda is not None


pytestmark = pytest.mark.usefixtures("device_processes")


def bytes_on(tensor) -> set[int]:
    return set(tensor.cpu().numpy().reshape(-1).view("uint8").tolist())


@on_device
def test_new_memory_is_pinned_and_counted():
    before = onecopy.stats()["pinned_bytes"]
    for made in (
        onecopy.empty(10, pin=True),
        onecopy.zeros(10, "uint8", pin=True),
        onecopy.full(10, 1, pin=True),
        onecopy.ones(10, pin=True),
        onecopy.zeros_like(onecopy.empty(3), pin=True),
    ):
        assert onecopy.is_pinned(made)
    large = onecopy.empty(40 * MIB, "uint8")
    assert not onecopy.is_pinned(large)
    assert onecopy.pin(large) is large and onecopy.is_pinned(large)
    assert onecopy.stats()["pinned_bytes"] >= before + 40 * MIB
    onecopy.unpin(large)
    assert eventually(lambda: not onecopy.is_pinned(large))


@on_device
def test_what_is_in_a_value_is_pinned():
    import torch

    module = torch.nn.Linear(3, 4)
    value = {"a": onecopy.empty(3), "b": [torch.ones(4), 5, "text", None], "c": (onecopy.zeros((2, 2)),)}
    assert onecopy.pin(value) is value and onecopy.is_pinned(value)
    onecopy.pin(module)
    assert onecopy.is_pinned(module)
    for wrong in (5, "text", object()):
        with pytest.raises(TypeError, match="must be a tensor"):
            onecopy.pin(wrong)
    with pytest.raises(onecopy.InvalidArgument, match="no tensor"):
        onecopy.pin([1, "a"])
    with pytest.raises(onecopy.InvalidArgument, match="another library"):
        import numpy

        onecopy.pin(numpy.ones(3))


def _open_pinned(handle, framework=None):
    opened = onecopy.open(handle, pin=True, framework=framework)
    return onecopy.is_pinned(opened), onecopy.stats()["pinned_bytes"] > 0


@on_device
def test_others_pin_for_themselves():
    tensor = onecopy.full(1000, 3.0)
    assert borrower(_open_pinned, str(onecopy.share(tensor))) == (True, True)
    bundle = onecopy.share({"a": tensor, "b": onecopy.zeros(5)})
    assert borrower(_open_pinned, str(bundle), "torch") == (True, True)


@on_device
def test_the_pinning_thread_of_a_loader_pins_batches_where_they_are():
    """torch's own loop; the batches lie in memory of onecopy, and are not copied."""
    import torch
    from torch.utils.data._utils import pin_memory

    import onecopy.multiprocessing as mp

    class Batch:
        def __init__(self, x):
            self.x = x

        def pin_memory(self):
            self.x = self.x.pin_memory()
            return self

    source, target, done = queue.Queue(), queue.Queue(), threading.Event()
    own_index = torch.accelerator.set_device_index
    torch.accelerator.set_device_index = lambda index: None
    try:
        assert mp.installed()
        thread = threading.Thread(target=pin_memory._pin_memory_loop, args=(source, target, 0, done, None))
        thread.start()
        shared = [torch.arange(4.0).share_memory_() for _ in range(3)]
        source.put((0, {"x": shared[0], "y": [(shared[1],)], "z": Batch(shared[2])}))
        _, batch = target.get(timeout=60)
    finally:
        done.set()
        thread.join()
        torch.accelerator.set_device_index = own_index
    got = [batch["x"], batch["y"][0][0], batch["z"].x]
    assert [t.data_ptr() for t in got] == [t.data_ptr() for t in shared]
    assert all(onecopy._core._pin_batch(t, 0) for t in got)
    assert not onecopy._core._pin_batch(torch.ones(3), 0), "memory of torch is torch's to pin"


@on_device
def test_dropped_tensors_end_late_and_captures_are_asked_for():
    import torch

    before = onecopy.stats()["late_releases"]
    tensor = onecopy.empty(100, pin=True)
    del tensor
    gc.collect()
    assert onecopy.stats()["late_releases"] > before
    assert torch.cuda.CUDAGraph.capture_begin.__module__ == "onecopy.device.captures" or hasattr(
        torch.cuda.CUDAGraph.capture_begin, "__wrapped__"
    )


@on_device
def test_a_value_goes_to_a_card_and_back():
    import torch

    value = {
        "a": onecopy.full((3, 5), 2, "uint8"),
        "b": [onecopy.full(MIB, 3, "uint8"), 7, "text"],
        "c": torch.full((4, 4), 4, dtype=torch.uint8).t(),
        "d": (onecopy.zeros(0, "uint8"),),
    }
    there = onecopy.to_device({k: v for k, v in value.items() if k != "c"}, "cuda:0")
    assert str(there["a"].device) == "cuda:0" and there["a"].shape == (3, 5)
    assert bytes_on(there["a"]) == {2} and bytes_on(there["b"][0]) == {3} and there["b"][1:] == [7, "text"]
    back = onecopy.to_device(there, "cpu")
    assert onecopy.is_pinned(back["a"]) and bytes_on(back["a"]) == {2} and bytes_on(back["b"][0]) == {3}
    assert borrower(_first_byte, str(onecopy.share(there["b"][0]))) == 3
    with pytest.raises(TypeError, match='value at "x"'):
        onecopy.to_device({"x": object()}, "cuda:0")
    with pytest.raises(onecopy.InvalidArgument, match="cuda:9"):
        onecopy.to_device(value["a"], "cuda:9")


@on_device
@pytest.mark.parametrize("move", [onecopy.to_device, onecopy.view_on])
def test_a_value_keeps_its_form_on_a_card(move):
    import torch

    class Pair(NamedTuple):
        first: Any
        second: Any

    row = onecopy.full(4096, 5, "uint8")
    value = {"a": [Pair(row, (row, None)), {"b": 1.5}], "c": onecopy.open(onecopy.share({"d": row})), "e": (), "f": {}}
    there = move(value, "cuda:0")
    pair = there["a"][0]
    assert type(pair) is Pair and type(pair.second) is tuple and pair.second[1] is None
    assert there["a"][1] == {"b": 1.5} and there["c"].keys() == {"d"} and there["e"] == () and there["f"] == {}
    assert all(bytes_on(tensor) == {5} for tensor in (pair.first, pair.second[0], there["c"]["d"]))
    with pytest.raises(onecopy.Unsupported, match=r'value at "x\.1" .*only dense tensors'):
        move({"x": [row, torch.eye(2).to_sparse()]}, "cuda:0")
    with pytest.raises(TypeError, match=r'value at "x\.1" must be a tensor'):
        move({"x": [row, {1}]}, "cuda:0")


def _first_byte(handle):
    return int(onecopy.open(handle).cpu().numpy().reshape(-1)[0])


@on_device
def test_neighbours_become_one_block_on_the_card():
    block = onecopy.full(64 * 4096, 1, "uint8")
    parts = [block[i * 4096 : (i + 1) * 4096] for i in range(64)]
    there = onecopy.to_device(parts, "cuda:0")
    begins = [t.data_ptr for t in there]
    assert begins == [begins[0] + 4096 * i for i in range(64)]


@on_device
@pytest.mark.parametrize("backwards", [False, True])
def test_the_card_copies_the_first_part_of_a_large_value_while_the_rest_is_looked_at(backwards):
    block = onecopy.empty(64 * 4096, "uint8")
    for i in range(64):
        block[i * 4096 : (i + 1) * 4096].numpy()[:] = i
    value = {i: [block[i * 4096 : (i + 1) * 4096], i] for i in range(64)}
    if backwards:
        value = dict(reversed(value.items()))
    there, parts = _core._to_device(value, "cuda:0", None, 16 * 4096)
    assert parts == ([64] if backwards else [16, 16, 16, 16])
    assert list(there) == list(value)
    for i, (tensor, number) in there.items():
        assert number == i and bytes_on(tensor) == {i}


def bytes_on_the_host() -> int:
    now = onecopy.stats()
    return now["bytes_shared"] - now["device_bytes"]


PUBLISH = """
import sys, onecopy
onecopy.store.connect().publish("weights", {"w": onecopy.full(40 << 20, 7, "uint8")}, place=sys.argv[1])
"""


@on_device
@pytest.mark.parametrize("place", ["slot", "as_is"])
def test_tensors_of_a_version_go_to_a_card_without_a_copy_on_the_host(place, tmp_path):
    os.environ["ONECOPY_STORE_DIR"] = str(tmp_path / "store")
    try:
        subprocess.run([sys.executable, "-c", PUBLISH, place], check=True)
        version = onecopy.store.connect(framework="onecopy").open("weights")
        before = bytes_on_the_host()
        there = onecopy.to_device(dict(version), "cuda:0")
        made = bytes_on_the_host() - before
        assert made < 40 * MIB, f"{made} bytes are more than a ring of pinned memory"
        assert str(there["w"].device) == "cuda:0" and bytes_on(there["w"]) == {7}
        here = onecopy.to_device(dict(version), "cpu")
        assert bytes_on(here["w"]) == {7} and here["w"].data_ptr != version["w"].data_ptr
    finally:
        subprocess.run([command_to_start(), "store", "stop"], check=True)


@on_device
def test_a_card_reads_the_hosts_memory_in_place():
    value = {"a": onecopy.full((3, 5), 2, "uint8"), "b": [onecopy.full(MIB, 3, "uint8"), 7]}
    views = onecopy.view_on(value, "cuda:0")
    assert str(views["a"].device) == "cuda:0" and views["a"].shape == (3, 5) and views["b"][1] == 7
    assert views["a"].data_ptr == value["a"].data_ptr and onecopy.is_pinned(value["a"])
    value["b"][0].numpy()[:] = 9
    assert bytes_on(views["a"]) == {2} and bytes_on(views["b"][0]) == {9}
    del value["b"]
    gc.collect()
    assert bytes_on(views["b"][0]) == {9}, "the view keeps the memory"
    onecopy.unpin(value["a"])
    assert onecopy.is_pinned(value["a"]) and bytes_on(views["a"]) == {2}
    with pytest.raises(onecopy.InvalidArgument, match="share the tensor that it is a view of"):
        onecopy.share(views["a"])
    with pytest.raises(onecopy.InvalidArgument, match="own already"):
        onecopy.view_on(views["a"], "cuda:0")
    with pytest.raises(onecopy.InvalidArgument, match="cuda:9"):
        onecopy.view_on(value["a"], "cuda:9")
    with pytest.raises(onecopy.InvalidArgument, match="for a card"):
        onecopy.view_on(value["a"], "cpu")
    with pytest.raises(TypeError, match='value at "x"'):
        onecopy.view_on({"x": object()}, "cuda:0")


@pytest.mark.skipif(is_simulated() or not torch_has_cuda(), reason="wants a CUDA GPU, and a torch that can use it")
@on_device
def test_torch_computes_on_the_hosts_memory_in_place():
    import torch

    weight = torch.nn.Parameter(torch.full((64, 64), 2.0))
    view = onecopy.view_on(weight, "cuda:0")
    assert view.is_cuda and view.data_ptr() == weight.data_ptr() and not view.requires_grad
    assert (torch.ones(64, device="cuda:0") @ view == 128).all()
    view.mul_(2)
    torch.cuda.synchronize()
    assert (weight == 4).all(), "the card has written to the host's memory"
    assert str(onecopy.open(onecopy.share(weight), framework="torch").device) == "cpu"
    with pytest.raises(onecopy.InvalidArgument, match="share the tensor that it is a view of"):
        onecopy.share(view)


def save_file(tensors, path):
    """Rows of bytes as a safetensors file."""
    at, header = 0, {}
    for name, row in tensors.items():
        header[name] = {"dtype": "U8", "shape": list(row.shape), "data_offsets": [at, at + row.size]}
        at += row.size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(row.tobytes() for row in tensors.values()))


@on_device
def test_weights_go_from_a_file_to_a_card(tmp_path):
    import numpy

    numbers = numpy.random.default_rng(1)
    saved = {f"t{i}": numbers.integers(0, 255, size, "uint8") for i, size in enumerate((1, 4096, 3 * MIB + 5, 0, 77))}
    save_file(saved, tmp_path / "a.safetensors")
    seen = []
    loaded = onecopy.load(tmp_path / "a.safetensors", "cuda:0", progress=lambda done, total: seen.append((done, total)))
    assert loaded.keys() == saved.keys()
    for name, want in saved.items():
        assert str(loaded[name].device) == "cuda:0"
        assert loaded[name].data_ptr % 256 == 0 or want.size == 0
        assert (loaded[name].cpu().numpy() == want).all(), name
    assert seen[0][0] == 0 and seen[-1][0] == seen[-1][1]
    assert borrower(_first_byte, str(onecopy.share(loaded["t4"]))) == int(saved["t4"][0])
    on_host = onecopy.load(tmp_path / "a.safetensors", pin=True)
    assert onecopy.is_pinned(on_host["t2"]) and (on_host["t2"].numpy() == saved["t2"]).all()

    class Stop(Exception):
        pass

    def stop(done, total):
        if done:
            raise Stop

    with pytest.raises(Stop):
        onecopy.load(tmp_path / "a.safetensors", "cuda:0", progress=stop)


@on_device
def test_a_file_that_ends_early_is_refused_on_the_way_to_a_card(tmp_path):
    import os

    import numpy

    path = tmp_path / "a.safetensors"
    save_file({"x": numpy.ones(8 * MIB, "uint8")}, path)

    def cut(done, total):
        os.truncate(path, 4 * MIB)

    with pytest.raises(onecopy.BadFile, match="too early"):
        onecopy.load(path, "cuda:0", progress=cut)
    with pytest.raises(FileNotFoundError):
        onecopy.load(tmp_path / "none.safetensors", "cuda:0")


@on_device
def test_a_file_that_is_replaced_while_it_is_loaded_is_the_one_that_was_opened(tmp_path):
    import os

    import numpy

    path, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"x": numpy.full(8 * MIB, 1, "uint8")}, path)
    save_file({"x": numpy.full(8 * MIB, 2, "uint8")}, other)

    def replace(done, total):
        if other.exists():
            os.replace(other, path)

    assert bytes_on(onecopy.load(path, "cuda:0", progress=replace)["x"]) == {1}
    assert bytes_on(onecopy.load(path, "cuda:0")["x"]) == {2}


@on_device
def test_files_without_direct_reads_are_loaded_and_what_is_no_file_is_refused(tmp_path):
    import os
    import tempfile

    import numpy

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        save_file({"x": numpy.full(3 * MIB, 5, "uint8")}, Path(folder) / "a.safetensors")
        assert bytes_on(onecopy.load(folder, "cuda:0")["x"]) == {5}
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(onecopy.InvalidArgument, match="is a pipe"):
        onecopy.load(tmp_path / "pipe.safetensors", "cuda:0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(onecopy.InvalidArgument, match="without a .safetensors file"):
        onecopy.load(tmp_path / "empty", "cuda:0")
    save_file({"x": numpy.ones(4, "uint8")}, tmp_path / "a.safetensors")
    with pytest.raises(onecopy.InvalidArgument, match="cuda:9"):
        onecopy.load(tmp_path / "a.safetensors", "cuda:9")


def test_without_a_card_that_is_said(run_python):
    run_python(
        """
        import onecopy
        for call in (lambda: onecopy.empty(3, pin=True), lambda: onecopy.pin(onecopy.zeros(3))):
            try:
                call()
            except onecopy.Unsupported as error:
                assert "libnot-there" in str(error) and "doctor" in str(error), error
            else:
                raise AssertionError("it was pinned")
        assert not onecopy.is_pinned(onecopy.zeros(3))
        """,
        env={"ONECOPY_CUDA_DRIVER": "libnot-there.so.1", "ONECOPY_ASCEND_RUNTIME": "libnot-there.so.2"},
    )


@pytest.mark.skipif(is_simulated() or not torch_has_cuda(), reason="wants a CUDA GPU, and a torch that can use it")
@on_device
def test_the_loader_of_torch_pins_on_a_real_card():
    import torch

    import onecopy.multiprocessing

    batches = torch.utils.data.DataLoader(
        torch.arange(64.0).reshape(16, 4), batch_size=4, num_workers=2, pin_memory=True
    )
    for batch in batches:
        assert batch.is_pinned() and onecopy.is_pinned(batch)


@on_device
def test_copies_of_torchs_tensors_are_of_their_kinds():
    torch = pytest.importorskip("torch", reason="wants torch installed")
    value = {
        "small": torch.arange(5),
        "half": torch.arange(6, dtype=torch.float16).reshape(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.arange(4.0)),
        "frozen": torch.nn.Parameter(torch.arange(3.0), requires_grad=False),
        "grad": torch.arange(7.0, requires_grad=True),
        "conj": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "empty": torch.empty(0, 3),
        "odd": torch.arange(9, dtype=torch.uint8)[1:8:2],
        "number": 7,
        "list": [torch.ones(2, dtype=torch.bool), onecopy.full(3, 2, "int32"), "text"],
    }
    there = onecopy.to_device(value, "cpu")
    for name, tensor in value.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        copy = there[name]
        assert type(copy) is type(tensor) and copy.requires_grad == tensor.requires_grad, name
        assert copy.is_conj() == tensor.is_conj() and copy.is_leaf and torch.equal(copy, tensor), name
        assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr(), name
    assert there["number"] == 7 and there["list"][2] == "text" and list(there) == list(value)
    assert torch.equal(there["list"][0], value["list"][0]) and there["list"][1].numpy().tolist() == [2, 2, 2]
    there["small"] += 1
    assert torch.equal(there["grad"], torch.arange(7.0)), "a copy overlaps another"


@on_device
def test_copies_in_inference_mode_are_inference_tensors_as_any_others_there():
    torch = pytest.importorskip("torch", reason="wants torch installed")
    value = [torch.arange(5), torch.arange(6.0)]
    with torch.inference_mode():
        there = onecopy.to_device(value, "cpu")
        assert all(torch.equal(a, b) and a.is_inference() for a, b in zip(there, value, strict=True))
