# SPDX-License-Identifier: Apache-2.0
"""Two programs share memory although their versions of torch, or of Python, differ.

ONECOPY_OTHER_PYTHONS lists further interpreters with torch and onecopy, separated by colons: `nox -s two-torches` makes
them. Without it, two programs of this interpreter do the same.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PYTHONS = [sys.executable, *filter(None, os.environ.get("ONECOPY_OTHER_PYTHONS", "").split(":"))]
PAIRS = list(itertools.permutations(PYTHONS, 2)) or [(sys.executable, sys.executable)]


class Side:
    """A process that answers calls of the functions of torch_side.py."""

    def __init__(self, python: str) -> None:
        program = str(Path(__file__).parent / "torch_side.py")
        self._process = subprocess.Popen([python, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __getattr__(self, name: str):
        def call(*arguments):
            self._process.stdin.write(json.dumps([name, arguments]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, f"{name} failed with status {self._process.wait(30)}"
            return json.loads(answer)

        return call

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=PAIRS, ids=lambda pair: " and ".join(Path(python).parents[1].name for python in pair))
def sides(request, store_place):
    pair = [Side(python) for python in request.param]
    yield pair
    for side in pair:
        side.kill()


def test_tensors_of_every_dtype_are_the_same_memory(sides):
    giver, taker = sides
    assert taker.open_tensors(giver.share_tensors()) == []
    assert giver.value_of("float64", 5) == 7


def test_an_engine_has_the_weights_of_a_trainer_and_sees_its_steps(sides):
    trainer, engine = sides
    text, answer = trainer.share_model()
    assert engine.load_model(text)[0] == pytest.approx(answer[0])
    stepped = trainer.step()
    assert stepped != answer
    assert engine.engine_answers()[0] == pytest.approx(stepped[0])


def test_queues_carry_tensors_and_values_of_torch(sides):
    giver, taker = sides
    taker.connect_queue(giver.make_queue())
    giver.put_items()
    assert taker.get_items() == []
    taker.put_items()
    assert giver.get_items() == []


def test_versions_of_the_store_outlive_their_publisher(sides):
    publisher, reader = sides
    publisher.publish(1.0)
    assert reader.follow() == 1
    publisher.publish(2.0)
    assert reader.follow() == 2
    publisher.connect_queue(reader.make_queue())
    publisher.put_stored()
    publisher.kill()
    assert reader.get_sum() == 600
