# SPDX-License-Identifier: Apache-2.0
"""Contexts: one start method for us and for the standard library, and processes of every kind."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.process

import pytest
import torch

import onecopy.multiprocessing as mp
from onecopy.multiprocessing import queues

pytestmark = pytest.mark.fresh_interpreters

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("method", METHODS)
def test_a_context_is_one_of_the_standard_librarys(method):
    context = mp.get_context(method)
    assert isinstance(context, multiprocessing.context.BaseContext)
    assert isinstance(context, type(multiprocessing.get_context(method)))
    assert context.get_start_method() == method
    assert context.get_context() is context
    assert context.get_context("fork") is mp.get_context("fork")
    assert issubclass(context.Process, multiprocessing.process.BaseProcess)


def test_unknown_start_methods_are_refused():
    with pytest.raises(ValueError, match="cannot find context for 'teleport'"):
        mp.get_context("teleport")
    with pytest.raises(ValueError, match="cannot set start method of concrete context"):
        mp.get_context("fork").set_start_method("spawn")


@pytest.mark.parametrize("method", METHODS)
def test_queues_of_every_context_are_ours(method):
    context = mp.get_context(method)
    made = context.Queue(3), context.JoinableQueue(3), context.SimpleQueue()
    assert [type(q) for q in made] == [queues.Queue, queues.JoinableQueue, queues.SimpleQueue]
    for queue in made:
        queue.close()


FOLLOWS = """
    import multiprocessing
    import onecopy.multiprocessing as mp

    assert mp.get_start_method(allow_none=True) is None
    assert multiprocessing.get_start_method(allow_none=True) is None
    mp.set_start_method("spawn")
    assert multiprocessing.get_start_method() == mp.get_start_method() == "spawn"
    assert type(mp.get_context()) is type(mp.get_context("spawn"))
    try:
        mp.set_start_method("fork")
    except RuntimeError as error:
        assert "context has already been set" in str(error)
    else:
        raise AssertionError("set twice")
    multiprocessing.set_start_method("fork", force=True)
    assert mp.get_start_method() == "fork" and type(mp.get_context()) is type(mp.get_context("fork"))
    assert mp.get_all_start_methods() == multiprocessing.get_all_start_methods()
    print("ok")
"""


def test_the_start_method_is_the_standard_librarys(run_python):
    assert run_python(FOLLOWS) == "ok\n"


def add_in_child(standard, ours, event):
    tensor = standard.get()
    tensor.add_(1)
    ours.put((tensor, mp.get_start_method(), mp.current_process().name))
    event.wait()


@pytest.mark.parametrize("method", METHODS)
def test_queues_of_both_libraries_go_to_one_child(method):
    context, standard = mp.get_context(method), multiprocessing.get_context(method)
    to, back, event = standard.Queue(), context.Queue(), context.Event()
    process = context.Process(target=add_in_child, args=(to, back, event), name="adder")
    process.start()
    tensor = torch.zeros(3)
    to.put(tensor)
    arrived, seen, name = back.get(timeout=60)
    assert (seen, name) == (method, "adder")
    assert tensor.tolist() == arrived.tolist() == [1, 1, 1]
    assert arrived.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    event.set()
    process.join()
    assert process.exitcode == 0
    process.close()
    to.close()
    to.join_thread()
    back.close()


class Adder(mp.Process):
    """A process as a class, with a tensor as its member."""

    def __init__(self, tensor):
        super().__init__()
        self.tensor = tensor

    def run(self):
        self.tensor.add_(3)


def test_a_process_class_inherits_shared_tensors():
    tensor = torch.zeros(5).share_memory_()
    process = Adder(tensor)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert tensor.tolist() == [3] * 5
    process.close()


def test_names_and_parents_are_those_of_the_standard_library():
    process = mp.get_context("fork").Process(target=print)
    assert process.name.startswith("ForkProcess-")
    assert mp.current_process() is multiprocessing.current_process()
    assert mp.parent_process() is multiprocessing.parent_process()
