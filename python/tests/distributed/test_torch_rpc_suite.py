# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own rpc tests pass with ours: some of each kind here, all of them by `./dev test rpc-torch`."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("expecttest") is None:
    pytest.skip("PyTorch's tests want the package expecttest", allow_module_level=True)

import torch_rpc_suite

CHOSEN = [
    *("optimizer." + t for t in ["test_dist_optim", "test_dist_optim_exception"]),
    *("autograd." + t for t in [
        "test_autograd_context", "test_backward_simple", "test_backward_multiple_round_trips", "test_backward_rref_nested",
        "test_backward_different_tensor_dims", "test_backward_unused_tensors", "test_backward_python_udf_error",
        "test_multiple_backward", "test_nested_backward_accumulate_grads", "test_mixed_requires_grad",
        "test_post_hooks", "test_context_cleanup_nested_rpc", "test_graph_for_py_nested_call_itself"]),
    *("module." + t for t in ["test_forward_with_kwargs", "test_remote_parameters", "test_train_eval", "test_unsupported_methods"]),
    "modules.test_create_remote_module_from_module_rref",
    *("ddp." + t for t in ["test_backward_ddp_inside", "test_backward_ddp_outside"]),
    "ddps.test_ddp_comparison",
    *("sparse." + t for t in ["test_backward_rref_sparse", "test_embedding_bag_with_no_grad_tensors"]),
    *("agent." + t for t in ["test_mismatched_type_for_options", "test_set_and_get_num_worker_threads",
                             "test_infer_backend_from_options",
                             "test_dynamic_rpc_new_rank_can_communicated_with_existing_rank"]),
    *("rpc." + t for t in [
        "test_add", "test_py_built_in", "test_py_udf_remote", "test_py_rref_args_user_share", "test_rref_str", "test_rref_forward_chain",
        "test_rref_context_debug_info", "test_return_local_rrefs", "test_rref_proxy_tensor_self", "test_async_function_chained",
        "test_duplicate_name", "test_rref_leak", "test_non_garbage_collected_user_rref_due_to_local_circular_dependency",
        "test_user_rrefs_confirmed", "test_rpc_timeouts", "test_py_raise_in_user_func", "test_py_no_return_result",
        "test_worker_id", "test_nested_rpc", "test_stress_light_rpc", "test_wait_all", "test_callback_chain",
        "test_pickle_future", "test_use_rref_after_shutdown", "test_wait_all_exit_early_python", "test_rref_proxy_non_exist"]),
]  # fmt: skip


def test_chosen_tests_of_pytorch_pass(tmp_path):
    torch_rpc_suite.make_package(tmp_path)
    chosen = [tuple(name.split(".")) for name in CHOSEN]
    failed = {}
    for name, word, output in torch_rpc_suite.run(str(tmp_path), chosen):
        if word not in ("ok", "skip"):
            failed[name] = output[-3000:]
    assert not failed, "\n".join(f"{name}:\n{output}" for name, output in failed.items())
