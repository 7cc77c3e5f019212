# SPDX-License-Identifier: Apache-2.0
"""onecopy.compat.torchair: TorchAir's names on top of onecopy.graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import InvalidArgument, Unsupported, graphs
from onecopy.compat import torchair


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def configured(pool=None, **debug):
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    config.aclgraph_config.use_custom_pool = pool
    for name, value in debug.items():
        setattr(config.debug.aclgraph, name, value)
    return torchair.get_npu_backend(compiler_config=config)


def run(backend, *rows):
    call = torch.compile(lambda x: (x @ x.t()).relu() + 1, backend=backend, dynamic=False)
    with torch.no_grad():
        for count in rows:
            call(torch.randn(count, 600))


def test_graphs_of_one_pool_share_it_also_where_reuse_is_off():
    pool = torchair.graph_pool_handle()
    run(configured(pool, disable_mempool_reuse_in_same_fx=True), 900, 800)
    alone = torchair.graph_pool_handle()
    run(configured(alone), 900)
    assert graphs.report(pool).shared_bytes == graphs.report(alone).shared_bytes


@pytest.mark.parametrize("name", ["clone_inputs", "static_capture_limit"])
def test_an_unknown_option_names_the_nearest(name):
    with pytest.raises(ValueError, match="did you mean"):
        setattr(torchair.CompilerConfig().debug.aclgraph, name, 1)


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, value) for name in ("clone_input", "enable_output_clone") for value in ("False", "x", None, 2)),
        *(("static_capture_size_limit", value) for value in (2**63, 0, "64", 6.5, None)),
    ],
)
def test_g15_values_are_checked_when_they_are_set(name, value):
    with pytest.raises(ValueError, match=name):
        setattr(torchair.CompilerConfig().debug.aclgraph, name, value)


def test_g15_modes_are_checked_and_options_that_are_not_here_can_be_read_and_left_alone():
    config = torchair.CompilerConfig()
    with pytest.raises(ValueError, match="max-autotune"):
        config.mode = "x"
    with pytest.raises(ValueError, match="group of options"):
        config.debug = True
    assert config.debug.run_eagerly is config.experimental_config.frozen_parameter is False
    config.debug.run_eagerly = False
    with pytest.raises(ValueError, match="only the default"):
        config.debug.run_eagerly = True
    config.mode, config.debug.aclgraph.static_capture_size_limit = "reduce-overhead", True
    torchair.get_npu_backend(compiler_config=config, custom_decompositions={})
    with pytest.raises(Unsupported, match="decompositions"):
        torchair.get_npu_backend(compiler_config=config, custom_decompositions={"add": None})


def test_other_modes_and_pools_are_refused():
    with pytest.raises(Unsupported, match="reduce-overhead"):
        torchair.get_npu_backend()
    with pytest.raises(InvalidArgument, match="not a pool"):
        configured("a pool")
