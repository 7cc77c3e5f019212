# SPDX-License-Identifier: Apache-2.0
"""SGLang's --load-format private: the first server reads the files, and later ones and reloads use the store.

SGLang's loader is a stub; with ONECOPY_SGLANG, a folder with SGLang's package, its interface is compared.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import onecopy
from onecopy.integrations import sglang as plug


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "private"
    model_loader_extra_config: object = None


class DefaultModelLoader:
    """A stub of SGLang's loader, which refuses unknown keys of the configuration."""

    files = 0  # that were read

    def __init__(self, load_config):
        self.load_config = load_config
        if load_config.model_loader_extra_config:
            raise ValueError("Unexpected extra config keys")

    def _get_weights_iterator(self, source):
        DefaultModelLoader.files += 1
        yield from source.items()


class Source(dict):
    """A source of weights, whose names get a prefix."""

    prefix = ""


@pytest.fixture
def loader(store, monkeypatch):
    """Returns what SGLang imports for --load-format private."""
    names = ("sglang", "sglang.srt", "sglang.srt.model_loader", "sglang.srt.model_loader.loader")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[name].__path__ = []
    sys.modules[names[-1]].DefaultModelLoader = DefaultModelLoader
    for name in ("sglang.private", "sglang.private.private_model_loader", "onecopy.integrations._sglang_loader"):
        monkeypatch.setitem(sys.modules, name, None)  # so that they are removed afterwards
        del sys.modules[name]
    monkeypatch.setattr(DefaultModelLoader, "files", 0)
    plug._register_loader()
    return importlib.import_module("sglang.private.private_model_loader").PrivateModelLoader


def read(loader, extra, source):
    return dict(loader(LoadConfig(model_loader_extra_config=extra))._get_weights_iterator(source))


@pytest.mark.parametrize("extra", [{"store": "llama"}, '{"store": "llama"}'])
def test_the_first_server_reads_the_files_and_later_ones_and_reloads_do_not(store, loader, extra):
    assert read(loader, extra, {"w": torch.ones(3)})["w"].tolist() == [1, 1, 1]
    assert read(loader, extra, {"w": torch.zeros(3)})["w"].tolist() == [1, 1, 1]
    store.publish("llama", {"w": torch.full((3,), 2.0)})
    assert read(loader, None, None)["w"].tolist() == [2, 2, 2]  # update_weights_from_disk() has no extra configuration
    assert DefaultModelLoader.files == 1


def test_a_model_with_weights_in_two_places_gets_both(store, loader):
    other = Source(w=torch.zeros(2))
    other.prefix = "vision."
    for _ in range(2):
        assert read(loader, {"store": "llama"}, {"w": torch.ones(3)})["w"].tolist() == [1, 1, 1]
        assert read(loader, {"store": "llama"}, other)["w"].tolist() == [0, 0]
    assert DefaultModelLoader.files == 2


def test_the_constructor_does_not_raise_and_the_load_says_what_is_missing(loader):
    for extra in (None, {}, "no JSON", "[1]"):
        made = loader(LoadConfig(model_loader_extra_config=extra))
        with pytest.raises(onecopy.InvalidArgument, match="--load-format private needs --model-loader-extra-config"):
            made._get_weights_iterator({})


def test_a_private_loader_of_somebody_else_is_left_alone(loader, monkeypatch):
    theirs = types.ModuleType("sglang.private")
    theirs.__spec__ = importlib.machinery.ModuleSpec("sglang.private", None)
    monkeypatch.setitem(sys.modules, "sglang.private", theirs)
    plug._register_loader()
    assert sys.modules["sglang.private"] is theirs


def test_sglang_has_what_the_loader_overrides():
    if "ONECOPY_SGLANG" not in os.environ:
        pytest.skip("wants ONECOPY_SGLANG, SGLang's package")
    text = (Path(os.environ["ONECOPY_SGLANG"]) / "srt/model_loader/loader.py").read_text()
    assert 'import_module("sglang.private.private_model_loader")' in text
    (found,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == "DefaultModelLoader")
    functions = {node.name: [each.arg for each in node.args.args] for node in found.body if hasattr(node, "args")}
    assert functions["__init__"] == ["self", "load_config"]
    assert functions["_get_weights_iterator"] == ["self", "source"]
    assert functions["download_model"] == ["self", "model_config"]
