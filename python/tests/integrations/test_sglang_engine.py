# SPDX-License-Identifier: Apache-2.0
"""SGLang's own engine on the CPU takes weights through onecopy, and outlives its trainer.

Run by ``./dev test sglang``, in an environment of its own: SGLang needs packages that the other tests do not need. The
tests of a number of ranks use one engine.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_process import EngineProcess

if not os.environ.get("ONECOPY_SGLANG_ENGINE") or not importlib.util.find_spec("sglang"):
    pytest.skip("needs sglang: ./dev test sglang", allow_module_level=True)

CPU = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
PROGRAM = str(Path(__file__).parent / "sglang_engine.py")
TRAINER = (
    "import sys, onecopy, sglang_engine\nhandle = onecopy.share(sglang_engine.model(int(sys.argv[1])).state_dict())\n"
    "print(handle, flush=True)\nsys.stdin.read()"
)


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def engine(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    engine = EngineProcess(folder, PROGRAM, folder / "model", request.param, **CPU)
    yield engine
    engine.end()


@pytest.fixture
def old_tokens(engine):
    """The tokens of weights that the engine serves before the test."""
    assert engine.ask("update", 7) is None
    return engine.ask("tokens")


def test_an_update_is_in_the_next_tokens(engine, old_tokens):
    assert old_tokens == engine.ask("expected", 7)
    assert engine.ask("update", 8) is None
    assert engine.ask("tokens") == engine.ask("expected", 8) != old_tokens


def test_sglang_refuses_an_update_outside_of_a_session_without_an_exception(engine, old_tokens):
    """The reason for update(): if SGLang changes this, the guide must change, too."""
    is_done, message = engine.ask("update_without_a_session", 8)
    assert not is_done and "begin_weight_update" in message
    assert engine.ask("tokens") == old_tokens


def test_a_session_that_a_trainer_left_open_is_ended(engine, old_tokens):
    assert engine.ask("call", "begin_weight_update")[0]
    assert engine.ask("update", 8) is None
    assert engine.ask("tokens") == engine.ask("expected", 8)


def test_an_engine_outlives_its_trainer_and_says_that_the_offer_is_gone(engine, old_tokens):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, "8"], stdin=-1, stdout=-1, text=True, cwd=os.path.dirname(PROGRAM)
    )
    text = trainer.stdout.readline().strip()
    trainer.kill()
    trainer.communicate()
    refusal = engine.refusal("update_by", text)
    assert refusal.startswith("onecopy.errors.Error: SGLang has not loaded the weights: OwnerDied: ")
    assert "the engine keeps its old weights" in refusal
    assert engine.ask("tokens") == old_tokens
    assert engine.ask("update", 8) is None
    assert engine.ask("tokens") == engine.ask("expected", 8)


def test_a_trainer_in_another_process_updates_the_engine(engine, old_tokens):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, "8"], stdin=-1, stdout=-1, text=True, cwd=os.path.dirname(PROGRAM)
    )
    assert engine.ask("update_by", trainer.stdout.readline().strip()) is None
    trainer.communicate()
    assert engine.ask("tokens") == engine.ask("expected", 8)


def test_a_weight_that_the_model_refuses_is_an_error_and_the_next_update_works(engine, old_tokens):
    refusal = engine.refusal("update_with_a_wrong_shape")
    assert refusal.startswith("onecopy.errors.Error: SGLang has not loaded the weights: the model has refused a weight")
    assert engine.ask("update", 8) is None
    assert engine.ask("tokens") == engine.ask("expected", 8)
