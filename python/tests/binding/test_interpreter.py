# SPDX-License-Identifier: Apache-2.0
"""Import and exit: nothing is dragged in, nothing is left, nothing is said.

With ONECOPY_REPORT_LEAKS, every object of ours that outlives the interpreter is reported on stderr, and
run_python fails a program that says anything there.
"""

import subprocess
import sys
import tempfile

import pytest

import onecopy

pytestmark = pytest.mark.fresh_interpreters


def test_importing_drags_in_neither_numpy_nor_torch(run_python):
    program = """
        import sys
        before = set(sys.modules)
        import onecopy
        t = onecopy.full((2, 3), 1.5, "bfloat16")
        t[0] = 2
        repr(t), t.tolist(), t[1, 2].item(), t.view("uint8").memoryview()
        tree = onecopy.open(onecopy.share({"t": [t]})).tree()
        onecopy.stats(), onecopy.list_owners(), onecopy.collect()
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(new & {"numpy", "torch", "multiprocessing", "asyncio", "logging", "ctypes", "inspect", "typing"}))
    """
    with tempfile.TemporaryDirectory() as nobody_else:  # an owner that does not answer is said on standard error
        assert run_python(program, env={"ONECOPY_RUNTIME_DIR": nobody_else}) == "[]\n"


REPORT_LEAKS = {"ONECOPY_REPORT_LEAKS": "1"}

PROGRAMS = {
    "tensors": "t = onecopy.zeros((2, 3)); part = t[1:]; rows = list(t)",
    "handles": "t = onecopy.zeros(3); h = onecopy.share(t); u = onecopy.open(h); v = onecopy.open(str(h), access='read')",
    "temporary": "onecopy.open(onecopy.share(onecopy.zeros(3)))",
    "buffers": "m = onecopy.zeros(3).memoryview(); n = m[1:]",
    "capsules": "c = onecopy.zeros(3).__dlpack__(); d = onecopy.from_dlpack(onecopy.zeros(3))",
    "bundles": "b = onecopy.open(onecopy.share({'a': onecopy.zeros(3), 'l': [onecopy.zeros(1)]})); t = b.tree(); i = iter(b)",
    "pickles": "import pickle; d = pickle.dumps(onecopy.zeros(3)); t = pickle.loads(pickle.dumps(onecopy.zeros(3)))",
    "queues": "q = onecopy.Queue(); q.put(onecopy.zeros(3)); q.put({'a': [onecopy.zeros(1)]}); t = q.get()",
    "pipes": "a, b = onecopy.Pipe(); a.send(onecopy.zeros(3)); t = b.recv(); a.send(onecopy.zeros(3))",
    "errors": "import sys\ntry:\n    onecopy.open(b'')\nexcept onecopy.Error as error:\n    sys.kept = error",
    "in a module": "import sys; sys.kept = onecopy.zeros(3)",
    "in a cycle": "t = onecopy.zeros(3); cycle = [t]; cycle.append(cycle); del t",
    "in a default argument": "def f(t=onecopy.zeros(3)): return t",
    "in a thread": "import threading, time\nt = onecopy.zeros(3)\nthreading.Thread(target=lambda: (time.sleep(0.1), t[0])).start()",
    "in atexit": "import atexit; t = onecopy.zeros(3); atexit.register(lambda: onecopy.open(onecopy.share(t)))",
    "in a finalizer": (
        "class Late:\n    def __del__(self): onecopy.open(onecopy.share(t)).tolist()\nt = onecopy.zeros(3)\nlate = Late()"
    ),
    "a weak reference": "import weakref; t = onecopy.zeros(3); w = weakref.ref(t, lambda _: None); f = weakref.finalize(t, int)",
    "file_system": "onecopy.set_strategy('file_system'); t = onecopy.zeros(3); h = onecopy.share(t)",
    "fork": "import os\nt = onecopy.zeros(3)\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: onecopy.open(onecopy.share(t))",
    "sys.exit": "import sys; t = onecopy.zeros(3); sys.exit(0)",
    "imported twice": "import sys; del sys.modules['onecopy']; import onecopy as again; t = again.zeros(3)",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_interpreter_ends_in_silence(run_python, program):
    assert run_python("import onecopy\n" + program, env=REPORT_LEAKS) == ""


# Objects of daemon threads are never freed, and must not be reported as leaks.
DAEMONS = {
    "working": (
        "import threading, time\ndef forever():\n    while True:\n        onecopy.open(onecopy.share(onecopy.zeros(100)))\n"
        "for _ in range(3): threading.Thread(target=forever, daemon=True).start()\ntime.sleep(0.2)"
    ),
    "waiting": "import threading, time\nq = onecopy.Queue()\nthreading.Thread(target=q.get, daemon=True).start()\ntime.sleep(0.2)",
    "with numpy": (
        "import threading, time, numpy\ndef forever():\n    while True:\n        onecopy.share(numpy.zeros(100_000))\n"
        "for _ in range(3): threading.Thread(target=forever, daemon=True).start()\ntime.sleep(0.2)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", DAEMONS.values(), ids=DAEMONS.keys())
def test_daemon_threads_are_cut_off_in_silence(run_python, program):
    assert run_python("import onecopy\n" + program) == ""


WITH_NUMPY = {
    "arrays": "t = onecopy.zeros(3); a = t.numpy(); b = numpy.from_dlpack(t); c = a[1:]; del t",
    "foreign memory": "t = onecopy.from_dlpack(numpy.zeros(3)); u = t[1:]",
    "arrays in a module": "import sys; sys.kept = onecopy.zeros(3).numpy()",
    "both ways": "a = onecopy.zeros(3).numpy(); t = onecopy.from_dlpack(a); h = onecopy.share(a)",
}


@pytest.mark.parametrize("first", ["import numpy, onecopy", "import onecopy, numpy"])
@pytest.mark.parametrize("program", WITH_NUMPY.values(), ids=WITH_NUMPY.keys())
def test_the_interpreter_ends_in_silence_with_numpy(run_python, first, program):
    pytest.importorskip("numpy")
    assert run_python(f"{first}\n{program}", env=REPORT_LEAKS) == ""


WITH_TORCH = {
    "tensors": "x = onecopy.zeros(3).torch(); y = x[1:]",
    "shared in place": "x = torch.ones(3); h = onecopy.share(x); y = onecopy.open(h, framework='torch')",
    "a module": "m = torch.nn.Linear(2, 2); h = onecopy.share(m); t = onecopy.open(h, framework='torch').tree()",
    "in a module": "import sys; sys.kept = onecopy.zeros(3).torch(); sys.other = onecopy.share(torch.ones(1))",
    "a graph": "m = torch.nn.Linear(2, 2); h = onecopy.share(m); l = m(torch.ones(2)).sum()",
}


@pytest.mark.parametrize("program", WITH_TORCH.values(), ids=WITH_TORCH.keys())
def test_the_interpreter_ends_in_silence_with_torch(run_python, program):
    pytest.importorskip("torch")
    assert run_python(f"import torch, onecopy\n{program}", env=REPORT_LEAKS) == ""


def test_the_interpreter_ends_in_silence_with_torch_imported_last(run_python):
    """All of them at once: each import of torch takes seconds."""
    pytest.importorskip("torch")
    lines = [f"n{i} = dict(globals()); exec({code!r}, n{i})" for i, code in enumerate(WITH_TORCH.values())]
    assert run_python("\n".join(["import onecopy, torch", *lines]), env=REPORT_LEAKS) == ""


def test_leaks_are_reported_when_asked_for(run_python):
    """The tests above would see one."""
    program = "import ctypes, onecopy; t = onecopy.zeros(3); ctypes.pythonapi.Py_IncRef(ctypes.py_object(t))"
    run_python(program)
    with pytest.raises(AssertionError, match="leaked"):
        run_python(program, env=REPORT_LEAKS)


@pytest.mark.parametrize("first", ["main", "other"])
def test_other_interpreters_are_refused_and_the_main_one_stays_what_it_was(run_python, first):
    program = """
        import sys, textwrap
        try:
            import _interpreters
        except ImportError:
            import _xxsubinterpreters as _interpreters

        attempt = textwrap.dedent('''
            try:
                import onecopy
            except ImportError as error:
                assert "main interpreter" in str(error) or "subinterpreters" in str(error), error
            else:
                raise AssertionError
        ''')
        if sys.argv[1] == "main":
            import onecopy
        for _ in range(2):
            other = _interpreters.create()
            assert _interpreters.run_string(other, attempt) is None
            _interpreters.destroy(other)
        import onecopy
        t = onecopy.full(2, 3)
        print(onecopy.open(onecopy.share({"t": t})).tree()["t"].tolist(), t.dtype)
        try:
            onecopy.open(b"")
        except onecopy.BadHandle:
            print("refused")
    """
    assert run_python(program, first) == "[3.0, 3.0] float32\nrefused\n"


def test_a_build_without_the_gil_is_refused(run_python):
    program = """
        import sys
        sys.abiflags += "t"
        try:
            import onecopy
        except ImportError as error:
            print(error)
    """
    expected = "onecopy needs a build of Python with the GIL: builds without it (3.13t, 3.14t) crash in tests\n"
    assert run_python(program) == expected


SLOW_DTYPES = """
    import faulthandler, threading
    import onecopy

    faulthandler.dump_traceback_later(120, exit=True)  # threads that wait for each other
    x = onecopy.zeros(3, dtype="float32")
    asked, answered = threading.Event(), threading.Event()
    DType = onecopy.dtypes.DType

    def made_slowly(name):
        if not asked.is_set():
            asked.set()
            answered.wait()
        return DType(name)

    onecopy.dtypes.DType = made_slowly
    first = threading.Thread(target=lambda: x.dtype)
    first.start()
    asked.wait()
    assert x.dtype == "float32"
    answered.set()
    first.join()
"""


FILES = {
    "an item in a queue of its own": "q = onecopy.Queue(); q.put(onecopy.full((1 << 20,), 1))",
    "a handle that was pickled": "import pickle; t = onecopy.full((1 << 20,), 1); b = pickle.dumps(onecopy.share(t))",
    "a thread that waits": (
        "import threading; t = onecopy.full((1 << 20,), 1); q = onecopy.Queue(); "
        "threading.Thread(target=q.get, daemon=True).start()"
    ),
    "a module that keeps a tensor": "import sys; sys.kept = onecopy.full((1 << 20,), 1)",
    "a child that is gone": "import os; t = onecopy.full((1 << 20,), 1); sys_kept = [t]\n"
    "if (pid := os.fork()) == 0: os._exit(0)\n"
    "os.waitpid(pid, 0)\nwhile onecopy.stats()['borrowers']: pass\nimport sys; sys.kept = t",
}


@pytest.mark.parametrize("program", FILES.values(), ids=FILES.keys())
def test_a_process_that_ends_by_itself_leaves_no_names_of_files(run_python, program, tmp_path):
    names = tmp_path / "names"
    names.mkdir()
    run_python(f"import onecopy\nonecopy.set_strategy('file_system')\n{program}", env={"ONECOPY_SHM_DIR": str(names)})
    assert list(names.iterdir()) == []


USED_BY_A_CHILD = """
import os, sys, onecopy
onecopy.set_strategy("file_system")
t = onecopy.full((1 << 20,), 7)
sys.kept = [t]
ready, told = os.pipe()
if os.fork() == 0:
    os.close(told)
    os.read(ready, 1)  # ends with the parent
    handle = onecopy.share(t)
    if os.fork() == 0:
        print(onecopy.open(str(handle))[5].item(), flush=True)
        os._exit(0)
    os.wait()
    os._exit(0)
"""


def test_names_of_files_that_a_forked_child_has_stay(run_python, tmp_path):
    """The child may share the memory on."""
    names = tmp_path / "names"
    names.mkdir()
    assert run_python(USED_BY_A_CHILD, env={"ONECOPY_SHM_DIR": str(names)}) == "7.0\n"


def test_threads_may_ask_for_the_first_dtype_together(run_python):
    """Making the objects runs Python code, in which one thread may have to wait for another."""
    run_python(SLOW_DTYPES)


def test_python_dash_m_is_the_command():
    version = subprocess.run([sys.executable, "-m", "onecopy", "--version"], capture_output=True, text=True)
    if version.returncode != 0:  # a build that was not installed
        assert version.stderr.startswith("this onecopy was installed without its command")
        pytest.skip("wants the package installed with its command")
    number, _, commit = onecopy.__version__.partition("+g")
    assert version.stdout.startswith(f"onecopy {number} (") and commit in version.stdout
    unknown = subprocess.run([sys.executable, "-m", "onecopy", "no-such-thing"], capture_output=True, text=True)
    assert unknown.returncode != 0 and "no-such-thing" in unknown.stderr
