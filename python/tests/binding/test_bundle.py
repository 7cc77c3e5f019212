# SPDX-License-Identifier: Apache-2.0
"""Bundles: one handle for a nested value, and its opener's view."""

import collections
import collections.abc
import enum
import gc
import json
import pickle
import subprocess

import pytest

import onecopy


def opened(value, **keywords):
    return onecopy.open(onecopy.share(value), **keywords)


def plain(tree):
    """The tree with lists of numbers instead of tensors."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(plain(value) for value in tree)
    return tree.tolist() if hasattr(tree, "tolist") else tree


NESTED = {
    "w": onecopy.full((2, 2), 1.5),
    "layers": [{"b": onecopy.full(3, 2, "int8")}, (onecopy.full((), True, "bool"), "relu", None)],
    "epoch": 7, "rate": 0.1, "name": "é", 5: b"\0\1", "big": 1 << 100, "z": 1j, "flags": (True, False), "empty": {},
}  # fmt: skip


def test_the_value_comes_back_as_it_was():
    tree = opened(NESTED).tree()
    assert plain(tree) == plain(NESTED)
    assert isinstance(tree["w"], onecopy.Tensor)
    tree["w"][0, 0] = 9
    assert NESTED["w"][0, 0].item() == 9
    NESTED["w"][0, 0] = 1.5


def test_tensors_have_names_by_their_place():
    bundle = opened(NESTED)
    assert list(bundle) == bundle.keys() == ["w", "layers.0.b", "layers.1.0"]
    assert len(bundle) == 3
    assert bundle["layers.0.b"].tolist() == bundle[1].tolist() == bundle[-2].tolist() == [2, 2, 2]
    assert "w" in bundle and "epoch" not in bundle and 0 not in bundle
    assert bundle.get("w").shape == (2, 2) and bundle.get("x") is None and bundle.get("x", 5) == 5
    assert plain(dict(bundle)) == plain(dict(bundle.items())) == dict(zip(bundle, plain(bundle.values())))
    assert isinstance(bundle, collections.abc.Mapping)


def test_a_bundle_is_not_reversed_by_its_rows():
    with pytest.raises(TypeError, match="not reversible"):
        reversed(opened({"a": onecopy.empty(1), "b": onecopy.empty(1)}))


def test_what_is_not_there():
    bundle = opened([onecopy.empty(1)])
    assert None not in bundle and bundle.get(None) is None and bundle.get(None, 5) == 5
    assert "\ud800" not in bundle and bundle.get("\ud800") is None
    for key, error in (
        ("x", KeyError),
        ("\ud800", KeyError),
        (1, IndexError),
        (-2, IndexError),
        (1.5, TypeError),
        (None, TypeError),
    ):
        with pytest.raises(error, match=r"named ('x'|'\\ud800');|^key"):
            bundle[key]


def test_a_name_that_is_not_there_is_told_what_is_near():
    bundle = opened(NESTED)
    with pytest.raises(KeyError) as error:
        bundle["layers.0.c"]
    assert error.value.args == ("layers.0.c",)
    assert str(error.value) == (
        """none of the bundle's 3 tensors is named 'layers.0.c'; similar names are 'layers.0.b', 'layers.1.0'; """
        "tree() returns the whole value, with the values that are not tensors"
    )


def test_a_bundle_that_python_did_not_make_has_no_value_to_point_at(tmp_path):
    from onecopy.__main__ import command

    if command() is None:
        pytest.skip("wants the package installed with its command")
    header = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    file = tmp_path / "w.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\7")
    with subprocess.Popen(
        [command(), "share", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        bundle = onecopy.open(program.stdout.readline().strip())
        program.terminate()
    assert bundle["w"].tolist() == [7]
    with pytest.raises(KeyError, match=r"^none of the bundle's 1 tensors is named 'x'; keys\(\) returns the names$"):
        bundle["x"]


@pytest.mark.parametrize("key", ["epoch", "layers"])
def test_a_key_of_the_value_that_is_no_tensor_is_found_by_tree(key):
    with pytest.raises(KeyError, match=r"tree\(\)"):
        opened(NESTED)[key]


def test_the_error_for_a_name_crosses_processes():
    with pytest.raises(KeyError) as error:
        opened([onecopy.empty(1)])["5"]
    there = pickle.loads(pickle.dumps(error.value))
    assert type(there) is KeyError and there.args == (str(error.value),)


def test_near_names_are_looked_for_only_when_the_error_is_printed(run_python):
    """Programs try names one after the other, of twenty thousand maybe."""
    program = """
        import collections, sys, onecopy
        bundle = onecopy.open(onecopy.share({"a": onecopy.empty(1)}))
        print(collections.ChainMap(bundle, {"b": 2})["b"], "difflib" in sys.modules)
    """
    assert run_python(program) == "2 False\n"


def test_another_program_opens_it(run_python):
    program = """
        import sys, onecopy
        bundle = onecopy.open(sys.argv[1])
        tree = bundle.tree()
        tree["layers"][0]["b"][1] = 3
        print(list(bundle), tree["name"], sorted(map(str, tree)))
    """
    handle = onecopy.share(NESTED)
    out = run_python(program, str(handle))
    assert out == f"{list(opened(NESTED))} é {sorted(map(str, NESTED))}\n"
    assert NESTED["layers"][0]["b"].tolist() == [2, 3, 2]
    NESTED["layers"][0]["b"][1] = 2


def test_a_tensor_at_two_places_is_one_object_at_two_names():
    t = onecopy.zeros(3)
    bundle = opened({"a": t, "b": onecopy.full(1, 5), "tied": [t, t]})
    tree = bundle.tree()
    assert tree["a"] is tree["tied"][0] is tree["tied"][1]
    assert sorted(bundle) == ["a", "b", "tied.0", "tied.1"]
    assert bundle["tied.1"].data_ptr == t.data_ptr
    assert [v.tolist() for v in (bundle["b"], bundle["tied.0"])] == [[5], [0, 0, 0]]


def test_the_bundle_keeps_everything_and_a_tensor_only_itself():
    handle = onecopy.share({"a": onecopy.full(3, 1), "b": onecopy.full(3, 2)})
    text = str(handle)
    bundle = onecopy.open(handle)
    del handle
    gc.collect()
    assert onecopy.open(text)["b"].tolist() == [2, 2, 2]
    a = bundle["a"]
    del bundle
    onecopy.collect()
    with pytest.raises(onecopy.StaleHandle):
        onecopy.open(text)
    assert a.tolist() == [1, 1, 1]


def test_a_pickled_bundle_handle_keeps_all_tensors():
    data = pickle.dumps(onecopy.share([onecopy.full(2, 1), onecopy.full(2, 2)]))
    gc.collect()
    assert plain(onecopy.open(pickle.loads(data)).tree()) == [[1, 1], [2, 2]]


def test_subclasses_become_what_they_derive_from():
    class Color(enum.IntEnum):
        RED = 3

    Point = collections.namedtuple("Point", "x y")
    value = collections.OrderedDict(p=Point(onecopy.full((), 1.0), 2), c=Color.RED)
    value["d"] = collections.defaultdict(list, k=onecopy.full(1, 4))
    tree = opened(value).tree()
    assert type(tree) is dict and type(tree["p"]) is tuple and type(tree["c"]) is int and type(tree["d"]) is dict
    assert plain(tree) == {"p": (1.0, 2), "c": 3, "d": {"k": [4]}}


def test_nothing_but_plain_values():
    assert opened({}).tree() == {} and len(opened([])) == 0
    assert opened([1, "a", None]).tree() == [1, "a", None]


@pytest.mark.parametrize(
    "value, place",
    [
        ({"a": [object()]}, 'x at "a.0"'),
        ([{1, 2}], 'x at "0"'),
        ({"f": {"g": print}}, 'x at "f.g"'),
        ({"k": {frozenset(): 1}}, 'x at "k"'),
        ({"t": onecopy.Tensor}, 'x at "t"'),
    ],
    ids=str,
)
def test_what_cannot_be_shared_is_named_by_its_place(value, place):
    with pytest.raises(onecopy.InvalidArgument, match=place):
        onecopy.share(value)


def test_cycles_and_depth_are_refused():
    cycle = []
    cycle.append(cycle)
    with pytest.raises(onecopy.InvalidArgument, match="contains itself"):
        onecopy.share(cycle)
    deep = onecopy.full(1, 3)
    for _ in range(31):
        deep = [deep]
    assert len(opened(deep)) == 1
    with pytest.raises(onecopy.InvalidArgument, match="32 deep"):
        onecopy.share([deep])
    with pytest.raises(onecopy.InvalidArgument, match="surrogates"):
        onecopy.share(["\ud800"])


def test_a_failed_share_leaves_nothing_behind():
    gc.collect()
    before = onecopy.stats()["live_blocks"]
    with pytest.raises(onecopy.InvalidArgument):
        onecopy.share({"a": bytearray(100), "b": object()})
    gc.collect()
    assert onecopy.stats()["live_blocks"] == before


def test_copy_shares_copies():
    t = onecopy.zeros(3)
    bundle = onecopy.open(onecopy.share({"a": t, "b": t}, copy=True))
    t[0] = 1
    tree = bundle.tree()
    assert tree["a"].tolist() == [0, 0, 0] and tree["a"] is tree["b"]


def test_read_only_bundles_give_read_only_tensors():
    bundle = opened({"a": onecopy.zeros(3)}, access="read")
    for tensor in (bundle["a"], bundle.tree()["a"], bundle.values()[0]):
        assert tensor.access == "read"


def test_many_small_tensors_take_one_handle():
    value = {f"layer.{i}": onecopy.full(1, i, "int32") for i in range(2000)}
    handle = onecopy.share(value)
    assert len(handle.to_bytes()) <= 200
    bundle = onecopy.open(handle)
    assert bundle["layer.1234"].tolist() == [1234]
    assert [t.item() for t in bundle.tree().values()] == list(range(2000))


def test_repr():
    assert repr(opened({"a": onecopy.empty(3)})) == "<onecopy.Bundle of 1: 'a' float32[3]>"
    assert repr(opened([onecopy.empty(1)] * 9)).endswith(", ...>")
    handle = onecopy.share([])
    assert repr(handle) == "<onecopy.Handle of a bundle of 0 tensors>"
    assert repr(onecopy.Handle.from_text(str(handle))) == "<onecopy.Handle of a bundle>"


def test_the_collector_is_left_as_it_was():
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            opened([onecopy.empty(1)]).tree()
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


def test_a_child_collects_whatever_its_parents_threads_did_when_it_was_forked(run_python):
    program = """
        import gc, os, threading, warnings, onecopy

        warnings.simplefilter("ignore")  # that there are threads is what this is about
        value = {str(i): onecopy.empty(1) for i in range(2000)}
        done = threading.Event()

        def share_and_open():
            while not done.is_set():
                onecopy.open(onecopy.share(value)).tree()

        thread = threading.Thread(target=share_and_open)
        thread.start()
        on = 0
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                os._exit(gc.isenabled())
            on += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        done.set()
        thread.join()
        print(on, gc.isenabled())
    """
    assert run_python(program) == "40 True\n"


def test_the_collector_of_a_child_that_is_forked_in_the_middle_of_it_is_left_as_it_was(run_python):
    program = """
        import gc, os, onecopy

        class Number(float):
            def __float__(self):
                forked.append(os.fork())
                return 1.0

        forked = []
        value = [[onecopy.empty(1) for _ in range(100)], Number()]
        onecopy.share(value)
        for pid in filter(None, forked):
            os.waitpid(pid, 0)
        onecopy.share(value[0])
        print(gc.isenabled())
    """
    assert run_python(program) == "True\nTrue\n"


# ---- numpy


def test_numpy_arrays_are_copied_in_and_opened():
    np = pytest.importorskip("numpy")
    a = np.arange(6.0).reshape(2, 3)
    on_ours = onecopy.zeros(3).numpy()
    bundle = opened({"a": a, "ours": on_ours, "n": np.float32(0.5)}, framework="numpy")
    tree = bundle.tree()
    assert (tree["a"] == a).all() and tree["n"] == 0.5
    assert tree["ours"].ctypes.data == on_ours.ctypes.data
    assert isinstance(bundle["a"], np.ndarray)
    assert isinstance(bundle.tree("onecopy")["a"], onecopy.Tensor)


def test_what_is_a_plain_value_in_a_bundle_is_an_array_on_its_own():
    np = pytest.importorskip("numpy")
    for value, shape in ((b"abc", (3,)), (np.float32(0.5), ())):
        assert onecopy.open(onecopy.share(value)).shape == shape
        assert opened({"a": value}).tree() == {"a": value}


# ---- torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_a_state_dict_shares_the_model_itself(torch):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    bundle = opened(model.state_dict(), framework="torch")
    assert list(bundle) == list(model.state_dict())
    bundle["0.weight"].fill_(7)
    assert (model[0].weight == 7).all(), "views made before follow"
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    other.load_state_dict(bundle.tree(), assign=True)
    with torch.no_grad():
        model[0].bias.fill_(3)
    assert (other[0].bias == 3).all()


def storages_moved() -> int:
    """Returns how many storages onecopy has moved, or torch before 2.12."""
    stats = onecopy.stats()
    return stats["torch_moved"] + stats["torch_moved_by_torch"]


def test_a_module_shares_parameters_and_buffers_tied_ones_once(torch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 4, bias=False)
            self.b = torch.nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight
            self.frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
            self.register_buffer("mean", torch.ones(2))
            self.register_buffer("scratch", torch.ones(2), persistent=False)

    model = Tied()
    before = storages_moved()
    bundle = opened(model, framework="torch")
    assert storages_moved() == before + 4
    tree = bundle.tree()
    assert set(tree) == set(bundle) == {"a.weight", "b.weight", "frozen", "mean", "scratch"}
    assert tree["a.weight"] is tree["b.weight"]
    assert type(tree["a.weight"]) is torch.nn.Parameter and tree["a.weight"].requires_grad
    assert type(tree["frozen"]) is torch.nn.Parameter and not tree["frozen"].requires_grad
    assert type(tree["mean"]) is torch.Tensor and type(bundle["b.weight"]) is torch.nn.Parameter
    with torch.no_grad():
        model.b.weight.fill_(2)
    assert (tree["a.weight"] == 2).all()


def test_sharing_leaves_optimizer_and_pending_backward_unharmed(torch):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = model(torch.ones(2, 3)).sum()
    bundle = opened(model, framework="torch")
    loss.backward()
    before = bundle["weight"].detach().clone()
    optimizer.step()
    assert torch.equal(bundle["weight"].detach(), before - 0.1 * 2)
    assert torch.equal(bundle["weight"], model.weight)


def test_copy_leaves_the_model_where_it_is(torch):
    model = torch.nn.Linear(3, 2)
    address = model.weight.data_ptr()
    bundle = onecopy.open(onecopy.share(model, copy=True), framework="torch")
    assert model.weight.data_ptr() == address
    assert type(bundle["weight"]) is torch.nn.Parameter and bundle["weight"].requires_grad
    assert torch.equal(bundle["weight"], model.weight)
    with torch.no_grad():
        model.weight.zero_()
    assert bundle["weight"].abs().sum() > 0


def test_copies_of_anything_that_has_values(torch):
    x = torch.ones(3, requires_grad=True) * 2
    tree = onecopy.open(onecopy.share({"x": x, "t": torch.arange(6).view(2, 3).t(), "c": torch.tensor([1j]).conj()}, copy=True),
                        framework="torch").tree()  # fmt: skip
    assert tree["x"].tolist() == [2, 2, 2] and not tree["x"].requires_grad
    assert tree["t"].tolist() == [[0, 3], [1, 4], [2, 5]] and tree["c"].tolist() == [-1j]


def test_the_framework_is_the_openers_choice(torch):
    np = pytest.importorskip("numpy")
    value = {"t": torch.ones(2), "o": onecopy.full(2, 2), "n": np.full(2, 3, np.float32)}
    handle = onecopy.share(value)
    for framework, kind in (
        ("torch", torch.Tensor),
        ("numpy", np.ndarray),
        (None, onecopy.Tensor),
        ("onecopy", onecopy.Tensor),
    ):
        bundle = onecopy.open(handle, framework=framework)
        for tree in (bundle.tree(), dict(bundle), dict(bundle.items())):
            assert {type(array) for array in tree.values()} == {kind}
            assert plain(tree) == {"t": [1, 1], "o": [2, 2], "n": [3, 3]}


def test_conjugated_and_negated_tensors_are_opened_by_torch_only(torch):
    z = torch.tensor([1 + 2j])
    value = {"c": z.conj(), "n": z.conj().imag}
    bundle = opened(value, framework="torch")
    assert bundle.tree()["c"].is_conj() and bundle["c"].tolist() == [1 - 2j]
    assert bundle.tree()["n"].tolist() == [-2]
    for framework in ("numpy", "onecopy"):
        with pytest.raises(onecopy.Unsupported, match="resolve_conj"):
            bundle.tree(framework)


def test_sparse_tensors_are_named_by_their_place(torch):
    with pytest.raises(onecopy.Unsupported, match=r'x at "a\.1"'):
        onecopy.share({"a": [torch.ones(1), torch.eye(2).to_sparse()]})
    with pytest.raises(onecopy.Unsupported, match=r'x at "q"'):
        onecopy.share({"q": torch.eye(2, device="meta")}, copy=True)


def test_tensors_in_a_graph_are_refused_as_torch_refuses_them(torch):
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        onecopy.share({"x": torch.ones(1, requires_grad=True) * 2})


def test_subclasses_of_torch_tensors_share_their_values(torch):
    class Mine(torch.Tensor):
        pass

    mine = torch.ones(3).as_subclass(Mine)
    bundle = opened([mine], framework="torch")
    bundle[0][0] = 5
    assert mine.tolist() == [5, 1, 1] and type(bundle[0]) is torch.Tensor
