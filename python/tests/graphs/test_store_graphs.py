# SPDX-License-Identifier: Apache-2.0
"""update() of a follower while captured graphs use its tensors: a replay sees the version that is shown, and no other."""

from __future__ import annotations

import os
import threading

import pytest

torch = pytest.importorskip("torch")

import onecopy
from onecopy import graphs

LAYERS, WIDTH = 12, 32
UPDATES = 30
DEVICES = [
    "cpu",
    pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA GPU")),
]

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Layers(torch.nn.Module):
    """Its output has an element of each layer, all of which hold the number of the version."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False, device="meta") for _ in range(LAYERS)]
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        return torch.cat([layer(x)[:, ::7] for layer in self.layers], dim=1)


def weights(value, device):
    return {f"layers.{i}.weight": torch.full((WIDTH, WIDTH), float(value), device=device) for i in range(LAYERS)}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def live(store, device):
    store.publish("a", weights(1, device))
    return store.follow("a")


@pytest.fixture
def model(live):
    model = Layers()
    live.load_into(model)
    return model


def shown(replay, device):
    """Returns what a replay sees: the numbers of all versions in its output."""
    x = torch.zeros(3, WIDTH, device=device)
    x[:, 5] = 1  # each output is one element of a layer
    return set(replay(x).flatten().tolist())


def publish(store, value):
    with store.draft("a", keep=1) as draft:
        for tensor in draft.values():
            tensor.fill_(value)


def expect_updates(store, live, replay, device):
    """Each replay before update() shows the version before, and each one after it the new one."""
    for number in range(2, 2 + UPDATES):
        publish(store, number)
        assert shown(replay, device) == {number - 1}
        assert live.update() == number
        assert shown(replay, device) == {number}


def test_graphs_of_onecopy_show_the_version_of_the_follower(store, live, model, device):
    pool = graphs.arena(device)
    replay = torch.compile(model, backend=graphs.backend(pool))
    for _ in range(3):
        assert shown(replay, device) == {1}
    captures = graphs.report(pool).captures
    expect_updates(store, live, replay, device)
    report = graphs.report(pool)
    assert report.captures == captures > 0
    assert report.replays >= 2 * UPDATES


def test_a_captured_function_shows_the_version_of_the_follower(store, live, model, device):
    replay = graphs.capture(model, torch.zeros(3, WIDTH, device=device))
    expect_updates(store, live, replay, device)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch's own modules
def test_compiled_code_shows_the_version_of_the_follower(store, live, model, device):
    replay = torch.compile(model)
    expect_updates(store, live, replay, device)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch's own modules
@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA GPU")
@pytest.mark.parametrize("device", ["cuda:0"], indirect=True)
def test_reduced_overhead_shows_the_version_of_the_follower(store, live, model, device):
    replay = torch.compile(model, mode="reduce-overhead")
    for _ in range(3):  # a warm-up, the capture, a replay
        assert shown(replay, device) == {1}
    expect_updates(store, live, replay, device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA GPU")
@pytest.mark.parametrize("device", ["cuda:0"], indirect=True)
def test_a_graph_that_torch_captured_shows_the_version_of_the_follower(store, live, model, device):
    x, side, graph = torch.zeros(3, WIDTH, device=device), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x[:, 5] = 1
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = model(x)

    def replay(given):
        graph.replay()
        return out

    expect_updates(store, live, replay, device)


def test_replays_beside_a_publisher_see_whole_versions(store, live, model, device):
    """Versions are published at any time, and the follower takes them when it wants to."""
    replay = graphs.capture(model, torch.zeros(3, WIDTH, device=device))
    ends = threading.Event()

    def publish_until_the_end():
        mine = onecopy.store.connect()
        number = 1
        while not ends.is_set():
            number += 1
            publish(mine, number)

    publisher = threading.Thread(target=publish_until_the_end)
    publisher.start()
    try:
        seen = set()
        while len(seen) < UPDATES:
            assert shown(replay, device) == {live.version}
            seen.add(live.update())
            assert shown(replay, device) == {live.version}
    finally:
        ends.set()
        publisher.join()


def test_a_worker_that_is_killed_between_updates_is_not_noticed(store, live, model, device):
    replay = graphs.capture(model, torch.zeros(3, WIDTH, device=device))
    for number in range(2, 7):
        os.kill(store.keeper()["worker"], 9)
        publish(store, number)
        assert live.update() == number
        assert shown(replay, device) == {number}
