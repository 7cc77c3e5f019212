# SPDX-License-Identifier: Apache-2.0
"""Directories of safetensors files: the files that their index names are loaded, or the difference is named."""

import json
import struct

import pytest

import onecopy
from support.safetensors_files import write_safetensors

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MAP = {"a": A, "b": A, "c": B}


def floats(*values):
    return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    write_safetensors(directory / A, {"a": floats(1), "b": floats(2, 3)})
    write_safetensors(directory / B, {"c": floats(4)})
    write_index(directory, MAP)
    return directory


def write_index(directory, weight_map, name="model.safetensors.index.json"):
    (directory / name).write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": weight_map}))


def values(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


EXPECTED = {"a": [1], "b": [2, 3], "c": [4]}


def test_a_directory_with_an_index_is_one_thing(checkpoint):
    (checkpoint / "config.json").write_text("{}")
    write_safetensors(checkpoint / "consolidated.safetensors", {"other": floats(0)})  # no index names it
    tensors = onecopy.load_safetensors(checkpoint)
    assert values(tensors) == EXPECTED and list(tensors) == ["a", "b", "c"]
    assert all(t.is_shared for t in tensors.values())
    bundle = onecopy.open(onecopy.share(tensors))
    assert values(bundle) == EXPECTED


def test_progress_counts_the_bytes_of_all_files(checkpoint):
    seen = []
    onecopy.load_safetensors(checkpoint, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, 16) and seen[-1] == (16, 16) and {total for _, total in seen} == {16}
    assert seen == sorted(seen)


def test_a_directory_with_one_file_needs_no_index(checkpoint):
    (checkpoint / B).unlink()
    (checkpoint / "model.safetensors.index.json").unlink()
    assert values(onecopy.load_safetensors(str(checkpoint) + "/")) == {"a": [1], "b": [2, 3]}


def test_an_index_of_another_name_will_do_and_of_two_the_usual_one_is_taken(checkpoint):
    (checkpoint / "model.safetensors.index.json").rename(checkpoint / "diffusion.safetensors.index.json")
    assert values(onecopy.load_safetensors(checkpoint)) == EXPECTED
    write_index(checkpoint, {"a": A, "b": A})
    assert values(onecopy.load_safetensors(checkpoint)) == {"a": [1], "b": [2, 3]}
    (checkpoint / "model.safetensors.index.json").rename(checkpoint / "x.safetensors.index.json")
    with pytest.raises(onecopy.InvalidArgument, match="has 2 indexes, such as diffusion.* and x.*, and none is named"):
        onecopy.load_safetensors(checkpoint)


def test_directories_that_do_not_say_what_to_read_are_refused(checkpoint, tmp_path):
    (checkpoint / "model.safetensors.index.json").unlink()
    with pytest.raises(onecopy.InvalidArgument, match=f"has 2 .safetensors files, such as {A} and {B}, and no model"):
        onecopy.load_safetensors(checkpoint)
    (tmp_path / "empty").mkdir()
    with pytest.raises(onecopy.InvalidArgument, match="is a directory without a .safetensors file; name a"):
        onecopy.load_safetensors(tmp_path / "empty")
    with pytest.raises(IsADirectoryError, match="name an .npy file in it"):
        onecopy.load_npy(tmp_path / "empty")


def test_a_missing_file_is_named(checkpoint):
    (checkpoint / B).unlink()
    with pytest.raises(FileNotFoundError, match=f"{B} is not there, and .*index.json names it: get the missing file"):
        onecopy.load_safetensors(checkpoint)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"d": B}, rf'the tensor "d" is in {B}, which does not have it'),
        ({"c": A}, rf'the tensor "c" is in {A}, which does not have it'),
        ({"b": B}, rf'the tensor "b" is in {B}, and {A} has it'),
        ({"a": None}, rf'there is no tensor "a", and {A} has it'),
    ],
    ids=["missing", "in no file", "in the other file", "not in the index"],
)
def test_what_index_and_files_disagree_about_is_named(checkpoint, change, says):
    write_index(checkpoint, {name: file for name, file in {**MAP, **change}.items() if file})
    before = onecopy.stats()["live_blocks"]
    with pytest.raises(onecopy.BadFile, match=f"index.json and its files contradict each other: it says that {says}"):
        onecopy.load_safetensors(checkpoint)
    assert onecopy.stats()["live_blocks"] == before


def test_a_tensor_in_two_files_is_refused(checkpoint):
    write_safetensors(checkpoint / B, {"c": floats(4), "a": floats(5)})
    with pytest.raises(onecopy.BadFile, match=f'the tensor "a" is in one file, and {A} and {B} have it'):
        onecopy.load_safetensors(checkpoint)


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "it is not JSON"),
        ("[1]", 'it has no object "weight_map"'),
        ("{}", 'it has no object "weight_map"'),
        ('{"weight_map": 3}', 'it has no object "weight_map"'),
        ('{"weight_map": {"a": 3}}', 'the file of the tensor "a" is number, which is not a string'),
        ('{"weight_map": {"a": "../x.safetensors"}}', 'which is not a file in the index\'s directory'),
        ('{"weight_map": {"a": ""}}', 'which is not a file in the index\'s directory'),
        ('{"weight_map": {"a": "x", "a": "y"}}', 'the tensor "a" comes twice'),
        ('{"weight_map":' + "[" * 100 + "]" * 100 + "}", "it is nested more than 32 deep"),
    ],
)  # fmt: skip
def test_what_is_no_index_is_refused(checkpoint, text, says):
    (checkpoint / "model.safetensors.index.json").write_text(text)
    with pytest.raises(onecopy.BadFile, match=f"index.json: this is not a valid safetensors index: .*{says}"):
        onecopy.load_safetensors(checkpoint)


def test_a_damaged_file_is_named(checkpoint):
    (checkpoint / B).write_bytes(b"12345678901234567890")
    with pytest.raises(onecopy.BadFile, match=B):
        onecopy.load_safetensors(checkpoint)


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("x.pt", b"PK\3\4 and more bytes", r"is a zip archive, such as .*torch.load\(FILE"),
        ("x.npz", b"PK\3\4 and more bytes", r"is a zip archive, such as .*numpy.load\(FILE"),
        ("x.gguf", b"GGUF" + bytes(20), "is a GGUF file"),
        ("x.npy", b"\x93NUMPY" + bytes(20), r"is an npy file: load_npy\(\) reads it"),
    ],
)
def test_a_file_of_another_format_is_named_with_the_way_from_there(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(onecopy.BadFile, match=f"{name} {says}"):
        onecopy.load_safetensors(tmp_path / name)
