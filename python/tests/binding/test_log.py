# SPDX-License-Identifier: Apache-2.0
"""Lines of the library in C++ reach Python's logging."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from support.processes import interpret

LINES = """
    import logging, sys
    import onecopy

    class Keep(logging.Handler):
        def emit(self, record):
            print(record.name, record.levelname, record.getMessage(), flush=True)
            onecopy.zeros(3)  # a handler may use the library

    if "root" in sys.argv:
        logging.getLogger().addHandler(Keep())
    if "own" in sys.argv:
        logging.getLogger("onecopy").addHandler(Keep())
    onecopy._core._log_line("error", "first")
    onecopy._core._log_line("info", "second")
"""


@pytest.mark.parametrize("where", ["root", "own"])
def test_lines_reach_the_handlers_of_the_logger(run_python, where):
    assert run_python(LINES, where) == "onecopy ERROR first\n"
    every = run_python(LINES, where, env={"ONECOPY_LOG": "info"}).splitlines()
    assert [line for line in every if line.endswith(("first", "second"))] == [
        "onecopy ERROR first",
        "onecopy INFO second",
    ]
    assert run_python(LINES, where, env={"ONECOPY_LOG": "off"}) == ""


def test_without_a_handler_they_go_to_stderr_as_without_python():
    done = interpret(textwrap.dedent(LINES))
    assert done.returncode == 0 and done.stdout == ""
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"\[onecopy\] \[{time}\] \[error\] \[\d+\] first\n", done.stderr)


IN_CHILD = """
    import logging, multiprocessing, sys
    import onecopy

    def work():
        logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))
        onecopy._core._log_line("warning", "of a child")

    if __name__ == "__main__":
        child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
        onecopy._core._log_line("debug", "not said")
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_that_ends_at_once_has_said_what_it_had_to_say(run_python, method):
    assert run_python(IN_CHILD, method) == "of a child\n"


IN_A_HANDLER = """
    import logging, threading, time
    import onecopy

    class Slow(logging.Handler):
        def emit(self, record):
            begun.set()
            time.sleep(0.1)  # without the GIL
            print(record.getMessage(), flush=True)

    begun = threading.Event()
    logging.getLogger().addHandler(Slow())
    for line in ("first", "second", "third"):
        onecopy._core._log_line("error", line)
    begun.wait()
"""


def test_a_program_that_ends_while_a_handler_has_a_line_loses_none(run_python):
    assert run_python(IN_A_HANDLER) == "first\nsecond\nthird\n"


WITH_THE_GIL = """
    import logging, threading
    import onecopy

    logging.getLogger().addHandler(logging.NullHandler())
    end = threading.Event()

    def talk():
        while not end.is_set():
            onecopy._core._log_line("warning", "x")

    threads = [threading.Thread(target=talk) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        onecopy.open(onecopy.share(onecopy.zeros(10)))
    end.set()
    for thread in threads:
        thread.join()
    print("ok")
    threading.Thread(target=lambda: [onecopy._core._log_line("warning", "x") for _ in range(100000)], daemon=True).start()
"""


def test_lines_of_many_threads_stop_nobody_and_the_interpreter_may_end_meanwhile(run_python):
    assert run_python(WITH_THE_GIL, stderr=None) == "ok\n"


STORY = """
    import multiprocessing, sys
    import onecopy

    def consume(queue, text):
        tensor = onecopy.open(text)
        queue.get()
        try:
            onecopy.open(text.replace("onecopy:", "onecopy:x"))
        except onecopy.BadHandle:
            pass

    if __name__ == "__main__":
        queue = onecopy.Queue()
        tensor = onecopy.full((2, 3), 1)
        handle = onecopy.share(tensor)
        child = multiprocessing.get_context("spawn").Process(target=consume, args=(queue, str(handle)))
        child.start()
        queue.put(["a value", tensor])
        child.join()
        print(multiprocessing.current_process().pid, child.pid)
        assert child.exitcode == 0
        del queue, handle, tensor
        onecopy.collect()
"""


def test_the_debug_log_tells_what_happened_to_a_tensor(tmp_path):
    """The log that a report of a fault is asked for: share, open, put, get, connect, attach, segments, in order."""
    program = tmp_path / "story.py"
    program.write_text(textwrap.dedent(STORY))
    environment = {**os.environ, "ONECOPY_LOG": "debug"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    owner, child = done.stdout.split()
    said = {pid: [line for line in done.stderr.splitlines() if f"[debug] [{pid}]" in line] for pid in (owner, child)}

    def in_order(pid, *words):
        lines = iter(said[pid])
        for word in words:
            assert any(word in line for line in lines), (word, said[pid])

    in_order(owner, "made segment", "shared float32[2, 3], block ", "put 1 tensors and ")
    in_order(owner, f"process {child} is attached", f"hands segment 2 out to process {child}")
    in_order(
        child, f"connected to process {owner}", "attached to owner", "mapped segment 2", "opened float32[2, 3], block "
    )
    in_order(child, "got 1 tensors and 11 bytes from queue ")
    queues = {line.rsplit("queue ", 1)[1] for line in done.stderr.splitlines() if " queue " in line}
    assert len(queues) == 1, queues


def test_the_debug_log_says_why_a_handle_could_not_be_opened(tmp_path):
    program = """
        import onecopy, subprocess, sys
        made = "import onecopy; print(onecopy.share(onecopy.zeros(3)), flush=True)"
        text = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout.strip()
        try:
            onecopy.open(text)
        except onecopy.OwnerDied:
            print("refused")
    """
    done = interpret(textwrap.dedent(program), env={**os.environ, "ONECOPY_LOG": "debug"})
    assert done.stdout == "refused\n" and "[debug]" in done.stderr and "could not reach owner" in done.stderr
