# SPDX-License-Identifier: Apache-2.0
"""Files straight into shared memory."""

import os
import pathlib
import signal
import struct
import threading
import time

import pytest

import onecopy
from support.safetensors_files import write_safetensors


@pytest.fixture
def model(tmp_path):
    return write_safetensors(
        tmp_path / "model.safetensors",
        {
            "w": ("F32", [2, 2], struct.pack("<4f", 1, 2, 3, 4)),
            "layer.b": ("BF16", [2], b"\x80\x3f\x00\x40"),
            "none": ("I64", [0], b""),
            "q": ("F8_E4M3", [3], b"\x38\x38\x38"),
        },
        {"format": "pt"},
    )


def write_npy(path, content, descr="<f4", shape=(3,), fortran=False):
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + content)
    return path


def test_safetensors(model):
    tensors = onecopy.load_safetensors(model)
    assert list(tensors) == ["w", "layer.b", "none", "q"]
    assert tensors["w"].tolist() == [[1, 2], [3, 4]]
    assert tensors["layer.b"].dtype == "bfloat16" and tensors["layer.b"].tolist() == [1, 2]
    assert tensors["none"].shape == (0,)
    assert tensors["q"].dtype == "float8_e4m3fn" and tensors["q"].tolist() == [1, 1, 1]
    assert all(t.is_shared and t.data_ptr % 64 == 0 for t in tensors.values())


@pytest.mark.parametrize("spelling", [str, os.fspath, os.fsencode, pathlib.Path])
def test_paths_in_every_spelling(model, spelling):
    assert len(onecopy.load_safetensors(spelling(model))) == 4


def test_a_loaded_model_is_shared_without_a_copy(model, run_python):
    tensors = onecopy.load_safetensors(model)
    handle = onecopy.share(tensors)
    program = """
        import sys, onecopy
        onecopy.open(sys.argv[1])["w"][0, 0] = 9
    """
    run_python(program, str(handle))
    assert tensors["w"][0, 0].item() == 9


def test_frameworks(model):
    torch = pytest.importorskip("torch")
    tensors = onecopy.load_safetensors(model, framework="torch")
    assert tensors["layer.b"].dtype == torch.bfloat16 and tensors["w"].tolist() == [[1, 2], [3, 4]]
    assert tensors["w"].untyped_storage().data_ptr() == tensors["q"].untyped_storage().data_ptr(), "one block"


def test_npy(tmp_path):
    path = write_npy(tmp_path / "a.npy", struct.pack("<6f", *range(6)), shape=(2, 3))
    assert onecopy.load_npy(path).tolist() == [[0, 1, 2], [3, 4, 5]]
    path = write_npy(tmp_path / "b.npy", struct.pack("<6f", *range(6)), shape=(2, 3), fortran=True)
    t = onecopy.load_npy(path)
    assert t.tolist() == [[0, 2, 4], [1, 3, 5]] and t.strides == (1, 2)


def test_npy_of_numpy(tmp_path):
    np = pytest.importorskip("numpy")
    for array in (np.arange(4.0), np.float64(3), np.zeros((0, 2), "i2"), np.asfortranarray(np.eye(3)) > 0):
        np.save(tmp_path / "a.npy", array)
        loaded = onecopy.load_npy(tmp_path / "a.npy", framework="numpy")
        assert loaded.dtype == array.dtype and (loaded == array).all() and loaded.shape == array.shape


def test_progress_is_told_the_bytes(model):
    seen = []
    onecopy.load_safetensors(model, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, 23) and seen[-1] == (23, 23)
    assert seen == sorted(seen)


def test_what_progress_raises_ends_the_loading(model):
    before = onecopy.stats()["live_blocks"]

    def stop(done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        onecopy.load_safetensors(model, progress=stop)
    assert onecopy.stats()["live_blocks"] == before


def test_a_signal_ends_the_loading(model):
    def interrupt(done, total):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        onecopy.load_safetensors(model, progress=interrupt)


def shared_memory():
    """Bytes that the files of our segments have."""
    held = 0
    for descriptor in os.scandir("/proc/self/fd"):
        try:
            if "onecopy" in os.readlink(descriptor):
                held += os.stat(descriptor).st_blocks * 512
        except OSError:
            pass  # closed meanwhile
    return held


@pytest.mark.parametrize("make", [onecopy.empty, onecopy.zeros, lambda n, t: onecopy.full(n, 7, t)])
def test_a_signal_is_handled_while_memory_is_reserved(make):
    """The handler runs when a part of the memory is there, and its exception ends the call."""
    size = 512 << 20
    onecopy.collect()
    others, shared = shared_memory(), onecopy.stats()["bytes_shared"]
    seen = []

    def stop(number, frame):
        seen.append(shared_memory() - others)
        raise LookupError("enough")

    def send():
        while shared_memory() - others < size // 8 and not done:
            pass
        signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        for _ in range(20):  # a machine with much to do may run the other thread too late
            onecopy.collect()
            done = False
            other = threading.Thread(target=send)
            other.start()
            with pytest.raises(LookupError, match="enough"):
                try:
                    make(size, "uint8")
                finally:
                    done = True
                    other.join()
            if seen[-1] < size:
                break
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen[-1] < size
    deadline = time.monotonic() + 60  # the watch thread gives back what was reserved
    while onecopy.stats()["bytes_shared"] - shared >= size:
        assert time.monotonic() < deadline, "what was reserved is not given back"
        time.sleep(0.01)


@pytest.mark.parametrize("load", [onecopy.load_safetensors, onecopy.load_npy])
def test_files_that_are_none(tmp_path, load):
    with pytest.raises(onecopy.System, match="nowhere") as raised:
        load(tmp_path / "nowhere")
    assert raised.value.vendor_code == 2 and isinstance(raised.value, OSError)
    for content in (b"", b"\0" * 7, b"\0" * 100, b"\xff" * 100, b"\x93NUMPY" + b"\xff" * 20):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises((onecopy.BadFile, onecopy.Unsupported), match="bad"):
            load(tmp_path / "bad")


def test_every_truncation_is_noticed(model, tmp_path):
    content = model.read_bytes()
    for length in range(0, len(content), 3):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(onecopy.BadFile):
            onecopy.load_safetensors(tmp_path / "cut")


@pytest.mark.parametrize("descr", [">f4", "|O", "<U3", "<M8[s]"])
def test_npy_elements_that_are_no_plain_numbers(tmp_path, descr):
    path = write_npy(tmp_path / "a.npy", b"\0" * 100, descr=descr, shape=(1,))
    with pytest.raises((onecopy.Unsupported, onecopy.BadFile), match="a.npy"):
        onecopy.load_npy(path)
