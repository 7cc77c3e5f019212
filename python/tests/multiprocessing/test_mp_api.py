# SPDX-License-Identifier: Apache-2.0
"""onecopy.multiprocessing has every name of torch.multiprocessing and multiprocessing, with its signature."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import queue
import sys

import pytest
import torch
import torch.multiprocessing as torch_mp
from torch.multiprocessing import reductions as torch_reductions

import onecopy.multiprocessing as mp
from onecopy.multiprocessing import reductions

CONTEXTS = ["fork", "spawn", "forkserver"]
MODULES = [
    "connection", "context", "dummy", "heap", "managers", "pool", "process", "queues", "reduction",
    "resource_sharer", "resource_tracker", "shared_memory", "sharedctypes", "synchronize", "util",
]  # fmt: skip


def public(module) -> set[str]:
    """Submodules that others have imported by now appear as names too; they are not exported."""
    names = {name for name in dir(module) if not name.startswith("_")}
    exported = set(getattr(module, "__all__", ()))
    return {n for n in names if n in exported or f"{getattr(module, '__name__', '')}.{n}" not in sys.modules}


def signature(function):
    try:
        return inspect.signature(function)
    except ValueError:  # a builtin that has none
        return None


def same_signature(ours, theirs) -> bool:
    """Returns whether both accept the same calls. Ignores annotations."""
    return shape_of(signature(ours)) == shape_of(signature(theirs))


def shape_of(found):
    return found and [(p.name, p.kind, p.default) for p in found.parameters.values()]


def test_all_names_of_torch_and_of_the_standard_library_are_exported():
    assert set(mp.__all__) >= set(torch_mp.__all__)
    assert set(mp.__all__) >= set(multiprocessing.__all__)
    assert public(mp) >= public(torch_mp)
    assert public(mp) >= public(multiprocessing)


def test_star_import_gives_what_torchs_gives():
    ours, theirs = {}, {}
    exec("from onecopy.multiprocessing import *", ours)
    exec("from torch.multiprocessing import *", theirs)
    assert set(ours) >= set(theirs)


def test_torchs_own_helpers_are_torchs_own():
    for name in ("spawn", "start_processes", "ProcessContext", "SpawnContext", "ProcessExitedException",
                 "ProcessRaisedException", "ENV_VAR_PARALLEL_START", "_prctl_pr_set_pdeathsig",
                 "_set_thread_name", "_get_thread_name"):  # fmt: skip
        assert getattr(mp, name) is getattr(torch_mp, name), name


@pytest.mark.parametrize("name", sorted({*torch_mp.__all__, *multiprocessing.__all__}))
def test_functions_have_the_same_signature(name):
    theirs = getattr(torch_mp, name)
    if callable(theirs):
        assert same_signature(getattr(mp, name), theirs)


@pytest.mark.parametrize("method", [*CONTEXTS, None])
def test_contexts_have_the_same_methods_with_the_same_signatures(method):
    ours, theirs = mp.get_context(method), multiprocessing.get_context(method)
    assert public(ours) >= public(theirs)
    for name in public(theirs):
        if callable(getattr(theirs, name)):
            assert same_signature(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("name", ["Queue", "SimpleQueue", "JoinableQueue", "Process", "Pool", "Event", "Lock"])
def test_what_contexts_make_has_the_methods_of_the_standard_librarys(name):
    ours, theirs = getattr(mp.get_context("fork"), name), getattr(multiprocessing.get_context("fork"), name)
    if name == "Process":
        assert issubclass(ours, theirs)
        return
    arguments = (1,) if name == "Pool" else ()
    made, model = ours(*arguments), theirs(*arguments)
    try:
        assert public(made) >= public(model)
        for method in public(model):
            if callable(getattr(model, method)):
                assert same_signature(getattr(made, method), getattr(model, method)), method
    finally:
        for pool in (made, model):
            if name == "Pool":
                pool.terminate()
                pool.join()
            elif hasattr(pool, "close"):
                pool.close()


@pytest.mark.parametrize("name", MODULES)
def test_submodules_can_be_imported_under_our_name(name):
    ours = importlib.import_module(f"onecopy.multiprocessing.{name}")
    theirs = importlib.import_module(f"multiprocessing.{name}")
    assert getattr(mp, name) is ours
    assert set(getattr(ours, "__all__", ())) >= set(getattr(theirs, "__all__", ()))
    assert theirs.__spec__.name == f"multiprocessing.{name}", "the standard library's module was changed"


def test_queues_has_the_exceptions_that_its_queues_raise():
    assert mp.queues.Empty is queue.Empty and mp.queues.Full is queue.Full


def test_reductions_have_all_of_torchs_names():
    for name in public(torch_reductions):
        assert hasattr(reductions, name), name


def test_reduce_functions_have_torchs_signatures():
    for name in public(torch_reductions):
        if name.startswith("reduce_"):
            ours, theirs = getattr(reductions, name), getattr(torch_reductions, name)
            assert list(signature(ours).parameters) == list(signature(theirs).parameters), name


def test_arguments_of_a_shared_tensor_are_named_and_ordered_as_torch_does_for_cuda():
    ours = signature(reductions.rebuild_shared_tensor)
    theirs = signature(mp.patches.originals.rebuild_cuda_tensor)
    assert list(ours.parameters) == list(theirs.parameters)
    assert list(ours.parameters)[6] == "storage_device"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mp.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        reductions.nonsense  # noqa: B018


WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None  # what an import of a package that is not there meets
    import multiprocessing
    import onecopy
    import onecopy.multiprocessing as mp

    def work(pipe):
        tensor = pipe.recv()
        tensor[:] = [1, 2, 3]
        pipe.send(mp.get_sharing_strategy())

    if __name__ == "__main__":
        assert set(mp.__all__) >= set(multiprocessing.__all__)
        for name in ("spawn", "start_processes"):
            try:
                getattr(mp, name)(print)
            except ImportError as error:
                assert "install torch" in str(error), error
            else:
                raise AssertionError(name)
        mp.set_sharing_strategy("file_descriptor")
        try:
            mp.set_sharing_strategy("carrier_pigeon")
        except AssertionError as error:
            assert "carrier_pigeon" in str(error)
        here, there = mp.Pipe()
        for context in (mp.get_context("fork"), mp.get_context("spawn")):
            process = context.Process(target=work, args=(there,))
            process.start()
            tensor = onecopy.zeros(3, "int32")
            here.send(tensor)
            assert here.recv() == "file_descriptor"
            process.join()
            assert tensor.numpy().tolist() == [1, 2, 3]
            queue = context.Queue()
            queue.put(tensor)
            assert queue.get().numpy().tolist() == [1, 2, 3]
        assert not [name for name in sys.modules if name.startswith("torch.")]
        print("ok")
"""


def test_everything_but_torchs_own_works_without_torch(run_python):
    assert run_python(WITHOUT_TORCH) == "ok\n"


def test_importing_onecopy_alone_does_not_import_torch(run_python):
    program = "import sys, onecopy; print('torch' in sys.modules, 'multiprocessing' in sys.modules)"
    assert run_python(program) == "False False\n"


def test_torch_imported_after_us_is_the_torch_we_work_with(run_python):
    program = """
        import onecopy.multiprocessing as mp
        import torch
        assert torch.ones(2).share_memory_().is_shared()
        from torch.multiprocessing.reductions import reduce_tensor
        assert reduce_tensor(torch.ones(2))[0].__module__ == "onecopy.multiprocessing.reductions"
        print("ok")
    """
    assert run_python(program) == "ok\n"


assert torch  # imported first here: the other order is the test above
