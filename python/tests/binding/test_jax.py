# SPDX-License-Identifier: Apache-2.0
"""Arrays of jax. Each test is a program of its own: jax has threads, and the other tests fork."""

import importlib.util

import pytest

import onecopy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="wants jax (pip install jax)")


@pytest.fixture
def run_jax(run_python):
    """Runs a program that has jax on the cpu; in another process it is given what `arguments` say."""
    header = "import sys, jax, jax.numpy as jnp, onecopy\n"
    return lambda program, *arguments: run_python(
        header + "\n".join(line[8:] for line in program.splitlines()), *arguments, env={"JAX_PLATFORMS": "cpu"}
    )


def test_an_array_is_shared_with_one_copy(run_jax):
    program = """
        x = jnp.arange(6.0).reshape(2, 3)
        before = onecopy.stats()["live_blocks"]
        handle = onecopy.share(x)
        print(onecopy.stats()["live_blocks"] - before)
        onecopy.open(handle)[0, 0] = 9
        print(onecopy.open(handle, framework="numpy").tolist(), x.tolist())
    """
    assert run_jax(program) == "1\n[[9.0, 1.0, 2.0], [3.0, 4.0, 5.0]] [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]\n"


def test_every_dtype_that_both_have(run_jax):
    """jax's arrays of bfloat16 and 8-bit floats do not export buffers; arrays of other types do."""
    program = """
        names = ("bool int8 uint8 int16 uint16 int32 uint32 float16 bfloat16 float32 complex64 float8_e4m3fn "
                 "float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu")
        for name in names.split():
            x = jnp.ones((2, 2), name)
            t = onecopy.open(onecopy.share(x))
            back = jnp.from_dlpack(t)
            ok = (t.dtype, back.dtype, t.tolist()) == (name, name, [[1, 1]] * 2) and bool((back == x).all())
            ok = ok and onecopy.empty(1, x.dtype).dtype == name
            if not ok:
                print(name, t, back)
        for shape in ((), (0, 3)):
            t = onecopy.open(onecopy.share(jnp.zeros(shape)))
            print(t.shape, jnp.from_dlpack(t).shape)
    """
    assert run_jax(program) == "() ()\n(0, 3) (0, 3)\n"


def test_a_tensor_is_an_array_of_jax_on_the_same_memory(run_jax):
    program = """
        t = onecopy.open(sys.argv[1])
        x = jnp.from_dlpack(t)
        print(x.unsafe_buffer_pointer() == t.data_ptr, x.tolist())
        before = onecopy.stats()
        handle = onecopy.share(x)
        print(onecopy.stats()["live_blocks"] - before["live_blocks"], "blocks for the way back")
        del t, handle
        onecopy.collect()
        print(float(jax.jit(jnp.sum)(x)), onecopy.stats()["leases"])
    """
    t = onecopy.full((2, 2), 2.5)
    expected = "True [[2.5, 2.5], [2.5, 2.5]]\n0 blocks for the way back\n10.0 1\n"
    assert run_jax(program, str(onecopy.share(t))) == expected


def test_memory_opened_for_reading_is_not_jaxs_to_have(run_jax):
    """jax asks for DLPack in a version that has no word for it."""
    program = """
        t = onecopy.open(sys.argv[1], access="read")
        try:
            jnp.from_dlpack(t)
        except BufferError as error:
            print(error)
        print(jnp.array(t.numpy()).tolist())
    """
    t = onecopy.full(2, 3, "int32")
    said, values = run_jax(program, str(onecopy.share(t))).splitlines()
    assert 'access="readwrite"' in said and values == "[3, 3]"


def test_a_nested_dict_of_arrays_is_a_bundle(run_jax):
    program = """
        if len(sys.argv) > 1:
            tree = onecopy.open(sys.argv[1]).tree()
            weights = jax.tree.map(jnp.from_dlpack, tree["params"])
            print(tree["step"], jax.tree.map(lambda a: (a.shape, str(a.dtype), float(a.sum())), weights))
            sys.exit()
        import subprocess
        dense = {"kernel": jnp.ones((2, 3), jnp.bfloat16), "bias": jnp.arange(3.0)}
        handle = onecopy.share({"params": {"dense": dense, "list": [jnp.zeros(0), dense["bias"]]}, "step": 7})
        subprocess.run([sys.executable, __file__, str(handle)], check=True)
    """
    assert run_jax(program) == (
        "7 {'dense': {'bias': ((3,), 'float32', 3.0), 'kernel': ((2, 3), 'bfloat16', 6.0)}, "
        "'list': [((0,), 'float32', 0.0), ((3,), 'float32', 3.0)]}\n"
    )


def test_queues_carry_arrays_by_value(run_jax):
    """As objects that can be pickled: an array of jax comes out. Arrays that are shared first go by handle."""
    program = """
        import onecopy.multiprocessing as mp

        def double(inbox, outbox):
            for value in iter(inbox.get, None):
                outbox.put(jax.tree.map(lambda x: x * 2, value))

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            process = context.Process(target=double, args=(inbox, outbox))
            process.start()
            for value in (jnp.arange(3), {"w": [jnp.ones((1, 2), jnp.bfloat16)], "n": 4}, jnp.ones(1 << 20)):
                inbox.put(value)
                back = outbox.get()
                print(jax.tree.map(lambda x: (isinstance(x, jax.Array), int(jnp.sum(x))), back))
            inbox.put(None)
            process.join()
    """
    assert run_jax(program) == "(True, 6)\n{'n': (False, 8), 'w': [(True, 4)]}\n(True, 2097152)\n"


def test_arrays_are_copied_into_tensors(run_jax):
    program = """
        t = onecopy.zeros((2, 2), "bfloat16")
        t.copy_from(jnp.arange(4, dtype=jnp.bfloat16).reshape(2, 2).T)
        t[1] = jnp.array([8, 9], jnp.bfloat16)
        print(t.tolist())
    """
    assert run_jax(program) == "[[0.0, 2.0], [8.0, 9.0]]\n"


def test_what_cannot_be_shared_is_refused_by_name(run_jax):
    program = """
        for x in (jnp.ones(2, jnp.int4), jax.random.key(0), jnp.ones(2, "float8_e4m3")):
            try:
                onecopy.share(x)
            except (onecopy.Unsupported, TypeError) as error:
                print(type(error).__name__, str(error)[:40])
    """
    assert [line[:30] for line in run_jax(program).splitlines()] == [
        "Unsupported the elements of x ", "TypeError x must be an array o", "Unsupported x: no dtype of one",
    ]  # fmt: skip
