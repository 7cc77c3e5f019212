# SPDX-License-Identifier: Apache-2.0
"""docs/reference/patches.md lists exactly what importing onecopy.multiprocessing changes, and uninstall() undoes it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest

# Remembers every function, method and registered reducer that could be changed, code included.
SNAPSHOT = """
import sys, types, importlib
import multiprocessing, multiprocessing.reduction
from multiprocessing import (connection, context, managers, pool, popen_fork, popen_spawn_posix,
                             process, queues, reduction, resource_sharer, synchronize, util)
import torch, torch.multiprocessing, torch.utils.data
import torch.multiprocessing.pool, torch.multiprocessing.queue
from torch.multiprocessing import reductions

def members(prefix, owner):
    for name, value in list(vars(owner).items()):
        if not name.startswith("__") and name != "_sharing_strategy":
            method = isinstance(value, (classmethod, staticmethod, types.MethodType))
            inner = value.__func__ if method else value
            code = inner.__code__ if isinstance(inner, types.FunctionType) else None
            yield f"{prefix}.{name}", (id(value) if code is None else (id(inner), code))

def snapshot():
    from multiprocessing.reduction import ForkingPickler
    found = {}
    modules = [connection, context, managers, pool, popen_fork, popen_spawn_posix, process, queues,
               reduction, resource_sharer, synchronize, util, multiprocessing, torch.multiprocessing,
               reductions, torch.multiprocessing.pool, torch.multiprocessing.queue,
               sys.modules["torch.multiprocessing.spawn"], torch, torch.storage, torch._utils,
               torch.utils.data, torch.utils.data._utils.collate, torch.utils.data._utils.worker,
               torch.utils.data._utils.pin_memory]
    for module in modules:
        found.update(members(module.__name__, module))
    for owner in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, torch.TypedStorage,
                  torch.nn.Module, torch.storage._StorageBase, torch._C.StorageBase,
                  multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue,
                  multiprocessing.process.BaseProcess, multiprocessing.popen_fork.Popen,
                  multiprocessing.pool.Pool, multiprocessing.connection.Connection,
                  torch.utils.data.DataLoader, ForkingPickler):
        found.update(members(f"{owner.__module__}.{owner.__qualname__}", owner))
    for type_, reduce in ForkingPickler._extra_reducers.items():
        found[f"ForkingPickler[{type_.__module__}.{type_.__qualname__}]"] = id(reduce)
        keep.append(reduce)
    keep.append(found)
    return found

keep = []

def changed(before, after):
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
"""

CHANGES = (
    SNAPSHOT
    + """
first = snapshot()
import onecopy
assert changed(first, snapshot()) == ["ForkingPickler[onecopy._core.Tensor]"]
before = snapshot()
import onecopy.multiprocessing as mp
assert mp.installed()
once = snapshot()
print("\\n".join(changed(before, once)))
mp.install()
assert not changed(once, snapshot())
mp.uninstall()
assert not mp.installed()
assert changed(before, snapshot()) == [], changed(before, snapshot())
mp.install()
assert changed(before, snapshot()) == changed(before, once)
mp.uninstall()
assert changed(before, snapshot()) == []
"""
)


def documented(repository) -> set[str]:
    rows = (repository / "docs/reference/patches.md").read_text().splitlines()
    return {match[1] for row in rows if (match := re.match(r"\| `([^`]+)` \|", row))}


def test_the_documented_list_is_what_is_really_changed(run_python, repository):
    really = run_python(CHANGES, stderr=None).split()
    spellings = {"torch.storage.": "torch.", "onecopy._core.": "onecopy.", "._reduce_event": ".reduce_event"}
    named = {functools.reduce(lambda name, pair: name.replace(*pair), spellings.items(), name) for name in really}
    assert named == documented(repository)


DISABLED = (
    SNAPSHOT
    + """
import onecopy
before = snapshot()
import onecopy.multiprocessing as mp
assert not mp.installed()
assert changed(before, snapshot()) == []
from onecopy.multiprocessing.reductions import reduce_tensor
rebuild, arguments = reduce_tensor(torch.ones(3))
assert rebuild is reductions.rebuild_tensor
context = mp.get_context("fork")
assert type(context.Queue()) is multiprocessing.queues.Queue
assert type(context.SimpleQueue()) is multiprocessing.queues.SimpleQueue
assert isinstance(mp.Queue(), mp.queues.Queue) and isinstance(mp.SimpleQueue(), mp.queues.SimpleQueue)
with context.Pool(1) as workers:
    assert isinstance(workers, mp.pool.Pool)
from onecopy.multiprocessing.pool import Pool
from onecopy.multiprocessing.queues import JoinableQueue
assert isinstance(context.JoinableQueue(), JoinableQueue) and Pool is multiprocessing.pool.Pool
queue = mp.SimpleQueue()
queue.put(torch.ones(3))
assert queue.get().tolist() == [1, 1, 1]
import onecopy
assert onecopy.stats()["shared_total"] == 0
print("ok")
"""
)


def test_disabled_it_is_torch_and_says_so(run_python):
    said = "ONECOPY_DISABLE is set: onecopy.multiprocessing behaves as torch.multiprocessing\n"
    assert run_python(DISABLED, env={"ONECOPY_DISABLE": "1"}, stderr=said) == "ok\n"


OLD_TORCH = (
    SNAPSHOT
    + """
torch.__version__ = "2.4.1"
import onecopy
before = snapshot()
try:
    import onecopy.multiprocessing
except ImportError as error:
    print(error)
assert changed(before, snapshot()) == []
"""
)


def test_torch_that_is_too_old_is_named_and_left_alone(run_python):
    assert run_python(OLD_TORCH) == "onecopy.multiprocessing needs torch 2.8 or newer, and this is 2.4.1\n"


NEW_TORCH = """
import torch
torch.__version__ = "99.1.0+cpu"
import onecopy.multiprocessing as mp
assert mp.installed()
"""


def test_torch_that_is_newer_than_those_we_know_is_one_line_in_the_log(run_python):
    from onecopy.multiprocessing import _torch_names

    newest = ".".join(map(str, _torch_names.NEWEST_TESTED))
    said = f"torch 99.1.0+cpu is newer than {newest}, the newest that onecopy was tested with\n"
    assert run_python(NEW_TORCH, stderr=said) == ""


def test_the_torch_of_these_tests_is_one_that_we_know():
    import torch

    from onecopy.multiprocessing import _torch_names

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert _torch_names.OLDEST <= version <= _torch_names.NEWEST_TESTED


def test_the_limits_name_the_versions_of_torch_that_we_know(repository):
    from onecopy.multiprocessing import _torch_names

    page = (repository / "docs/reference/limits.md").read_text()
    for version in (_torch_names.OLDEST, _torch_names.NEWEST_TESTED):
        assert ".".join(map(str, version)) in page


def test_the_extra_for_torch_takes_the_versions_that_we_know(repository):
    from onecopy.multiprocessing import _torch_names

    oldest = ".".join(map(str, _torch_names.OLDEST))
    assert f'torch = ["torch>={oldest}", "numpy"]' in (repository / "pyproject.toml").read_text()


RENAMED = """
import torch
from torch.multiprocessing import reductions
function = getattr(reductions, "reduce_event", None) or reductions._reduce_event
for name in ("reduce_event", "_reduce_event"):
    vars(reductions).pop(name, None)
{names}
before = function.__code__
import onecopy.multiprocessing as mp
print(function.__code__ is not before)
mp.uninstall()
assert function.__code__ is before
"""


@pytest.mark.parametrize("name", ["reduce_event", "_reduce_event"])
def test_a_function_that_torch_made_private_is_found(run_python, name):
    assert run_python(RENAMED.format(names=f"reductions.{name} = function")) == "True\n"


def test_a_function_that_torch_has_not_any_more_stays_as_it_is_and_the_log_names_it(run_python):
    import torch

    said = f"torch {torch.__version__} has no torch.multiprocessing.reductions.reduce_event: the sender must keep CUDA events, as with torch\n"
    assert run_python(RENAMED.format(names=""), stderr=said) == "False\n"


WITHOUT_NAMES = """
import torch, torch.multiprocessing, torch.multiprocessing.spawn as spawn
from torch.multiprocessing import reductions

names = {
    torch._C: ("_from_dlpack", "_storage_Use_Count", "DisableTorchFunction"),
    torch: ("_neg_view", "_nested_view_from_buffer_copy"),
    torch.multiprocessing: ("_get_thread_name", "_set_thread_name", "_prctl_pr_set_pdeathsig"),
    spawn: [name for name in vars(spawn) if name[:1].isupper()],
    reductions: [name for name in vars(reductions) if name.lstrip("_").startswith(("reduce_", "rebuild_"))],
}
for owner, missing in names.items():
    for name in missing:
        delattr(owner, name)

import onecopy.multiprocessing as mp
assert mp.installed()
queue = mp.SimpleQueue()
tensor = torch.ones(3)
queue.put([tensor, torch.nn.Parameter(torch.ones(2))])
arrived, parameter = queue.get()
arrived.add_(1)
assert tensor.tolist() == [2, 2, 2] and type(parameter) is torch.nn.Parameter
print("ok")
"""


def test_an_import_needs_none_of_torchs_private_names(run_python):
    assert run_python(WITHOUT_NAMES, stderr=None) == "ok\n"


REFUSED_BY_NAME = """
import torch
import onecopy, onecopy.multiprocessing as mp
torch.{owner}.{name} = None
queue = mp.SimpleQueue()
try:
    queue.put({value})
    queue.get()
except onecopy.Unsupported as error:
    print(str(error).split(",")[0])
"""


@pytest.mark.parametrize(
    "owner, name, value",
    [
        ("UntypedStorage", "_weak_ref", "torch.ones(2)"),
        ("Tensor", "_neg_view", "torch.ones(2, dtype=torch.complex64).conj().imag"),
        ("Tensor", "_indices", "torch.ones(2).to_sparse()"),
    ],
)
def test_what_cannot_do_without_a_name_is_refused_and_the_name_is_said(run_python, owner, name, value):
    import torch

    program = REFUSED_BY_NAME.format(owner=owner, name=name, value=value)
    assert run_python(program, stderr=None) == f"torch {torch.__version__} has no torch.{owner}.{name}\n"


HALF_WAY = (
    SNAPSHOT
    + """
import onecopy
before = snapshot()
import onecopy.multiprocessing as mp
from onecopy.multiprocessing import patches
mp.uninstall()
patches._follow = None  # the last step
try:
    mp.install()
except TypeError as error:
    print("failed")
assert not mp.installed()
assert changed(before, snapshot()) == [], changed(before, snapshot())
"""
)


def test_an_install_that_fails_has_changed_nothing(run_python):
    assert run_python(HALF_WAY) == "failed\n"


def test_zero_does_not_disable(run_python):
    program = "import onecopy.multiprocessing as mp; print(mp.installed())"
    assert run_python(program, env={"ONECOPY_DISABLE": "0"}) == "True\n"


EARLY_AND_LATE = """
import torch
from torch.multiprocessing.reductions import reduce_tensor as early
from torch.multiprocessing import set_sharing_strategy as set_early
import onecopy.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor as late

for reduce in (early, late):
    rebuild, arguments = reduce(torch.ones(3))
    assert rebuild.__module__ == "onecopy.multiprocessing.reductions", rebuild
    assert len(arguments) == 3
    assert rebuild(*arguments).tolist() == [1, 1, 1]
set_early("file_system")
assert mp.get_sharing_strategy() == "file_system"
mp.uninstall()
mp.set_sharing_strategy("file_descriptor")
for reduce in (early, late):
    rebuild, arguments = reduce(torch.ones(3))
    assert rebuild.__module__ == "torch.multiprocessing.reductions"
print("ok")
"""


def test_whoever_imported_reduce_tensor_before_or_after_gets_ours(run_python):
    assert run_python(EARLY_AND_LATE) == "ok\n"


WRAPPED = """
import functools, types
import torch
import torch.multiprocessing
from multiprocessing.reduction import ForkingPickler
from torch.multiprocessing import reductions

calls = []

def by_closure(function):
    @functools.wraps(function)
    def wrapper(*arguments, **named):
        calls.append(function.__name__)
        return function(*arguments, **named)
    return wrapper

class ByObject:
    def __init__(self, function):
        self.function = function
    def __call__(self, *arguments, **named):
        calls.append(self.function.__name__)
        return self.function(*arguments, **named)

def by_module(function):
    name = function.__name__
    space = dict(calls=calls, original=function)
    exec(f"def {{name}}(*a, **n):\\n    calls.append('{{name}}')\\n    return original(*a, **n)", space)
    return space[name]

first = torch.ones(3)
{early}
names = [name for name in vars(reductions) if name.lstrip("_").startswith(("reduce_", "rebuild_"))]
names = [name for name in names if isinstance(vars(reductions)[name], types.FunctionType)]
originals = {{name: vars(reductions)[name] for name in names}}
codes = {{name: function.__code__ for name, function in originals.items()}}
for name, function in originals.items():
    setattr(reductions, name, {wrap}(function))
torch.multiprocessing.set_sharing_strategy = {wrap}(torch.multiprocessing.set_sharing_strategy)
wrappers = {{name: vars(reductions)[name] for name in names}}

import onecopy.multiprocessing as mp
assert mp.installed()
rebuild, arguments = reductions.reduce_tensor(torch.ones(3))
assert calls == ["reduce_tensor"], calls
assert rebuild.__module__ == "onecopy.multiprocessing.reductions", rebuild
assert rebuild(*arguments).tolist() == [1, 1, 1]
assert reductions.rebuild_tensor(*originals["reduce_tensor"](torch.ones(2))[1]).tolist() == [1, 1]
assert calls == ["reduce_tensor", "rebuild_tensor"], calls
torch.multiprocessing.set_sharing_strategy("file_system")
assert calls[2:] == ["set_sharing_strategy"] and mp.get_sharing_strategy() == "file_system"
assert {{name: vars(reductions)[name] for name in names}} == wrappers
mp.uninstall()
{late}
mp.install()
mp.uninstall()
print("ok")
"""


@pytest.mark.parametrize("early", [False, True], ids=["not shared", "shared before"])
@pytest.mark.parametrize("wrap", ["by_closure", "by_module", "ByObject"])
def test_a_wrapper_that_was_there_before_the_import_keeps_working(run_python, wrap, early):
    """Also one that was put there after the first shared tensor had changed torch."""
    parts = {"early": "import onecopy; onecopy.share(first)" if early else "", "late": ""}
    if not early:
        parts["late"] = "assert codes == {name: function.__code__ for name, function in originals.items()}"
    assert run_python(WRAPPED.format(wrap=wrap, **parts)) == "ok\n"


REPLACED = """
import torch.multiprocessing
from torch.multiprocessing import reductions
def ours():
    return 7
reductions.rebuild_cuda_tensor = ours
code = ours.__code__
import onecopy.multiprocessing as mp
assert mp.installed() and reductions.rebuild_cuda_tensor() == 7 and ours.__code__ is code
print("ok")
"""


def test_a_function_that_another_library_replaced_whole_is_left_alone(run_python):
    said = (
        "other code has replaced torch.multiprocessing.reductions.rebuild_cuda_tensor: "
        "no program can call it with onecopy's arguments either\n"
    )
    assert run_python(REPLACED, stderr=said) == "ok\n"


UNINSTALLED = """
import pickle
from multiprocessing.reduction import ForkingPickler
import torch
import onecopy, onecopy.multiprocessing as mp

tensor = torch.ones(3).share_memory_()
assert onecopy._core.torch_is_shared(tensor.untyped_storage())
mp.uninstall()
assert tensor.tolist() == [1, 1, 1]
fresh = torch.ones(3).share_memory_()
assert fresh.is_shared() and not onecopy._core.torch_is_shared(fresh.untyped_storage())
arrived = pickle.loads(ForkingPickler.dumps(fresh))
arrived.fill_(2)
assert fresh.tolist() == [2, 2, 2]
before = onecopy.stats()["shared_total"]
mp.install()
arrived = pickle.loads(ForkingPickler.dumps(tensor))
arrived.fill_(3)
assert tensor.tolist() == [3, 3, 3]
assert onecopy.stats()["shared_total"] > before
print("ok")
"""


def test_uninstall_gives_torch_back_and_install_takes_it_again(run_python):
    assert run_python(UNINSTALLED) == "ok\n"


LATER_PATCH = """
from multiprocessing.reduction import ForkingPickler
import torch
import onecopy
import onecopy.multiprocessing as mp

def somebody_elses(self):
    return True

torch.UntypedStorage.is_shared = somebody_elses
torch.multiprocessing.reductions.reduce_tensor.__code__ = somebody_elses.__code__
ForkingPickler.register(onecopy.Tensor, somebody_elses)
mp.uninstall()
assert torch.UntypedStorage.is_shared is somebody_elses
assert torch.multiprocessing.reductions.reduce_tensor(1) is True
assert ForkingPickler._extra_reducers[onecopy.Tensor] is somebody_elses
print("ok")
"""


def test_what_somebody_replaced_after_us_is_left_to_them(run_python):
    left = ["UntypedStorage.is_shared", "torch.multiprocessing.reductions.reduce_tensor", "the reducer of Tensor"]
    said = "".join(
        f"{what} was replaced by other code after onecopy changed it, and is not restored\n" for what in left
    )
    assert run_python(LATER_PATCH, stderr=said) == "ok\n"


SHARED = """
import torch
import onecopy, onecopy.multiprocessing as mp

plain = torch.zeros(4)
assert not plain.is_shared() and not plain.untyped_storage().is_shared()
view = plain[1:]
assert plain.share_memory_() is plain
assert plain.is_shared() and view.is_shared() and plain.storage().is_shared()
view.fill_(3)
assert plain.tolist() == [0, 3, 3, 3]
where = plain.data_ptr()
assert plain.share_memory_().data_ptr() == where, "a second call moves nothing"
fresh = torch.UntypedStorage._new_shared(100)
assert fresh.is_shared() and fresh.nbytes() == 100
assert onecopy._core.torch_is_shared(fresh)
typed = torch.ones(2).storage()._new_shared(7)
assert typed.is_shared() and len(typed) == 7 and typed.dtype is torch.float32
assert torch.FloatStorage._new_shared(5).is_shared()
model = torch.nn.Linear(2, 2)
assert model.share_memory() is model
assert all(p.is_shared() for p in model.parameters())
meta = torch.empty(3, device="meta")
assert not meta.is_shared()
assert torch.empty(0).share_memory_().is_shared()
print("ok")
"""


def test_torch_sees_our_memory_as_shared(run_python):
    assert run_python("import warnings; warnings.simplefilter('ignore')\n" + SHARED) == "ok\n"


BEFORE_2_12 = "torch.UntypedStorage._swap_data_ptr_ = None"

ADOPTED = """
import os, pickle
from multiprocessing.reduction import ForkingPickler
import torch
{early}
import onecopy
tensor = torch.arange(4.0)
handle = getattr(tensor.untyped_storage(), "_share_{way}_cpu_")()
if {way!r} == "fd":
    handle = (os.dup(handle[0]), *handle[1:])
# As another process has it that was given the handle: a mapping of its own.
held = torch.empty(0).set_(getattr(torch.UntypedStorage, "_new_shared_{way}_cpu")(*handle))
alias = tensor[1:]
import onecopy.multiprocessing as mp
assert tensor.is_shared()
arrived = pickle.loads(ForkingPickler.dumps(tensor))
arrived.add_(1)
assert tensor.tolist() == [1, 2, 3, 4] and alias.tolist() == [2, 3, 4]
assert held.tolist() == [1, 2, 3, 4], held
counters = onecopy._core.torch_counters()
assert counters["adopted"] == 1 and counters["moved"] == counters["moved_by_torch"] == 0, counters
print("ok")
"""


@pytest.fixture
def no_names_of_ended_processes():
    """A process that ends with tensors that torch shares by name leaves their names to the next one's start."""
    yield
    subprocess.run([sys.executable, "-m", "onecopy", "gc"], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.usefixtures("no_names_of_ended_processes")
@pytest.mark.parametrize("early", ["", "import onecopy.multiprocessing", BEFORE_2_12])
@pytest.mark.parametrize("way", ["fd", "filename"])
def test_memory_that_torch_holds_in_shared_memory_is_adopted_not_copied(run_python, way, early):
    assert run_python(ADOPTED.format(way=way, early=early)) == "ok\n"


HELD_BY_NAME = """
import subprocess, sys
import torch, torch.multiprocessing as torch_mp
{early}
import onecopy

def look(tensors, asked, seen):
    tensor = tensors.get()
    seen.put("has it")
    asked.get()
    seen.put(tensor.tolist())

OPENER = "import sys, onecopy; x = onecopy.open(sys.argv[1]); print(x.tolist()); x[1] = 8"

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch_mp.set_sharing_strategy("file_system")
    context = torch_mp.get_context("fork")
    tensors, asked, seen = context.Queue(), context.Queue(), context.Queue()
    other = context.Process(target=look, args=(tensors, asked, seen))
    other.start()
    base = torch.arange(6.0)
    tensors.put(base)
    assert seen.get() == "has it"
    handle = onecopy.share(base[2:])
    base[2] = 7
    command = [sys.executable, "-c", OPENER, str(handle)]
    opened = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    asked.put("now")
    print(opened.strip(), seen.get(), base.tolist())
    tensors.put(base)  # torch knows its file still
    other.join()
"""


@pytest.mark.usefixtures("no_names_of_ended_processes")
@pytest.mark.parametrize("early", ["", BEFORE_2_12])
def test_who_has_a_tensor_of_torchs_by_name_and_who_opens_its_handle_see_one_memory(run_python, early):
    """torch once made a second file for the tensor, and holders of the first file did not see later writes."""
    seen = run_python(HELD_BY_NAME.format(early=early), stderr=None)
    assert seen == "[7.0, 3.0, 4.0, 5.0] [0.0, 1.0, 7.0, 8.0, 4.0, 5.0] [0.0, 1.0, 7.0, 8.0, 4.0, 5.0]\n"


NAME_IS_GONE = """
import os
import torch
{early}
import onecopy
tensor = torch.arange(4.0)
_, name, _ = tensor.untyped_storage()._share_filename_cpu_()
file = "/dev/shm" + name.decode()
os.rename(file, file + "_away")
try:
    onecopy.share(tensor)
except onecopy.errors.Unsupported as error:
    assert name.decode() in str(error) and "clone()" in str(error), error
    print("refused")
os.rename(file + "_away", file)  # or torch aborts when it lets go of it
"""


@pytest.mark.parametrize("early", ["", BEFORE_2_12])
def test_a_file_of_torchs_that_somebody_removed_is_not_parted_from_those_who_map_it(run_python, early):
    assert run_python(NAME_IS_GONE.format(early=early), stderr=None) == "refused\n"
