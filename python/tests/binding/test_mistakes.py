# SPDX-License-Identifier: Apache-2.0
"""Mistakes of new users get an answer that says what to write instead."""

import queue
import sys

import pytest

import onecopy


@pytest.mark.parametrize("wrong", ["a", 2.5, None])
def test_a_queue_says_that_its_maxsize_must_be_an_int(wrong):
    with pytest.raises(TypeError, match=f"^maxsize must be an int, not {wrong!r}$"):
        onecopy.Queue(wrong)


def test_a_handle_of_nothing_shows_that_it_has_no_tensor():
    assert repr(onecopy.share({})) == "<onecopy.Handle of a bundle of 0 tensors>"
    assert repr(onecopy.share([1, 2, 3])) == "<onecopy.Handle of a bundle of 0 tensors>"
    assert repr(onecopy.share({"x": onecopy.zeros(3)})) == "<onecopy.Handle of a bundle of 1 tensor>"


def test_the_repr_of_a_handle_is_answered_with_str():
    with pytest.raises(onecopy.BadHandle, match=r"str\(handle\) returns the text"):
        onecopy.open(repr(onecopy.share(onecopy.zeros(3))))


def test_the_path_of_a_file_is_answered_with_the_functions_that_read_files():
    with pytest.raises(onecopy.BadHandle, match=r"load\(\) and load_npy\(\) read files"):
        onecopy.open("model.safetensors")


def test_a_text_that_ends_in_the_middle_of_a_byte_was_cut_off():
    with pytest.raises(onecopy.BadHandle, match="has a text of 11 characters, which ends in the middle of a byte"):
        onecopy.open("onecopy:bad")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes of exceptions came with Python 3.11")
def test_a_function_that_cannot_be_pickled_is_answered_with_the_top_level_of_a_module():
    with pytest.raises(Exception, match="pickle") as raised:
        onecopy.Queue().put(lambda: 1)
    assert "top level of a module" in raised.value.__notes__[0]


def test_a_queue_has_the_names_that_do_not_wait():
    one = onecopy.Queue(1)
    one.put_nowait(7)
    with pytest.raises(queue.Full):
        one.put_nowait(8)
    assert one.get_nowait() == 7
    with pytest.raises(queue.Empty):
        one.get_nowait()


def test_the_error_for_a_missing_name_has_a_public_name():
    bundle = onecopy.open(onecopy.share({"weight": onecopy.zeros(3)}))
    with pytest.raises(onecopy.errors.MissingName, match="similar names are 'weight'"):
        bundle["weigth"]
    assert onecopy.errors.MissingName.__module__ == "onecopy.errors"


@pytest.mark.parametrize("name, instead", [("cuda", r'\.to\("cuda"\)'), ("load_into", "onecopy.Bundle has it")])
def test_what_only_other_tensors_have_is_answered_with_how_to_get_it(name, instead):
    tensor = onecopy.zeros(3)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{instead}"):
        getattr(tensor, name)
    assert not hasattr(tensor, name)


def test_more_memory_than_a_process_can_address_is_refused_in_one_clause():
    with pytest.raises(onecopy.OutOfMemory, match=r"^cannot allocate \d+ bytes: a process can address at most \d+$"):
        onecopy.empty(2**50, "uint8")


@pytest.mark.parametrize("place", ["slot", "as_is"])
def test_a_version_without_tensors_is_refused(place, store):
    with pytest.raises(onecopy.InvalidArgument, match='no tensor is given for a version of "x"'):
        store.publish("x", {}, place=place)
