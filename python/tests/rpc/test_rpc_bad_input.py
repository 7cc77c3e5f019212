# SPDX-License-Identifier: Apache-2.0
"""Bad input of rpc: each kind is an error that names the mistake, and the next call works."""

from __future__ import annotations

import re
import resource

import pytest

torch = pytest.importorskip("torch")

import native_rpc_functions as theirs
import onecopy
from onecopy import rpc
from support.rpc_group import NativeGroup, shared_group

pair = shared_group(2, NativeGroup, allow=["native_rpc_functions.*"])


def refused(function, *args, to="worker1", **kwargs):
    """(class, text) of what the call throws; the next one works."""
    try:
        rpc.call(to, function, args, **kwargs)
    except Exception as error:
        assert rpc.call("worker1", theirs.add, (1,)) == 2
        return type(error), str(error)
    raise AssertionError("it worked")


# (the function, its arguments, the class of the error, a part of its text)
BAD = {
    "a function that is not there": ("native_rpc_functions:nothing", (), AttributeError, "has no 'nothing' in this process"),
    "a module that is not there": ("no_such_module:f", (), PermissionError, "no_such_module.f is not exported"),
    "a name that is not a function": ("native_rpc_functions:seen", (), AttributeError, "is not a function or class"),
    "too many arguments": (theirs.pid, (1, 2), TypeError, "takes 0 positional arguments but 2 were given"),
    "too few arguments": (theirs.fail, (), TypeError, "missing 1 required positional argument"),
    "an operator's wrong arguments": (theirs.add, (torch.ones(2), torch.ones(3)), RuntimeError, "size of tensor"),
    "a set of objects": (theirs.add, ({object()},), TypeError, r"args\[0\]\[0\]: builtins.object cannot cross"),
    "a generator": (theirs.add, ((i for i in [1]),), TypeError, r"args\[0\]: builtins.generator cannot cross"),
    "an open file": (theirs.add, (open("/dev/null"),), TypeError, r"args\[0\]: _io.TextIOWrapper cannot cross"),
    "a lambda among arguments": (theirs.add, ([lambda: 1],), TypeError, r"args\[0\]\[0\]: .*is local to a function"),
    "what runs programs": ("os:system", ("true",), PermissionError, "os.system is not exported"),
}  # fmt: skip


def refused_by_name(name):
    function, args, *_ = BAD[name]
    return refused(function, *args)


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(pair, name):
    kind, text = pair[0](refused_by_name, name)
    assert issubclass(kind, BAD[name][2]), (kind, text)
    assert re.search(BAD[name][3], text), text


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return refused(theirs.ignore, value)


def within_itself():
    value = []
    value.append(value)
    return refused(theirs.ignore, value)


def test_a_value_that_is_nested_too_deeply_or_holds_itself(pair):
    for found, text in (
        (pair[0](nested, 100), "nested more than 32 deep"),
        (pair[0](within_itself), "contains itself"),
    ):
        assert issubclass(found[0], TypeError)
        assert text in found[1]


def test_unknown_members(pair):
    for to, kind, text in (
        ("nobody", RuntimeError, "could not find destination nobody; the members are worker0, worker1"),
        (7, RuntimeError, "Unknown destination worker id 7"),
        (1.5, ValueError, "Cannot get WorkerInfo from name 1.5"),
    ):
        found = pair[0](refused_to, to)
        assert issubclass(found[0], kind) and text in found[1]


def refused_to(to):
    return refused(theirs.add, 1, to=to)


def test_an_exception_that_cannot_be_made_here_has_all_of_its_text(pair):
    kind, text = pair[0](refused, theirs.raise_unusual)
    assert kind is rpc.RemoteError
    assert "Failed to create original exception type" in text and "in raise_unusual" in text


def test_an_exception_whose_class_has_no_name_is_a_runtime_error_with_its_text(pair):
    kind, text = pair[0](refused, theirs.raise_local)
    assert kind is RuntimeError
    assert "Local('of a local class')" in text


def test_a_result_that_cannot_cross_is_an_error_of_the_caller(pair):
    kind, text = pair[0](refused, theirs.give_object)
    assert issubclass(kind, TypeError)
    assert "builtins.object cannot cross without pickle" in text


def unmapped():
    return refused(theirs.ignore, torch.empty(3, device="meta"))


def test_a_map_may_send_tensors_of_the_cpu_to_a_card():
    from onecopy.rpc import device_maps

    cpu, card = torch.device("cpu"), torch.device("cuda", 1)
    assert device_maps.target(torch.ones(1), {cpu: card}, "a", "b") == "cuda:1"
    assert device_maps.target(torch.ones(1), device_maps.inverse({card: cpu}), "b", "a") == "cuda:1"
    assert device_maps.target(torch.ones(1), {card: card}, "a", "b") == "cpu"
    assert device_maps.numbers({cpu: card, card: cpu}) == [(-1, 1), (1, -1)]


class OnCard:
    device = torch.device("cuda", 1)


def test_a_card_without_a_map_is_meant_itself_where_the_cards_are_numbered_alike():
    from onecopy.rpc import device_maps

    first, second = torch.device("cuda", 0), OnCard.device
    assert device_maps.target(OnCard(), device_maps.Automatic(), "a", "b") == "cuda:1"
    assert device_maps.target(torch.ones(1), device_maps.Automatic(), "a", "b") == "cpu"
    assert device_maps.target(OnCard(), device_maps.Automatic({second: first}), "a", "b") == "cuda:0", "maps go first"
    with pytest.raises(RuntimeError, match="no entry for cuda:1 of a"):
        device_maps.target(OnCard(), {}, "a", "b")


def test_members_number_cards_alike_that_see_the_same_ones(monkeypatch):
    from onecopy.rpc import peers

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ours = peers.visible_cards()
    assert ours == peers.visible_cards()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert ours != peers.visible_cards()


def test_a_tensor_on_a_device_that_goes_nowhere_names_the_device_and_the_member(pair):
    kind, text = pair[0](unmapped)
    assert issubclass(kind, RuntimeError)
    assert "set_device_map" in text and "destination worker1: no entry for meta of worker0" in text


def without_memory():
    """200 MB for a process that may map 50 MB more."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    value = bytes(200 << 20)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (50 << 20), most))
    try:
        return refused(theirs.ignore, value)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def test_a_message_for_which_there_is_no_memory_is_the_callers_error(pair):
    kind, text = pair[0](without_memory)
    assert issubclass(kind, (onecopy.OutOfMemory, onecopy.OutOfMappings, MemoryError)), (kind, text)


# --- the interface in this process, which is not a member


def test_calls_before_init_say_so():
    for use in (
        lambda: rpc.call("worker1", theirs.add),
        rpc.members,
        lambda: rpc.stream("worker1", theirs.numbers),
        lambda: rpc.explain("worker1", torch.ones(1)),
        lambda: rpc.remote("worker1", theirs.Counter),
    ):
        with pytest.raises(RuntimeError, match="Did you initialize the RPC framework"):
            use()
    assert rpc.current_call() is None


def init_again(file):
    try:
        rpc.init("again", rank=0, world_size=1, rendezvous=f"file://{file}")
    except RuntimeError as error:
        assert rpc.call("worker1", theirs.add, (1,)) == 2
        with pytest.raises(PermissionError):
            rpc.call(rpc.members()[0], "os:getpid")
        return str(error)


def test_a_second_init_is_refused_and_changes_nothing(pair, tmp_path):
    assert "already initialized" in pair[0](init_again, tmp_path / "file")


@pytest.mark.parametrize("options, kind, text", [
    ({"name": ""}, RuntimeError, "Worker name must be non-empty"),
    ({"name": "a b"}, RuntimeError, "Worker name must match"),
    ({"name": "a" * 128}, RuntimeError, "shorter than 128"),
    ({"rank": 2}, ValueError, "ranks go from 0 to 1"),
    ({"rank": -1}, ValueError, "rank"),
    ({"rendezvous": "carrier-pigeon://x"}, RuntimeError, "carrier-pigeon"),
    ({"device_maps": {"b": {0: -1}}}, RuntimeError, "Device index must not be negative"),
    ({"max_calls": 0}, ValueError, "max_calls"),
    ({"when_full": "never"}, ValueError, "when_full"),
    ({"allow": "os.*"}, TypeError, "allow"),
])  # fmt: skip
def test_bad_options_of_init(tmp_path, options, kind, text):
    given = {"name": "a", "rank": 0, "world_size": 2, "timeout": 1, "rendezvous": f"file://{tmp_path}/file", **options}
    with pytest.raises(kind, match=text):
        rpc.init(given.pop("name"), **given)
    assert not rpc.functions.is_restricted()


def test_credit_and_timeouts_below_nothing():
    with pytest.raises(ValueError, match="credit is how many items"):
        rpc.stream("worker1", theirs.numbers, credit=0)


def test_the_page_of_errors_quotes_what_the_errors_say(repository):
    """docs/reference/errors.md, of calls between processes: each text in quotes is one of the sources."""
    import ast

    page = (repository / "docs/reference/errors.md").read_text()
    rows = page.partition("## Calls between processes\n")[2].partition("\n## ")[0].splitlines()
    quotes = [quote for row in rows if row.startswith("|") for quote in row.split("|")[1].split('"')[1::2]]
    said = set()
    for path in (repository / "python/onecopy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                said.add("".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.add(node.value)
    said.update(path.read_text() for path in (repository / "python/src").rglob("*.cpp"))
    assert len(quotes) > 15
    for quote in quotes:
        words = quote.split("...")
        assert any(all(word in text for word in words) for text in said), quote
