# SPDX-License-Identifier: Apache-2.0
"""Pages of the C++ API from the comments in the public headers: each declaration with the comment above or beside
it.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "include/onecopy"
MODULES = ["core", "device", "memory", "share", "channel", "graph", "rpc"]


def write(target: Path) -> list[str]:
    """One page a module; their names."""
    target.mkdir(parents=True, exist_ok=True)
    found = [module for module in MODULES if (ROOT / module).is_dir()]
    for module in found:
        parts = [
            f"# C++: {module}",
            "Everything is in the namespace `onecopy`; `onecopy/onecopy.h` includes all of it.",
        ]
        for header in sorted((ROOT / module).glob("*.h")):
            parts.append(f"## {header.name}\n\n`#include <onecopy/{module}/{header.name}>`")
            parts += [_entry(comment, code) for comment, code in declarations(header.read_text())]
        (target / f"{module}.md").write_text("\n\n".join(parts) + "\n")
    return [f"{module}.md" for module in found]


def declarations(text: str) -> list[tuple[str, str]]:
    """(comment, code) of each declaration at the level of the namespace, in order."""
    found: list[tuple[str, str]] = []
    comment: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("///"):
            comment.append(line[3:].strip())
        elif not line.strip() or line.startswith(("//", "#", "namespace", "}")):
            comment = []
        else:
            found.append(("\n".join(comment), _whole(line, lines)))
            comment = []
    return [(said, code) for said, code in found if said and not re.match(r"(class|struct) \w+;$", code)]


def _whole(line: str, lines) -> str:
    """The declaration that begins here: up to its semicolon, or to the end of its body."""
    code = [line]
    while not _is_whole(code):
        code.append(next(lines))
    return _public("\n".join(code))


def _is_whole(code: list[str]) -> bool:
    text = re.sub(r"//.*", "", "\n".join(code))
    if text.count("{") != text.count("}") or text.count("(") != text.count(")"):
        return False
    return text.rstrip().endswith((";", "}")) and not text.rstrip().endswith(",")


def _public(code: str) -> str:
    """Without private members, bodies of functions and reserved comments of the implementation."""
    code = re.sub(r"\n private:\n.*?(?=\n public:|\n protected:|\n};)", "", code, flags=re.DOTALL)
    code = re.sub(
        r"\)((?: const| noexcept| override)*)(?: : [^{;]*?(?:\{[^{}]*\}[^{;]*?)*)? \{(?:[^{}]|\{[^{}]*\})*\}",
        r")\1;",
        code,
    )
    return re.sub(r"\n\n+};", "\n};", code.replace(" public:\n\n", " public:\n")).strip()


def _entry(comment: str, code: str) -> str:
    name = re.search(r"\b(?:class|struct|enum class|enum|using)\s+(?:\[\[\w+\]\]\s+)?(\w+)", code) or re.search(
        r"(\w+)\s*\(", code
    )
    title = name[1] if name else re.sub(r"[^\w]+", " ", code.split("=", maxsplit=1)[0]).split()[-1]
    return f"### {title}\n\n{comment.replace('<', '&lt;')}\n\n```cpp\n{code}\n```"
