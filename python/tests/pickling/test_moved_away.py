# SPDX-License-Identifier: Apache-2.0
"""Memory that share() has handed out stays the memory of its tensor, whatever torch does with the tensor."""

import pytest

import onecopy

pytest.importorskip("torch")

CASES = {
    "share_memory_ of the tensor": "tensor.share_memory_()",
    "share_memory of the module": "module.share_memory()",
    "a queue of torch": "q = mp.get_context('fork').SimpleQueue(); q.put(tensor); got = q.get(); "
    "assert got.data_ptr() == tensor.data_ptr()",
    "an argument of a spawned process": "p = mp.get_context('spawn').Process(target=child, args=(tensor, module)); "
    "p.start(); p.join(); assert p.exitcode == 0 and tensor[0][1] == 5",
    "a dataset of a loader with spawned workers": "loader = DataLoader(TensorDataset(tensor.detach()), batch_size=2, "
    "num_workers=1, multiprocessing_context='spawn'); assert len(list(loader)) == 5",
    "a storage in a pickle of multiprocessing": "pickled = ForkingPickler.dumps(tensor.untyped_storage()); "
    "assert pickle.loads(pickled).data_ptr() == tensor.data_ptr()",
    "share_memory_ where an engine opened it": "engine['weight'].torch().share_memory_()",
}

PROGRAM = """
import os, pickle, sys
from multiprocessing.reduction import ForkingPickler
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
import onecopy

def child(tensor, module):
    assert tensor.data_ptr() == module.weight.data_ptr()
    tensor[0][1] = 5
    os._exit(0)

if __name__ == "__main__":
    module = torch.nn.Linear(10, 10)
    before = torch.ones(3)
    handle = onecopy.share(module)
    engine = onecopy.open(str(handle))
    tensor = module.weight.detach()
    assert tensor.is_shared() and module.weight.is_shared() and not before.is_shared()
    exec(sys.argv[1])
    with torch.no_grad():
        module.weight.fill_(7)
    assert engine["weight"].tolist()[0][0] == 7
    assert "onecopy.multiprocessing" not in sys.modules
    assert before.share_memory_().is_shared() and not onecopy._core.torch_is_shared(before.untyped_storage())
"""


@pytest.mark.parametrize("code", CASES.values(), ids=CASES.keys())
def test_memory_that_was_handed_out_is_not_moved_away(run_python, code):
    run_python(PROGRAM, code, env={"PYTHONUNBUFFERED": "1"}, stderr=None)


DISABLED = """
import torch, onecopy
tensor = torch.ones(3)
handle = onecopy.share(tensor)
assert not tensor.is_shared()
"""


def test_torch_is_left_alone_where_the_environment_says_so(run_python):
    run_python(DISABLED, env={"ONECOPY_DISABLE": "1"})


AFTER_UNINSTALL = """
import torch, onecopy, onecopy.multiprocessing as mp
mp.uninstall()
tensor = torch.ones(3)
handle = onecopy.share(tensor)
assert tensor.is_shared()
"""


def test_a_share_after_uninstall_keeps_its_memory_in_place(run_python):
    run_python(AFTER_UNINSTALL)


FORMER = """
import ctypes, time
import torch, onecopy
tensor = torch.ones(16 << 20)
former, nbytes = tensor.data_ptr(), tensor.nbytes

def is_mapped():
    with open("/proc/self/maps") as maps:
        ranges = (line.split()[0].split("-") for line in maps)
        return any(int(begin, 16) <= former < int(end, 16) for begin, end in ranges)

handle = onecopy.share(tensor)
assert tensor.data_ptr() != former
assert ctypes.string_at(former, nbytes) == b"\\x00\\x00\\x80\\x3f" * (nbytes // 4)
while is_mapped():
    time.sleep(0.01)
"""


def test_memory_that_was_moved_can_be_read_for_a_moment_and_goes(run_python):
    """Another thread may still compute with the memory from before the move."""
    run_python(FORMER)


def test_a_thread_computes_on_while_its_model_is_shared(run_python):
    run_python(
        """
        import threading
        import torch, onecopy
        torch.set_num_threads(1)
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
        x = torch.randn(16, 512)
        with torch.no_grad():
            expected = model(x)
        started, stop, wrong = threading.Event(), threading.Event(), []

        def infer():
            with torch.no_grad():
                while not stop.is_set():
                    if not torch.allclose(model(x), expected, atol=1e-4):
                        wrong.append(1)
                    started.set()

        thread = threading.Thread(target=infer)
        thread.start()
        started.wait()
        handle = onecopy.share(model)
        started.clear()
        started.wait()
        stop.set()
        thread.join()
        assert not wrong
        """
    )


def test_is_shared_is_true_for_memory_that_was_opened():
    import torch

    handle = onecopy.share(onecopy.ones(3))
    assert onecopy.open(handle).torch().is_shared()
    assert not torch.ones(3).is_shared()
