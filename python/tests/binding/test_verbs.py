# SPDX-License-Identifier: Apache-2.0
"""All verbs say the same of an object, and docs/reference/what-goes-in.md lists what they say."""

import os

import pytest

import onecopy
from support.devices import on_device

torch = pytest.importorskip("torch", reason="wants torch installed")
pytest.importorskip("numpy", reason="wants numpy installed")

import verbs

OF_LEAF = ("share", "publish", "pin", "to_device")

pytestmark = pytest.mark.usefixtures("device_processes")


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("ONECOPY_STORE_DIR", str(tmp_path))
    return str(tmp_path)


def outcomes_in(place: str) -> dict[str, dict[str, str]]:
    os.environ["ONECOPY_STORE_DIR"] = place
    try:
        return verbs.outcomes()
    finally:
        onecopy.store.connect().stop()


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="wants a torch that has all kinds of the page")
@on_device
def test_the_page_lists_what_each_verb_does_with_each_kind_of_object(own_store):
    listed, made = verbs.PAGE.read_text().splitlines(), verbs.page(outcomes_in(own_store)).splitlines()
    differing = [pair for pair in zip(listed, made) if pair[0] != pair[1]]
    assert listed == made, f"python python/tests/binding/verbs.py writes it: {differing[:1]}"


def test_the_verbs_that_refuse_an_object_refuse_it_with_one_text():
    rows = [line.strip("| ").split(" | ") for line in verbs.PAGE.read_text().splitlines() if line.startswith("| a")]
    assert len(rows) > 20
    columns = [1 + at for at, verb in enumerate(verbs.VERBS) if verb.name in OF_LEAF]
    for kind, *_ in (row for row in rows if len({row[at] for at in columns} - {"✓"}) > 1):
        pytest.fail(f"{kind} is refused with two texts")


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int1", "float4_e2m1fn_x2"])
@on_device
def test_elements_that_onecopy_lacks_are_refused_by_every_verb_that_reads_them(own_store, dtype):
    if not hasattr(torch, dtype):
        return
    kind = verbs.Kind(dtype, lambda: torch.empty(16, dtype=getattr(torch, dtype)))
    os.environ["ONECOPY_STORE_DIR"] = own_store
    texts = {verbs.outcome(verb, kind) for verb in verbs.VERBS if verb.name in ("share", "publish", "to_device")}
    onecopy.store.connect().stop()
    (text,) = texts
    assert text.startswith(f"it has elements of torch.{dtype} on the device cpu")


def to_the_host(value):
    return onecopy.to_device(value, "cpu")


@on_device
def test_an_object_that_no_verb_takes_is_an_invalid_argument_and_a_type_error():
    for call in (onecopy.share, onecopy.pin, to_the_host):
        for value in (object(), {"a": [object()]}):
            with pytest.raises(onecopy.InvalidArgument, match="must be a tensor or an array") as raised:
                call(value)
            assert isinstance(raised.value, TypeError)
            assert ('at "a.0"' in str(raised.value)) == isinstance(value, dict)


def test_a_mapping_of_any_class_is_shared_as_a_dict():
    from types import MappingProxyType

    given = MappingProxyType({"a": torch.ones(2), "b": MappingProxyType({"c": 3})})
    assert onecopy.open(onecopy.share(given)).tree()["b"] == {"c": 3}


@on_device
def test_a_tensor_of_a_subclass_is_copied_to_a_device_as_a_tensor():
    class Own(torch.Tensor):
        pass

    there = onecopy.to_device([torch.arange(3.0).as_subclass(Own)], "cpu")
    assert type(there[0]) is torch.Tensor and there[0].tolist() == [0, 1, 2]


@on_device
def test_a_value_that_contains_itself_is_refused_by_its_place():
    value = []
    value.append(value)
    for call in (onecopy.share, onecopy.pin, to_the_host):
        with pytest.raises(onecopy.InvalidArgument, match="nested 32 deep or more, or contains itself"):
            call(value)


@on_device
def test_each_tensor_keeps_its_place_among_containers_and_other_objects():
    first, second, third, fourth = (torch.full((1,), number) for number in (0.0, 1.0, 2.0, 3.0))
    value = [first, {"a": second, "n": None}, 7, (third,), fourth]
    there = onecopy.to_device(value, "cpu")
    seen = [there[0], there[1]["a"], there[3][0], there[4]]
    assert [tensor.item() for tensor in seen] == [0, 1, 2, 3] and there[1]["n"] is None and there[2] == 7
    tree = onecopy.open(onecopy.share(value), framework="torch").tree()
    assert [tree[0].item(), tree[1]["a"].item(), tree[3][0].item(), tree[4].item()] == [0, 1, 2, 3]
