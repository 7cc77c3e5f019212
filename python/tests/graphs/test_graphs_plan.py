# SPDX-License-Identifier: Apache-2.0
"""Places of a graph's tensors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("torch", reason="wants torch installed")

from onecopy.graphs._plan import ALIGNMENT, Memory, lower_bound, place

intervals = st.builds(
    lambda nbytes, made, length: Memory(nbytes, made, made + length),
    st.integers(1, 1000), st.integers(0, 30), st.integers(0, 30),
)  # fmt: skip


@given(st.lists(intervals, max_size=40))
@settings(max_examples=200, deadline=None)
def test_those_who_live_together_never_overlap(memories):
    end = place(memories)
    for at, memory in enumerate(memories):
        assert memory.offset % ALIGNMENT == 0 and 0 <= memory.offset <= end - memory.nbytes
        for other in memories[:at]:
            apart = memory.offset + memory.nbytes <= other.offset or other.offset + other.nbytes <= memory.offset
            assert apart or not memory.meets(other)
    assert end >= lower_bound(memories)


def test_a_chain_takes_two_places():
    chain = [Memory(1024, step, step + 1) for step in range(10)]
    assert place(chain) == lower_bound(chain) == 2048


def test_nothing_takes_nothing():
    assert place([]) == lower_bound([]) == 0
