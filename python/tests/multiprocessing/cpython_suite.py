# SPDX-License-Identifier: Apache-2.0
"""Runs CPython's own tests of multiprocessing with the module swapped for ours.

usage: cpython_suite.py fork|spawn|forkserver [Class | Class.test]...

Everything in test._test_multiprocessing that names a function or class of multiprocessing gets ours.
Without torch: these are tests of processes and queues, and fresh interpreters start ten times as fast.
"""

from __future__ import annotations

import multiprocessing
import sys
import unittest

if __name__ == "__mp_main__" or "--with-torch" not in sys.argv:
    sys.modules["torch"] = None  # type: ignore[assignment]

from test import _test_multiprocessing as suite

import onecopy.multiprocessing as ours

METHOD = next((a for a in sys.argv if a in ("fork", "spawn", "forkserver")), "fork")


def swap(owner: type) -> None:
    """Gives a class of the suite our members wherever it took multiprocessing's."""
    for name, value in list(vars(owner).items()):
        function = value.__func__ if isinstance(value, staticmethod) else value
        if function is getattr(multiprocessing, name, owner):
            setattr(owner, name, staticmethod(getattr(ours, name)) if function is not value else getattr(ours, name))


suite.multiprocessing = ours
for each in list(vars(suite).values()):
    if isinstance(each, type) and each.__module__ == suite.__name__:
        swap(each)
assert suite.ProcessesMixin.Queue.__self__ is ours.context._default_context
# Wants a queue made for fork to be refused by other children, for its locks. Ours has none and works there:
# test_mp_queue.py, test_a_queue_of_any_context_is_given_to_a_process_of_any_other.
del suite.TestStartMethod.test_mixed_startmethod
suite.install_tests_in_module_dict(globals(), METHOD)
del globals()["_TestImportStar"]  # goes through the files of CPython's own folder

if __name__ == "__main__":
    names = [a for a in sys.argv[1:] if a != METHOD and not a.startswith("--")]
    unittest.main(argv=[sys.argv[0], *names], verbosity=2 if "--verbose" in sys.argv else 1)
