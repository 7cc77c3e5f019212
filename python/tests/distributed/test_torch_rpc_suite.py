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
    "optimizer.test_dist_optim",
    *("autograd." + t for t in [
        "test_backward_multiple_round_trips", "test_backward_rref_nested", "test_backward_unused_tensors",
        "test_backward_python_udf_error", "test_nested_backward_accumulate_grads", "test_post_hooks",
        "test_graph_for_py_nested_call_itself"]),
    *("module." + t for t in ["test_forward_with_kwargs", "test_unsupported_methods"]),
    "modules.test_create_remote_module_from_module_rref",
    "ddp.test_backward_ddp_inside",
    "sparse.test_backward_rref_sparse",
    *("agent." + t for t in ["test_infer_backend_from_options",
                             "test_dynamic_rpc_new_rank_can_communicated_with_existing_rank"]),
    *("rpc." + t for t in [
        "test_py_udf_remote", "test_py_rref_args_user_share", "test_rref_forward_chain", "test_rref_context_debug_info",
        "test_rref_proxy_tensor_self", "test_async_function_chained", "test_duplicate_name", "test_rref_leak",
        "test_non_garbage_collected_user_rref_due_to_local_circular_dependency", "test_user_rrefs_confirmed", "test_rpc_timeouts",
        "test_nested_rpc", "test_stress_light_rpc", "test_pickle_future", "test_use_rref_after_shutdown",
        "test_wait_all_exit_early_python"]),
]  # fmt: skip


def test_chosen_tests_of_pytorch_pass(tmp_path):
    torch_rpc_suite.make_package(tmp_path)
    chosen = [tuple(name.split(".")) for name in CHOSEN]
    failed = {}
    for name, word, output in torch_rpc_suite.run(str(tmp_path), chosen):
        if word not in ("ok", "skip"):
            failed[name] = output[-3000:]
    assert not failed, "\n".join(f"{name}:\n{output}" for name, output in failed.items())
