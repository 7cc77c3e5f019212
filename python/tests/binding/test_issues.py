# SPDX-License-Identifier: Apache-2.0
"""Bugs that hurt users of other libraries, by the number of their report. tests/issues/ holds the tests in C++."""

from __future__ import annotations

import base64
import os
import pickle

import pytest

import onecopy


class RunsWhenUnpickled:
    def __reduce__(self):
        return os._exit, (1,)


def test_vllm_35928_a_handle_is_data_and_nothing_in_it_runs():
    """With pickles for handles, any sender of one could run any code."""
    data = pickle.dumps(RunsWhenUnpickled())
    for read in (onecopy.open, onecopy.Handle.from_bytes):
        with pytest.raises(onecopy.errors.BadHandle):
            read(data)
    for text in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        for read in (onecopy.open, onecopy.Handle.from_text):
            with pytest.raises(onecopy.errors.BadHandle):
                read(text)


def test_pytorch_36457_a_tensor_inside_a_graph_is_refused_in_torchs_words_and_detached_it_is_shared():
    torch = pytest.importorskip("torch", reason="wants torch installed")
    inside = torch.ones(3, requires_grad=True) * 2
    queue = onecopy.Queue()
    for send in (onecopy.share, queue.put):
        with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf.*call detach"):
            send(inside)
    queue.put(inside.detach())
    arrived = queue.get()
    arrived[0] = 7
    assert inside.tolist() == [7, 2, 2] and not arrived.requires_grad


@pytest.mark.parametrize("more", [1, 127])
def test_pytorch_9447_a_view_that_would_show_its_whole_storage_is_refused_when_asked(more):
    torch = pytest.importorskip("torch", reason="wants torch installed")
    whole = torch.zeros(1 + more)
    onecopy.share(whole, exact=True)
    for part in (whole[:1], whole[-1:]):
        with pytest.raises(onecopy.errors.Unsupported, match=rf"4 bytes.* all {4 * (1 + more)} of"):
            onecopy.share(part, exact=True)
        assert onecopy.share(part, exact="copy").storage_nbytes == 4
