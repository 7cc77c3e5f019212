# SPDX-License-Identifier: Apache-2.0
"""Pickles of tensors: the elements for a file, a handle for another process."""

import copy
import multiprocessing
import pickle
import types
from multiprocessing.reduction import ForkingPickler

import pytest

import onecopy

DTYPES = ["bool", "int8", "uint64", "float16", "float32", "complex128", "bfloat16", "float8_e4m3fn"]

WRITER = """
    import pickle, sys
    import onecopy

    t = onecopy.empty((2, 3), "int32")
    for i in range(6):
        t.reshape(-1)[i] = i
    with open(sys.argv[1], "wb") as file:
        pickle.dump({"w": t, "column": t[:, 1]}, file, int(sys.argv[2]))
"""

TORCH_WRITER = """
    import sys
    import torch
    import onecopy

    t = onecopy.empty((2, 3), "bfloat16")
    t[:] = 1.5
    torch.save({"w": t, "row": t[1], "none": onecopy.empty((0, 3)), "torch": torch.ones(2)}, sys.argv[1])
"""


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_in_a_file_outlives_its_process(protocol, tmp_path, run_python):
    run_python(WRITER, str(tmp_path / "checkpoint"), str(protocol))
    tree = pickle.loads((tmp_path / "checkpoint").read_bytes())
    assert tree["w"].tolist() == [[0, 1, 2], [3, 4, 5]] and tree["column"].tolist() == [1, 4]
    assert tree["w"].dtype == "int32" and tree["w"].is_shared


@pytest.mark.parametrize("name", [b"onecopy.pickling.tensors", b"onecopy._reopen"])
def test_a_file_opens_in_a_fresh_process_by_each_name_that_the_module_had(name, tmp_path, run_python):
    """Files that were written while the module was ``onecopy._reopen`` still load."""
    written = pickle.dumps(onecopy.full(3, 7, "int32"), 2)  # protocol 2 has the name as a line of text
    assert b"conecopy.pickling.tensors\n" in written
    (tmp_path / "file").write_bytes(written.replace(b"onecopy.pickling.tensors", name))
    reader = "import pathlib, pickle, sys\nprint(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()).tolist())"
    assert run_python(reader, str(tmp_path / "file")) == "[7, 7, 7]\n"


def test_what_torch_saves_outlives_its_process(tmp_path, run_python):
    torch = pytest.importorskip("torch")
    run_python(TORCH_WRITER, str(tmp_path / "checkpoint"))
    tree = torch.load(tmp_path / "checkpoint", weights_only=False)
    assert isinstance(tree["w"], onecopy.Tensor) and tree["w"].dtype == "bfloat16"
    assert tree["w"].tolist() == [[1.5] * 3] * 2 and tree["row"].tolist() == [1.5] * 3
    assert tree["none"].shape == (0, 3) and tree["torch"].tolist() == [1, 1]


def test_torch_saves_a_view_and_not_its_whole_block(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(onecopy.zeros(1 << 20, "uint8")[:8], tmp_path / "small")
    assert (tmp_path / "small").stat().st_size < 1 << 16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_has_the_elements_of_every_dtype(dtype, protocol):
    t = onecopy.full((2, 1, 3), 1, dtype)
    again = pickle.loads(pickle.dumps(t, protocol))
    assert (again.dtype, again.shape, bytes(again)) == (t.dtype, t.shape, bytes(t))
    t[0] = 0
    assert bytes(again) != bytes(t)


def test_pickles_of_scalars_and_of_nothing():
    assert pickle.loads(pickle.dumps(onecopy.full((), 5, "int64"))).item() == 5
    assert pickle.loads(pickle.dumps(onecopy.empty((3, 0)))).shape == (3, 0)
    assert pickle._loads(pickle._dumps(onecopy.full(2, 7))).tolist() == [7, 7]


def test_elements_go_out_of_band_to_who_asks_for_it():
    buffers = []
    t = onecopy.zeros(1000)
    data = pickle.dumps(t, 5, buffer_callback=buffers.append)
    assert len(data) < 500 and len(buffers) == 1
    t[0] = 3
    assert pickle.loads(data, buffers=buffers)[0].item() == 3


def test_what_was_opened_for_reading_is_pickled_too():
    read_only = onecopy.open(onecopy.share(onecopy.full(3, 2)), access="read")
    again = pickle.loads(pickle.dumps(read_only))
    again[0] = 9
    assert again.tolist() == [9, 2, 2]


def test_memory_of_another_library_is_pickled_too():
    np = pytest.importorskip("numpy")
    assert pickle.loads(pickle.dumps(onecopy.from_dlpack(np.arange(3)))).tolist() == [0, 1, 2]


def test_a_deep_copy_is_a_copy():
    t = onecopy.full(3, 1)
    same, other = copy.copy(t), copy.deepcopy({"t": t})["t"]
    t[0] = 5
    assert same.tolist() == [5, 1, 1] and other.tolist() == [1, 1, 1]


# --- channels ---------------------------------------------------------------------------------------


def through(dumps) -> bool:
    """Returns whether this pickler writes a handle instead of a copy."""
    t = onecopy.zeros(2)
    again = pickle.loads(dumps(t))
    again[0] = 5
    return t.tolist() == [5, 0]


def test_multiprocessings_pickler_writes_handles():
    assert through(ForkingPickler.dumps)
    assert not through(pickle.dumps)


def test_multiprocessing_may_be_imported_after_onecopy(run_python):
    run_python("""
        import sys
        import onecopy
        assert "multiprocessing" not in sys.modules
        from multiprocessing import Pipe
        here, there = Pipe()
        tensor = onecopy.zeros(2)
        here.send([tensor])
        there.recv()[0][1] = 5
        assert tensor.tolist() == [0, 5]
    """)


def test_other_picklers_write_handles_when_a_channel_calls_them():
    loky = pytest.importorskip("joblib.externals.loky.backend.reduction")
    cloudpickle = pytest.importorskip("cloudpickle")
    assert through(loky.dumps)
    assert not through(cloudpickle.dumps)


@pytest.mark.parametrize(
    "name", ["ray.cloudpickle.cloudpickle", "joblib.externals.loky.backend.reduction", "joblib.pool"]
)
def test_a_channel_is_known_by_its_module(name):
    module = types.ModuleType(name)
    source = "import pickle\ndef dumps(obj):\n    return pickle.dumps(obj)\n"
    exec(compile(source, name, "exec"), module.__dict__)
    assert through(module.dumps)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_arguments_and_queues_of_the_standard_library_carry_handles(method, run_python):
    run_python(f"""
        import multiprocessing
        import onecopy

        def add(tensor, queue):
            tensor[0] = 1
            queue.get()[1] = 2

        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            tensor, queue = onecopy.zeros(2), context.Queue()
            child = context.Process(target=add, args=(tensor, queue))
            child.start()
            queue.put(tensor)
            child.join()
            assert child.exitcode == 0 and tensor.tolist() == [1, 2], tensor
    """)


def test_pools_and_executors_carry_handles():
    from concurrent.futures import ProcessPoolExecutor

    tensor = onecopy.zeros(2)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        executor.submit(set_item, tensor, 0).result()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(set_item, (tensor, 1))
    assert tensor.tolist() == [1, 1]


def set_item(tensor, at) -> None:
    tensor[at] = 1


def test_a_handle_is_pickled_as_a_handle_everywhere():
    t = onecopy.zeros(2)
    pickle.loads(pickle.dumps(onecopy.share(t)))
    onecopy.open(pickle.loads(pickle.dumps(onecopy.share(t))))[0] = 4
    assert t.tolist() == [4, 0]


def test_a_bundle_is_not_pickled_and_says_what_is():
    bundle = onecopy.open(onecopy.share({"a": onecopy.full(2, 3)}))
    for dumps in (pickle.dumps, ForkingPickler.dumps):
        with pytest.raises(TypeError, match=r"send bundle.handle .* save dict\(bundle\)"):
            dumps(bundle)
    assert pickle.loads(pickle.dumps(dict(bundle)))["a"].tolist() == [3, 3]


def test_importing_onecopy_again_leaves_the_reducers_of_multiprocessing(run_python):
    pytest.importorskip("torch")
    run_python("""
        import onecopy, onecopy.multiprocessing
        from multiprocessing.reduction import ForkingPickler
        ours = ForkingPickler._extra_reducers[onecopy.Tensor]
        import importlib
        importlib.reload(onecopy)
        assert ForkingPickler._extra_reducers[onecopy.Tensor] is ours
        onecopy.multiprocessing.uninstall()
        assert ForkingPickler._extra_reducers.get(onecopy.Tensor) is not ours
    """)
