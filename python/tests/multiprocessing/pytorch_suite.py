# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.multiprocessing with the module swapped for ours.

usage: ONECOPY_PYTORCH_SUITE=.../pytorch/test/test_multiprocessing.py pytorch_suite.py [unittest arguments]

The file is in PyTorch's source tree and not in its wheels; without the variable it is looked for where an
editable install has it, beside torch. It wants the package `expecttest`. torch's rebuild functions raise, in
the processes that the tests start too: a test that passes was carried by ours.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.processes import refuse_to_rebuild

VARIABLE = "ONECOPY_PYTORCH_SUITE"
NAME = "test_multiprocessing"  # what the tests' functions are pickled under; children import it by us

# These call torch's functions themselves.
NOT_OURS = {"test_rebuild_cuda_tensor"}


def find() -> Path | None:
    """Returns the path of PyTorch's test_multiprocessing.py, or None."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    spec = importlib.util.find_spec("torch")
    beside = Path(spec.origin).parents[1] / "test" / f"{NAME}.py" if spec and spec.origin else None
    return beside if beside and beside.is_file() else None


def has_files(checker) -> bool:
    """Whether this program and what it started have shared memory with names, as the suite looks for torch's.

    torch before 2.12 does not say what it frees: collect() looks.
    """
    gc.collect()
    sys.modules["onecopy"].collect()
    return bool(os.listdir(os.environ["ONECOPY_SHM_DIR"]))


def load(file: Path) -> ModuleType:
    """The tests, with ours wherever they say torch.multiprocessing."""
    import torch.multiprocessing as theirs
    import torch.testing._internal.common_utils  # imports it for its own use

    import onecopy.multiprocessing as ours

    refuse_to_rebuild()
    spec = importlib.util.spec_from_file_location(NAME, file)
    suite = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    torch.multiprocessing = ours
    try:
        spec.loader.exec_module(suite)
    finally:
        torch.multiprocessing = theirs
    assert suite.mp is ours
    suite.leak_checker._has_shm_files = has_files
    del suite.load_tests  # shards tests between machines, and insists on being the program
    for name in NOT_OURS & set(vars(suite.TestMultiprocessing)):
        delattr(suite.TestMultiprocessing, name)
    return suite


FILE = find()
if FILE is not None and __name__ in ("__main__", "__mp_main__"):
    SUITE = load(FILE)

if __name__ == "__main__":
    if FILE is None:
        sys.exit(f"PyTorch's tests are not here: set {VARIABLE} to the path of its test/{NAME}.py")
    with tempfile.TemporaryDirectory(prefix="pytorch-suite-", dir="/dev/shm") as directory:
        os.environ["ONECOPY_SHM_DIR"] = directory
        unittest.main(module=SUITE)
