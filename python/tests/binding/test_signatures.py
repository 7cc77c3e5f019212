# SPDX-License-Identifier: Apache-2.0
"""inspect.signature() of functions in C++, and annotations with its classes."""

import collections.abc
import inspect
import pickle
import queue

import pytest

import onecopy

FUNCTIONS = [
    name
    for name in onecopy.__all__
    if callable(getattr(onecopy, name)) and not isinstance(getattr(onecopy, name), type)
]
CLASSES = ["Tensor", "Handle", "Bundle", "Message", "Queue", "PipeHandle", "PipeEnd", "Listener"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_has_a_signature(name):
    assert isinstance(inspect.signature(getattr(onecopy, name)), inspect.Signature)


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_has_a_signature(name):
    kind = getattr(onecopy, name)
    for method in [m for m in vars(kind) if not m.startswith("_") and callable(getattr(kind, m, None))]:
        assert isinstance(inspect.signature(getattr(kind, method)), inspect.Signature), method


def test_signatures_are_those_of_the_stub():
    assert str(inspect.signature(onecopy.share)).replace('"', "'") == (
        "(x: 'typing.Any', *, copy: 'bool | None' = None, exact: 'bool | typing.Literal['copy']' = False) -> 'Handle'"
    )
    parameters = inspect.signature(onecopy.Tensor.__dlpack__).parameters
    assert list(parameters) == ["self", "stream", "max_version", "dl_device", "copy"]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is None for p in list(parameters.values())[1:])
    assert (
        list(inspect.signature(onecopy.Tensor.reshape).parameters.values())[1].kind is inspect.Parameter.VAR_POSITIONAL
    )


def test_a_bound_method_has_no_self_and_a_class_the_arguments_of_its_making():
    assert list(inspect.signature(onecopy.Queue.put).parameters) == ["self", "obj", "timeout"]
    assert list(inspect.signature(onecopy.Queue().put).parameters) == ["obj", "timeout"]
    assert inspect.signature(onecopy.Queue).parameters["maxsize"].default == 0
    assert list(inspect.signature(onecopy.Listener).parameters) == ["address", "key"]
    inspect.signature(onecopy.share).bind(3, copy=True)


def test_queues_are_generic_and_bundles_are_mappings():
    assert str(onecopy.Queue[int]).endswith("Queue[int]") and onecopy.Queue[int](3).maxsize == 3
    assert issubclass(onecopy.Bundle, collections.abc.Mapping)


# --- booleans and time ------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [True, False])
def test_a_bool_is_no_timeout(word):
    """queue.Queue.get(True) waits for ever, and this would wait for a second."""
    q = onecopy.Queue()
    here, _ = onecopy.Pipe()
    with onecopy.Listener("unix:@onecopy-test-bool", b"key") as listener:
        for call in (
            lambda: q.get(word), lambda: q.put(1, word), lambda: here.recv(word), lambda: here.poll(word),
            lambda: listener.accept(word), lambda: onecopy.connect(listener.address, b"key", word),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=f"timeout must be seconds, or None for ever, not {word}"):
                call()
    with pytest.raises(TypeError, match=r"try_get\(\) does not wait, and onecopy.multiprocessing.Queue takes block"):
        q.get(word)
    assert q.size() == 0


def test_the_queues_of_multiprocessing_take_block_and_bools_as_before():
    mp = pytest.importorskip("onecopy.multiprocessing")
    q = mp.get_context("spawn").Queue()
    q.put(1, True)
    assert q.get(True, True) == 1
    with pytest.raises(queue.Empty):
        q.get(False)


# --- errors by the names that programs know ---------------------------------------------------------


def test_a_missing_file_is_pythons_error_too(tmp_path):
    for load in (onecopy.load_safetensors, onecopy.load_npy):
        with pytest.raises(FileNotFoundError) as raised:
            load(tmp_path / "missing")
        assert isinstance(raised.value, onecopy.System) and raised.value.errno == raised.value.vendor_code == 2
        assert type(raised.value).__name__ == "System" and str(tmp_path) in str(raised.value)
        again = pickle.loads(pickle.dumps(raised.value))
        assert isinstance(again, FileNotFoundError) and str(again) == str(raised.value) and again.vendor_code == 2


def test_an_address_in_use_is_an_oserror(tmp_path):
    with onecopy.Listener(f"unix:{tmp_path}/socket", b"key"), pytest.raises(OSError) as raised:
        onecopy.Listener(f"unix:{tmp_path}/socket", b"key")
    assert raised.value.errno == raised.value.vendor_code != 0


def test_what_a_queue_has_no_time_for_is_empty_or_full():
    q = onecopy.Queue(1)
    with pytest.raises(queue.Empty) as raised:
        q.get(timeout=0)
    assert isinstance(raised.value, onecopy.Timeout) and isinstance(raised.value, TimeoutError)
    assert str(raised.value) == "nothing came through the queue within 0 s" and raised.value.code == "timeout"
    q.put(1)
    with pytest.raises(queue.Full, match="the queue was full within 0.01 s"):
        q.put(2, timeout=0.01)
    assert isinstance(pickle.loads(pickle.dumps(raised.value)), onecopy.Timeout)


@pytest.mark.parametrize(
    "address, key, message",
    [
        (("127.0.0.1", 1), b"key", r'address must be a str such as "unix:/path".*; write "tcp:127.0.0.1:1"'),
        (3, b"key", "address must be a str such as .*, not 3"),
        ("unix:@x", "abc", r"key must be bytes, not 'abc'; its .encode\(\) is"),
        ("unix:@x", None, "key must be bytes, not None"),
    ],
)
def test_a_listener_says_what_its_arguments_are(address, key, message):
    for call in (onecopy.Listener, onecopy.connect):
        with pytest.raises(TypeError, match=f"^{message}$"):
            call(address, key)


def test_a_closed_pipe_says_so():
    here, there = onecopy.Pipe()
    there.close()
    for use in (here.recv, lambda: [here.send(1) for _ in range(100)]):
        with pytest.raises(onecopy.Closed, match="^the pipe is closed: no process has its other end any more$"):
            use()


def test_elements_that_cannot_be_shared_are_named_with_what_to_do():
    np = pytest.importorskip("numpy")
    for array, message in (
        (np.array([None]), r"x has elements of the dtype object.* make them numbers with .astype\(\)"),
        (np.array(["ab"]), r"dtype <U2, 8 bytes each, .*put the array into a queue, which pickles it"),
        (np.zeros(1, [("a", "i4"), ("b", "f4")]), r"dtype \[\('a'.*share its fields one by one"),
        (np.zeros(1, ">f4"), r"dtype >f4, 4 bytes each, .*convert them to little-endian numbers first"),
    ):
        with pytest.raises(onecopy.Unsupported, match=message):
            onecopy.share(array)


MISSING = """
    import sys
    import onecopy
    sys.modules["torch"] = sys.modules["numpy"] = None
    t = onecopy.zeros(2)
    for use in (t.torch, lambda: onecopy.open(onecopy.share(t), framework="torch"), t.numpy):
        try:
            use()
        except onecopy.MissingPackage as error:
            assert isinstance(error, ModuleNotFoundError) and isinstance(error, onecopy.Unsupported)
            print(error.name, error)
"""


def test_a_missing_package_is_named_with_how_to_get_it(run_python):
    lines = run_python(MISSING).splitlines()
    text = "torch a torch.Tensor needs the package torch, which is not installed: pip install torch; "
    assert [line.startswith(text) for line in lines] == [True, True, False]
    assert lines[2] == "numpy a numpy.ndarray needs the package numpy, which is not installed: pip install numpy"


def test_an_owner_that_died_is_what_to_keep(run_python):
    text = run_python("""
        import onecopy
        print(onecopy.share(onecopy.zeros(3)))
    """)
    with pytest.raises(
        onecopy.OwnerDied, match="^the process that owned this tensor has exited: keep that process running"
    ):
        onecopy.open(text)
