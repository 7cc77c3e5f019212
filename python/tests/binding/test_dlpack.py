# SPDX-License-Identifier: Apache-2.0
"""Tensors through DLPack, both ways, both versions."""

import gc

import pytest

import onecopy

np = pytest.importorskip("numpy")


class Exporter:
    """Gives out a onecopy tensor's capsules as another library would."""

    def __init__(self, tensor, **forced):
        self.tensor, self.forced, self.asked = tensor, forced, []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        return self.tensor.__dlpack__(**{**keywords, **self.forced})


class OldExporter(Exporter):
    """A library of before DLPack 1.0: it does not know `max_version`."""

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)


def name_of(capsule) -> str:
    return repr(capsule).split('"')[1]


def test_the_version_is_the_one_asked_for():
    t = onecopy.zeros(3)
    assert name_of(t.__dlpack__()) == "dltensor"
    assert name_of(t.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert name_of(t.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"
    assert name_of(t.__dlpack__(max_version=(1, 3))) == "dltensor_versioned"


def test_device_and_keywords():
    t = onecopy.zeros(3)
    assert t.__dlpack_device__() == (1, 0)
    t.__dlpack__(stream=None, max_version=None, dl_device=(1, 0), copy=None)
    with pytest.raises(BufferError, match="dl_device"):
        t.__dlpack__(dl_device=(2, 0))
    with pytest.raises(TypeError, match="dl_device"):
        t.__dlpack__(dl_device="cpu")
    with pytest.raises(TypeError):
        t.__dlpack__(None)  # keywords only


def test_numpy_sees_the_memory():
    t = onecopy.zeros((2, 3), "int32")
    array = np.from_dlpack(t)
    t[1, 2] = 5
    assert array.tolist() == [[0, 0, 0], [0, 0, 5]]
    assert array.ctypes.data == t.data_ptr
    assert np.from_dlpack(t[:, ::2]).tolist() == [[0, 0], [0, 5]]


def test_copies_are_on_request():
    t = onecopy.zeros(3)
    copied = np.from_dlpack(Exporter(t, copy=True))
    t[0] = 1
    assert copied[0] == 0


def test_read_only_is_said_in_the_new_form_and_refused_in_the_old():
    t = onecopy.open(onecopy.share(onecopy.zeros(3)), access="read")
    with pytest.raises(BufferError, match="reading only"):
        t.__dlpack__()
    assert onecopy.from_dlpack(t).access == "read"
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert not np.from_dlpack(t).flags.writeable


def test_what_comes_in_is_the_same_memory():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    t = onecopy.from_dlpack(array)
    assert (t.shape, t.dtype, t.is_shared) == ((2, 3), "int16", False)
    assert "another library" in repr(t)
    array[0, 0] = 9
    t[0, 1] = 8
    assert t.tolist() == array.tolist() == [[9, 8, 2], [3, 4, 5]]


def test_what_comes_in_lives_as_long_as_the_tensor():
    t = onecopy.from_dlpack(np.arange(3))
    gc.collect()
    assert t[1:].tolist() == [1, 2]


def test_both_forms_come_in():
    t = onecopy.zeros(2)
    new, old = Exporter(t), OldExporter(t)
    assert onecopy.from_dlpack(new).data_ptr == t.data_ptr
    assert new.asked == [{"max_version": (1, 1)}]
    assert onecopy.from_dlpack(old).data_ptr == t.data_ptr


def test_our_own_memory_comes_home():
    t = onecopy.zeros((4, 4))
    part = onecopy.from_dlpack(np.from_dlpack(t)[1:, 2])
    assert part.is_shared and part.strides == (4,)
    assert onecopy.open(onecopy.share(part)).data_ptr == t[1:, 2].data_ptr


def test_a_capsule_is_taken_once():
    capsule = onecopy.zeros(2).__dlpack__(max_version=(1, 0))

    class Again:
        def __dlpack__(self, **_):
            return capsule

    onecopy.from_dlpack(Again())
    with pytest.raises(TypeError, match="used before"):
        onecopy.from_dlpack(Again())


def test_capsules_that_nobody_takes_give_the_memory_back():
    before = onecopy.stats()["live_blocks"]
    for version in (None, (1, 0)):
        onecopy.zeros(3).__dlpack__(max_version=version)
    assert onecopy.stats()["live_blocks"] == before


def test_errors_of_the_exporter_come_through():
    class Broken:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        onecopy.from_dlpack(Broken())

    class Nonsense(Broken):
        def __dlpack__(self, **_):
            return 3

    with pytest.raises(TypeError, match=r"x\.__dlpack__\(\)"):
        onecopy.from_dlpack(Nonsense())

    class OnAnotherDevice(Broken):
        def __dlpack_device__(self):
            return (4, 0)

    with pytest.raises(onecopy.Unsupported, match=r"\bx\b.*device"):
        onecopy.from_dlpack(OnAnotherDevice())


def test_negative_strides_cannot_be_seen_but_be_shared():
    array = np.arange(4)[::-1]
    with pytest.raises(onecopy.Unsupported, match="negative stride"):
        onecopy.from_dlpack(array)
    assert onecopy.open(onecopy.share(array)).tolist() == [3, 2, 1, 0]


def test_from_dlpack_copies_on_request():
    array = np.zeros(3)
    t = onecopy.from_dlpack(array, copy=True, device="cpu")
    assert t.is_shared and t.data_ptr != array.ctypes.data


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "complex64", "uint16", "float16"]
)
def test_torch_round_trip(dtype):
    torch = pytest.importorskip("torch")
    t = onecopy.full((2, 3), 1, dtype)
    try:
        tensor = torch.from_dlpack(t)
    except (RuntimeError, BufferError) as error:
        pytest.skip(f"this torch has no {dtype} in DLPack: {error}")
    assert str(tensor.dtype) == f"torch.{dtype}" and tensor.data_ptr() == t.data_ptr
    assert onecopy.from_dlpack(tensor).dtype == dtype
