# SPDX-License-Identifier: Apache-2.0
"""What loads weights by way of the store: the first process reads the files, and later ones do not."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

import onecopy
from support.processes import in_threads, interpret

pytestmark = pytest.mark.usefixtures("runtime_directory")


def run(program, *arguments):
    done = interpret(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- open_or_publish --------------------------------------------------------------------------------


def test_tensors_are_made_once_however_many_ask(store):
    calls = []

    def make():
        calls.append(1)
        return {"x": torch.full((3,), 7.0)}

    def ask():
        found.append(onecopy.store.connect().open_or_publish("a", make)["x"].tolist())

    found = []
    in_threads(ask, [()] * 6)
    assert found == [[7, 7, 7]] * 6
    assert calls == [1]


def test_a_key_that_differs_makes_a_new_version(store):
    def make(value):
        return lambda: {"x": torch.full((3,), value)}

    assert store.open_or_publish("a", make(1.0), key={"digest": "1"}).version == 1
    assert store.open_or_publish("a", make(2.0), key={"digest": "1"}).version == 1
    second = store.open_or_publish("a", make(2.0), key={"digest": "2"})
    assert second.version == 2
    assert second["x"].tolist() == [2, 2, 2]


def test_an_error_of_the_maker_leaves_no_version(store):
    with pytest.raises(ZeroDivisionError):
        store.open_or_publish("a", lambda: 1 / 0)
    assert store.list() == []
    assert store.open_or_publish("a", lambda: {"x": torch.ones(1)}).version == 1


# --- load -------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "weights.safetensors"
    safetensors.save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}, path)
    return path


LOAD = "import sys, onecopy; print(onecopy.load(sys.argv[1], store='weights')['a'].tolist())"


def test_files_are_read_by_the_first_process_alone(store, file):
    assert run(LOAD, str(file)) == "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]\n"
    read = []
    tensors = onecopy.load(file, store="weights", framework="torch", progress=lambda *bytes: read.append(bytes))
    assert torch.equal(tensors["a"], torch.arange(6.0).reshape(2, 3))
    assert tensors["b"].dtype == torch.bfloat16
    assert read == []
    versions = store.list()[0]["versions"]
    assert [(version["version"], version["readers"]) for version in versions] == [(1, 1)]


def test_a_file_that_has_changed_is_a_new_version(store, file):
    safetensors = pytest.importorskip("safetensors.torch")
    onecopy.load(file, store="weights")
    safetensors.save_file({"a": torch.full((4,), 9.0)}, file)
    assert onecopy.load(file, store="weights", framework="torch")["a"].tolist() == [9, 9, 9, 9]
    assert store.open("weights").version == 2


def test_memory_of_the_store_cannot_be_pinned_by_load(store, file):
    with pytest.raises(onecopy.InvalidArgument, match="leave out pin= or store="):
        onecopy.load(file, store="weights", pin=True)


# --- transformers -----------------------------------------------------------------------------------

LOAD_MODEL = """
import sys
import torch, transformers
import onecopy

model = onecopy.hf.from_pretrained(transformers.LlamaForCausalLM, sys.argv[1], store=True)
with torch.no_grad():
    print(model(torch.tensor([[3, 1, 4]])).logits.double().sum().item())
"""


def test_a_model_survives_the_process_that_loaded_it(store, llama, monkeypatch):
    import transformers

    first = run(LOAD_MODEL, str(llama))
    (entry,) = store.list()
    assert entry["name"].startswith("huggingface/llama/")
    assert [version["readers"] for version in entry["versions"]] == [0]

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", None)  # it reads the files
    second = onecopy.hf.from_pretrained(transformers.LlamaForCausalLM, llama, store=True)
    with torch.no_grad():
        assert second(torch.tensor([[3, 1, 4]])).logits.double().sum().item() == float(first)
    assert second.lm_head.weight is second.model.embed_tokens.weight
    assert store.list()[0]["versions"][0]["readers"] == 1


def test_a_model_may_have_a_name_of_its_own(store, llama):
    import transformers

    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16):
        load = onecopy.hf.from_pretrained
        model = load(transformers.AutoModelForCausalLM, llama, store="mine", dtype=dtype)
        assert model.dtype == dtype
    assert store.list()[0]["current"] == 2
    assert os.fspath(llama.parent) not in str(store.open("mine").key)
