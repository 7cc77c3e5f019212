# SPDX-License-Identifier: Apache-2.0
"""docs/reference/errors.md has every message of the store, of queues and of files, and quotes what the sources say."""

import ast
import re

import pytest

LITERALS = r'(?:"(?:[^"\\]|\\.)*"\s*)+'
ERROR = re.compile(
    rf"\b(?:throw_e|E)rror\(\s*ErrorCode::(\w+),\s*(?:fmt::format\(\s*)?(?:std::string\(\s*)?({LITERALS})"
)
# Errors about an argument say what to pass instead; an error of the code protocol is a bug of onecopy.
SAY_IT_THEMSELVES = {"invalid_argument", "protocol"}
SECTIONS = {"src/store": "The store", "src/channel": "Queues, pipes and listeners"}
FILES = ["src/share/api/load.cpp", "src/share/api/file_reader.cpp", "src/share/api/device_loader.cpp",
         *(f"src/memory/{name}.cpp" for name in ("npy", "safetensors_json", "safetensors_index",
                                                  "safetensors_write"))]  # fmt: skip
# Texts of other programs: the kernel, Python, torch, vLLM, SGLang and Ray.
OF_OTHERS = re.compile(
    "Address already in use|Can't pickle|expected torch.Tensor|Cannot copy out of meta|Cowardly refusing|Invalid tensor "
    "transport|Invalid weight transfer|must run between|Blocked unsafe global"
)


def text_of(literals: str) -> str:
    """Returns the text of adjacent literals of C++, with "..." for what is filled in."""
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')
    return re.sub(r"\{[^{}]*\}", "...", text)


def quotes_of(page: str, section: str | None = None) -> list[str]:
    """Returns the texts in quotes of the first column of the tables, of one section or of all but calls, which have a test
    in test_rpc_bad_input.py."""
    found, title = [], ""
    for line in page.splitlines():
        if line.startswith("## "):
            title = line[3:]
        if line.startswith("|") and (title == section if section else title != "Calls between processes"):
            found += re.findall(r'"([^"]+)"', line.split("|")[1])
    return found


def is_quoted(text: str, quotes: list[str]) -> bool:
    return any(all(part.strip() in text for part in quote.split("...")) for quote in quotes)


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs/reference/errors.md").read_text()


def errors_of(paths) -> list[tuple[str, str]]:
    """Returns the (code, text) of each error that the sources throw with a text of their own."""
    found = [(code, text_of(literals)) for path in paths for code, literals in ERROR.findall(path.read_text())]
    return [(code, text) for code, text in found if code not in SAY_IT_THEMSELVES and text.strip(". ;")]


@pytest.mark.parametrize("folder", SECTIONS)
def test_each_error_of_the_store_and_of_queues_is_on_the_page(folder, page, repository):
    errors = errors_of(sorted((repository / folder).rglob("*.cpp")))
    assert len(errors) > 15
    quotes = quotes_of(page, SECTIONS[folder])
    assert [error for error in errors if not is_quoted(error[1], quotes)] == []


def test_each_error_of_reading_and_writing_files_is_on_the_page(page, repository):
    errors = errors_of(repository / name for name in FILES)
    assert len(errors) > 10
    quotes = quotes_of(page, "Files")
    assert [error for error in errors if not is_quoted(error[1], quotes)] == []


def texts_of_python(path) -> list[str]:
    texts = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(n.value if isinstance(n, ast.Constant) else "..." for n in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts


def test_the_page_quotes_what_the_errors_say(page, repository):
    said = []
    for folder in ("src", "python/src", "include"):
        for path in (repository / folder).rglob("*.*"):
            if path.suffix in (".h", ".cpp"):
                source = re.sub(r"'(?:[^'\\]|\\.)'", "", path.read_text())  # a character may be a quotation mark
                said += [text_of(literals) for literals in re.findall(LITERALS, source)]
    for path in (repository / "python/onecopy").rglob("*.py"):
        said += texts_of_python(path)
    everything = "\n".join(said)
    quotes = [quote for quote in quotes_of(page) if not OF_OTHERS.search(quote)]
    assert len(quotes) > 60
    assert [q for q in quotes if not all(part.strip() in everything for part in q.split("..."))] == []
