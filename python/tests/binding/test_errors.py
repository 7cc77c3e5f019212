# SPDX-License-Identifier: Apache-2.0
"""onecopy.Error and its subclasses."""

import pickle

import pytest

import onecopy
from onecopy import errors

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Error)]


def test_each_cause_has_a_class_and_a_code():
    special = (errors.Error, errors.MissingPackage)
    codes = [kind.code for kind in CLASSES if kind not in special]
    assert errors.MissingPackage.code == errors.Unsupported.code
    assert len(set(codes)) == len(codes) == 21
    for kind in CLASSES:
        assert getattr(onecopy, kind.__name__) is kind
        assert kind.__doc__


@pytest.mark.parametrize(
    "kind, builtin",
    [
        (onecopy.InvalidArgument, ValueError), (onecopy.BadHandle, ValueError), (onecopy.BadFile, ValueError),
        (onecopy.OutOfMemory, MemoryError), (onecopy.Timeout, TimeoutError), (onecopy.Closed, EOFError),
        (onecopy.Unsupported, NotImplementedError), (onecopy.System, OSError), (onecopy.PeerDied, ConnectionError),
        (onecopy.OtherUser, PermissionError),
    ],
)  # fmt: skip
def test_what_python_has_a_word_for_is_caught_by_it(kind, builtin):
    assert issubclass(kind, builtin) and issubclass(kind, onecopy.Error) and issubclass(kind, RuntimeError)


def test_system_errors_carry_the_number():
    with pytest.raises(onecopy.System) as raised:
        onecopy.load_npy("/nowhere/x.npy")
    assert (raised.value.code, raised.value.vendor_code, raised.value.domain) == ("system", 2, "posix")
    assert "/nowhere/x.npy" in str(raised.value)


def test_other_errors_carry_none():
    with pytest.raises(onecopy.BadHandle) as raised:
        onecopy.open(b"")
    assert (raised.value.code, raised.value.vendor_code, raised.value.domain) == ("bad_handle", 0, "")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_errors_cross_processes(kind):
    error = kind("what to do")
    error.vendor_code, error.domain = 5, "posix"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == "what to do"
    assert (again.code, again.vendor_code, again.domain) == (kind.code, 5, "posix")


def test_messages_say_what_to_write_in_python():
    t = onecopy.zeros((100, 100))
    lent = onecopy.share(onecopy.open(onecopy.share(t), access="read"))
    with pytest.raises(onecopy.ReadOnly, match='open it with access="read"$'):
        onecopy.open(lent)
    with pytest.raises(onecopy.Unsupported, match=r'share a copy \(exact="copy"\)'):
        onecopy.share(t[0], exact=True)
    with pytest.raises(onecopy.BadHandle, match=r"open it with onecopy.Queue.connect\(\)$"):
        onecopy.open(onecopy.Queue()._handle_bytes())
    with pytest.raises(onecopy.System, match="/nowhere/onecopy::x.npy"):
        onecopy.load_npy("/nowhere/onecopy::x.npy")
