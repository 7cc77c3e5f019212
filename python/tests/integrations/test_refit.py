# SPDX-License-Identifier: Apache-2.0
"""verl's and NeMo-RL's weights through the store: whole, in order, and there for an engine whose trainer is dead.

Workers are processes that a driver calls in the order of verl's and NeMo-RL's own drivers; refit_interface.py has the classes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import refit_interface


class Worker:
    """A process of refit_programs.py."""

    def __init__(self, *arguments):
        program = [sys.executable, str(Path(__file__).parent / "refit_programs.py"), *map(str, arguments)]
        self.process = subprocess.Popen(program, stdin=-1, stdout=-1, text=True)

    def ask(self, *line):
        """Begins a call."""
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def __call__(self, *line):
        self.ask(*line)
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def new(kind, side, rank=0, **options):
    worker = Worker(kind, side, rank)
    assert worker("options", options) is None
    return worker


@pytest.fixture
def group(store, request):
    """Two trainers and two engines of a kind."""
    kind = request.param
    with contextlib.ExitStack() as ends:
        made = []
        for side, rank in itertools.product(("trainer", "rollout"), range(2)):
            made.append(new(kind, side, rank))
            ends.callback(made[-1].end)
        yield kind, made[:2], made[2:]


both = pytest.mark.parametrize("group", ["verl", "nemo_rl"], indirect=True)


def prepare(kind, trainers, engines):
    """Makes the calls of a driver before a round, which NeMo-RL makes once."""
    everyone = trainers + engines
    metadata = [worker("prepare") for worker in everyone]
    if kind == "nemo_rl":
        for worker in everyone:
            assert worker("init", len(trainers), len(engines), metadata) is None
        return
    for workers, options in zip((trainers, engines), engines[0]("topology", len(trainers), len(engines), metadata)):
        for number, worker in enumerate(workers):
            assert worker("init", {name: values[number] for name, values in options.items()}) is None


def round_of(kind, trainers, engines, *send):
    """Makes a round, whose senders and receivers run at the same time. Returns the answers of both."""
    if kind == "verl":
        prepare(kind, trainers, engines)
    for worker in engines:
        worker.ask("receive")
    for worker in trainers:
        worker.ask(*send)
    answers = [worker.answer() for worker in trainers], [worker.answer() for worker in engines]
    if kind == "verl":
        for worker in trainers + engines:
            worker("finalize")
    return answers


@both
def test_each_engine_gets_the_weights_of_the_round_and_all_trainers_make_all_of_them(group, store):
    kind, trainers, _ = group
    prepare(*group)
    for step in (1, 2, 3):
        assert round_of(*group, "send", step) == ([None, None], [[step, 3, True]] * 2)
        assert [worker("count") for worker in trainers] == [3 * step] * 2
        assert store.open("actor").version == step
    if kind == "verl":
        assert store.open("actor").attributes == {"global_steps": "3"}


@both
def test_a_round_with_other_tensors_is_as_good(group, store):
    prepare(*group)
    for step, layers in ((1, 3), (2, 5), (3, 2), (4, 2)):
        assert round_of(*group, "send", step, False, layers) == ([None, None], [[step, layers, True]] * 2)
    assert set(store.open("actor")) == {"layers.0.weight", "layers.1.weight", "step"}


@both
def test_an_engine_goes_on_when_its_trainer_dies_and_a_new_engine_gets_the_last_weights(group, store):
    kind, trainers, engines = group
    prepare(*group)
    round_of(*group, "send", 1)
    prepare(*group)
    trainers[0].ask("send", 2, True)
    trainers[0].process.wait()
    assert [worker("look") for worker in engines] == [[1, 3, True]] * 2
    engines[0].process.kill()
    alone = new(kind, "rollout")
    assert alone("receive") == [1, 3, True]  # without a trainer or a round
    alone.end()
    again = [new(kind, "trainer", rank) for rank in range(2)]
    engines = [engines[1], new(kind, "rollout")]
    prepare(kind, again, engines)
    assert round_of(kind, again, engines, "send", 3) == ([None, None], [[3, 3, True]] * 2)
    for worker in [*again, engines[1]]:
        worker.end()


@both
def test_a_round_that_fails_leaves_the_old_weights_and_says_so(group, store):
    engines = group[2]
    assert [worker("options", {"timeout": 3}) for worker in engines] == [None] * 2
    prepare(*group)
    round_of(*group, "send", 1)
    sent, received = round_of(*group, "send_broken", 2)
    assert all("ZeroDivisionError: the trainer's own fault" in answer["error"] for answer in sent)
    for answer in received:
        assert "Timeout: the trainer has published no version of 'actor' after 1 for 3 s" in answer["error"]
        assert "the engine keeps its old weights" in answer["error"]
    assert [worker("look") for worker in engines] == [[1, 3, True]] * 2
    assert store.open("actor").version == 1
    assert round_of(*group, "send", 3) == ([None, None], [[3, 3, True]] * 2)


@both
def test_a_version_that_cannot_be_published_does_not_stop_the_other_ranks(group, store):
    trainers = group[1]
    prepare(*group)
    store.kv_pool("actor", block_bytes=4096, budget=1 << 20)  # so that the name is not free for an object
    assert "error" in trainers[0]("send", 1)
    assert trainers[0]("count") == 3


@pytest.mark.parametrize("kind", ["verl", "nemo_rl"])
def test_an_engine_without_the_name_of_an_object_says_what_is_missing(store, kind):
    worker = Worker(kind, "trainer", 0)
    assert "needs the option store, the name of an object" in worker("options", {"store": ""})["error"]
    worker.end()


# --- interfaces


def test_verl_calls_what_the_engine_has():
    path = refit_interface.verl_file()
    if path is None:
        pytest.skip("wants verl installed")
    assert refit_interface.methods(path) == refit_interface.VERL


def test_nemo_rl_calls_what_the_engine_has():
    path = refit_interface.nemo_rl_file()
    if path is None:
        pytest.skip("wants ONECOPY_NEMO_RL, a file of NeMo-RL")
    assert refit_interface.methods(path) == refit_interface.NEMO_RL
