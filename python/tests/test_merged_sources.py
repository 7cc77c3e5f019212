# SPDX-License-Identifier: Apache-2.0
"""tests/headers/check_merged.py sees calls that a source could take from another one of its layer."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "tests/headers/check_merged.py"

DECODER = """\
#include "rpc/refuse.h"  // void refuse(const std::string& problem)

namespace onecopy {

int decode(ByteSpan bytes) {
  if (bytes.empty()) refuse("is empty");
  return 1;
}

}  // namespace onecopy
"""
ADDRESSES = """\
namespace onecopy {
namespace {

[[noreturn]] void refuse(const char* problem) {
  throw Error(problem);
}

}  // namespace
}  // namespace onecopy
"""


def findings(root: Path, **sources: str) -> str:
    """All that the check says, of a layer with these sources; it fails if it found anything."""
    folder = root / "src/rpc"
    folder.mkdir(parents=True)
    for name, text in sources.items():
        (folder / f"{name}.cpp").write_text(text)
    result = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
    assert result.stderr == ""
    assert result.returncode == int(result.stdout != "merged sources: 0 calls that another source could take\n")
    return result.stdout


def test_a_call_of_a_headers_function_that_another_source_overloads_is_found(tmp_path):
    text = findings(tmp_path, addresses=ADDRESSES, decoder=DECODER)
    assert "src/rpc/decoder.cpp calls refuse() with 1 arguments; src/rpc/addresses.cpp has one for itself\n" in text


def test_two_overloads_that_are_each_for_its_own_source_are_found(tmp_path):
    own = "static void refuse(const std::string& problem) {\n  throw Error(problem);\n}\n\n"
    text = findings(tmp_path, addresses=ADDRESSES, decoder=DECODER.replace("int decode", own + "int decode"))
    assert "decoder.cpp calls refuse()" in text


@pytest.mark.parametrize(
    "before, after",
    [
        ('refuse("is empty")', 'refuse("is empty", 3)'),
        ('refuse("is empty")', 'reply.refuse("is empty")'),
        ('refuse("is empty")', 'this->refuse("is empty")'),
        ('refuse("is empty")', 'Reply refuse("is empty")'),
        ('refuse("is empty")', 'wire::refuse("is empty")'),
        ('refuse("is empty")', 'say("refuse(this)")'),
        ("namespace onecopy {", "namespace other {"),
    ],
)
def test_what_no_function_of_another_source_can_take_is_not(tmp_path, before, after):
    assert findings(tmp_path, addresses=ADDRESSES, decoder=DECODER.replace(before, after)).startswith(
        "merged sources: 0"
    )


@pytest.mark.parametrize(
    "call", ["go(refuse(why))", "return refuse(cut(a, b))", "n * refuse(f<int, long>(x))", "onecopy::refuse(why)"]
)
def test_calls_within_expressions_are_found(tmp_path, call):
    assert "calls refuse() with 1" in findings(tmp_path, a=ADDRESSES, b=DECODER.replace('refuse("is empty")', call))


def test_the_sources_of_this_tree_are_clean():
    result = subprocess.run([sys.executable, CHECK], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
