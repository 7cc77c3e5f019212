# SPDX-License-Identifier: Apache-2.0
"""The list of tests that CI leaves to the nightly run names tests that exist."""

from __future__ import annotations

import nightly

FILE = "python/tests/rpc/test_rpc_exit.py"


def test_an_entry_that_names_no_test_of_its_file_is_reported():
    entries = [entry for entry in nightly.LEFT_OUT if FILE.endswith(entry.partition("::")[0])]
    assert entries and nightly.without_test([f"{FILE}::test_of_another_name"]) == entries
    assert nightly.without_test([f"python/tests/{entry}" for entry in entries]) == []


def test_an_entry_stands_for_its_own_parameters_alone():
    name = f"{FILE}::test_an_interpreter_ends_with_calls_in_flight"
    assert nightly.is_left_out(f"{name}[exit]")
    assert not nightly.is_left_out(f"{name}[exit-more]") and not nightly.is_left_out(f"{name}[return]")


def test_a_star_stands_for_any_parameter():
    name = (
        "python/tests/multiprocessing/test_loader_surroundings.py::test_workers_end_with_their_program_however_it_ends"
    )
    assert nightly.is_left_out(f"{name}[SIGKILL-context-True]")
    assert not nightly.is_left_out(f"{name}[SIGKILL-context-False]")
