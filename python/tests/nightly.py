# SPDX-License-Identifier: Apache-2.0
"""The tests that CI leaves to the nightly run, since what they check CI checks in a way beside them.

They have the mark nightly; ``./dev py`` runs them like all others. A ``*`` in brackets stands for any parameter.
"""

from __future__ import annotations

import re

LEFT_OUT = """
binding/test_address_space.py::test_a_loader_with_too_few_addresses_fails_with_the_name_of_the_limit[300-import]
binding/test_address_space.py::test_a_loader_with_too_few_addresses_fails_with_the_name_of_the_limit[64-context]
binding/test_asyncio.py::test_a_cancelled_aget_loses_no_item[0-cancel]
binding/test_asyncio.py::test_a_cancelled_aget_loses_no_item[1-wait_for]
graphs/test_graphs.py::test_all_shapes_take_the_memory_of_the_largest[cpu-aot-order0]
integrations/test_huggingface.py::test_a_second_process_opens_what_the_first_has_loaded[AutoModelForCausalLM]
integrations/test_refit.py::test_a_round_that_fails_leaves_the_old_weights_and_says_so[verl]
integrations/test_refit.py::test_a_round_with_other_tensors_is_as_good[verl]
integrations/test_refit.py::test_a_version_that_cannot_be_published_does_not_stop_the_other_ranks[nemo_rl]
integrations/test_refit.py::test_each_engine_gets_the_weights_of_the_round_and_all_trainers_make_all_of_them[nemo_rl]
integrations/test_refit.py::test_an_engine_goes_on_when_its_trainer_dies_and_a_new_engine_gets_the_last_weights[nemo_rl]
integrations/test_vllm.py::test_each_round_brings_the_weights_of_that_moment[0.32]
multiprocessing/test_cpython_suite.py::test_with_fresh_interpreters[forkserver]
multiprocessing/test_dataloader.py::test_thousands_of_batches_are_kept_alive_at_256_descriptors[batches-fork]
multiprocessing/test_dataloader.py::test_thousands_of_batches_are_kept_alive_at_256_descriptors[items-spawn]
multiprocessing/test_loader_surroundings.py::test_workers_end_with_their_program_however_it_ends[*-context-True]
multiprocessing/test_loader_surroundings.py::test_workers_end_with_their_program_however_it_ends[*-import-False]
multiprocessing/test_mp_torch_semantics.py::test_many_pools_cost_no_more_descriptors_than_one[file_descriptor]
multiprocessing/test_patches.py::test_a_wrapper_that_was_there_before_the_import_keeps_working[ByObject-not shared]
multiprocessing/test_patches.py::test_a_wrapper_that_was_there_before_the_import_keeps_working[by_closure-shared before]
multiprocessing/test_patches.py::test_a_wrapper_that_was_there_before_the_import_keeps_working[by_module-not shared]
rpc/test_rpc_exit.py::test_an_interpreter_ends_with_calls_in_flight[exit]
rpc/test_rpc_exit.py::test_an_interpreter_ends_with_calls_in_flight[sigint]
rpc/test_rpc_hosts.py::test_each_of_two_members_that_do_not_fit_says_why[no-key]
rpc/test_rpc_hosts.py::test_hosts_with_ipv6_alone_reach_each_other
""".split("\n")[1:-1]

_PATTERNS = {entry: re.compile(re.escape(f"python/tests/{entry}").replace(r"\*", ".*") + r"\Z") for entry in LEFT_OUT}


def is_left_out(nodeid: str) -> bool:
    """Returns whether only the nightly runs that test."""
    return any(pattern.match(nodeid) for pattern in _PATTERNS.values())


def without_test(nodeids: list[str]) -> list[str]:
    """Returns the entries of the list that name none of these tests, although their whole file is among them."""
    files = {nodeid.partition("::")[0].removeprefix("python/tests/") for nodeid in nodeids}
    of_files = [entry for entry in LEFT_OUT if entry.partition("::")[0] in files]
    return [entry for entry in of_files if not any(map(_PATTERNS[entry].match, nodeids))]
