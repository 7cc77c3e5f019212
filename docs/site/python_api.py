# SPDX-License-Identifier: Apache-2.0
"""The pages of the Python API: a page for each module, and the package's own in the order in which programs need it."""

from __future__ import annotations

from pathlib import Path

# Public modules, a page each; their __all__ lists the public names.
MODULES = [
    "onecopy", "onecopy.store", "onecopy.torch", "onecopy.hf", "onecopy.graphs", "onecopy.rpc",
    "onecopy.distributed.rpc", "onecopy.distributed.autograd",
    *(f"onecopy.integrations.{name}" for name in (
        "ray", "vllm", "vllm_offloading", "sglang", "sglang_storage", "sglang_linker", "lmcache", "joblib", "verl",
        "nemo_rl")),
    "onecopy.errors"]  # fmt: skip

# Names of the package by subject. The classes of errors have a page of their own.
SUBJECTS = {
    "Share and open": ["share", "open", "Handle", "Bundle", "Tensor", "DType"],
    "Queues and connections": ["Queue", "Pipe", "PipeEnd", "PipeHandle", "Listener", "connect", "Message"],
    "Allocate and convert": [
        "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "array", "asarray", "from_numpy",
        "from_dlpack"],
    "Files": ["load_safetensors", "load_npy", "load"],
    "Devices": ["to_device", "pin", "unpin", "is_pinned", "view_on", "record_stream"],
    "Counters and settings": ["stats", "list_owners", "collect", "strategy", "set_strategy"],
}  # fmt: skip

FIRST = Path(__file__).with_name("python_api.txt")  # the beginning of the page of the package


def write(pages: Path) -> list[str]:
    """Writes the pages, which mkdocstrings fills in from the sources and stubs. Returns their names."""
    (pages / "api").mkdir()
    for module in MODULES:
        (pages / f"api/{module}.md").write_text(f"# {module}\n\n::: {module}\n")
    (pages / "api/onecopy.md").write_text(FIRST.read_text() + "".join(map(_section, SUBJECTS)))
    return [f"api/{module}.md" for module in MODULES]


def _section(subject: str) -> str:
    options = "\n    options: {show_root_heading: true, show_root_toc_entry: true, heading_level: 3}\n"
    return f"\n## {subject}\n" + "".join(f"\n::: onecopy.{name}{options}" for name in SUBJECTS[subject])
