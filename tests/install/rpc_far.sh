# SPDX-License-Identifier: Apache-2.0
# ./dev test rpc-far: the Python package's rpc tests among members that reach each other over TCP, as those of other
# hosts do. Sourced by dev.

rpc_far_steps() {
  local without=() test
  step "rpc-far: install" install_package || return 0
  # These lend memory, name its routes, or count the time of the processor that a far thread takes as well.
  for test in test_rpc.py::test_members_on_one_processor_do_not_spin_in_each_others_way \
    test_rpc_native.py::test_arguments_are_copied_unless_they_are_lent_or_given_away \
    test_rpc_native.py::test_gradients_go_through_borrowed_tensors \
    test_rpc_native.py::test_borrowed_tensors_go_without_encoding_in_python \
    test_rpc_native.py::test_explain_names_the_route_that_a_tensor_then_takes \
    test_rpc_native.py::test_a_listing_counts_calls_and_tensors_by_route_for_each_peer \
    test_rpc_faults.py::test_each_call_ends_while_processes_are_killed_and_come_back; do
    without+=("--deselect=python/tests/$test")
  done
  ONECOPY_RPC_LINK=tcp ONECOPY_RPC_KEY="of a test" ONECOPY_RPC_LISTEN=127.0.0.1:0 run_pytest "rpc-far: tests" "${without[@]}" \
    python/tests/test_{rpc,rpc_references,rpc_native,rpc_bad_input,rpc_dynamic,rpc_faults,dist_autograd}.py
  pytest_step "rpc-far: tests"
}
