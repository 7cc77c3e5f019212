# SPDX-License-Identifier: Apache-2.0
"""Functions that torch compiles may use our queues."""

from __future__ import annotations

import pytest
import torch

import onecopy.multiprocessing as mp


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_a_compiled_function_may_put_and_get(kind):
    queue = getattr(mp.get_context("fork"), kind)()

    def program(x):
        queue.put(x + 1)
        return queue.get() * 2

    assert torch.compile(program, backend="eager")(torch.ones(3)).tolist() == [4, 4, 4]
