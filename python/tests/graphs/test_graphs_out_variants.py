# SPDX-License-Identifier: Apache-2.0
"""The overloads with out= that graphs on the CPU use give what their operators give.

As a program it runs all samples that torch has, and prints the list for onecopy/graphs/_out_variants.py:
``python python/tests/graphs/test_graphs_out_variants.py``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from torch.utils._python_dispatch import TorchDispatchMode

from onecopy.graphs._check import agree
from onecopy.graphs._layout import laid
from onecopy.graphs._out_variants import PROVED, candidate, name_of
from onecopy.graphs._record import Laid


class Samples(TorchDispatchMode):
    """Runs the out= overload of each operator beside it, and compares."""

    def __init__(self, only: frozenset[str] | None = None) -> None:
        super().__init__()
        self.only = only
        self.right: Counter[str] = Counter()
        self.wrong: dict[str, str] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = candidate(operator)
        name = name_of(found[0]) if found is not None else ""
        if found is None or name in self.wrong or (self.only is not None and name not in self.only):
            return operator(*args, **kwargs)
        before = torch.get_rng_state()
        want = operator(*args, **kwargs)
        if not is_new_and_dense(want, args):
            return want
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        reason = difference(found, args, kwargs, want)
        torch.set_rng_state(after)
        if reason:
            self.wrong[name] = f"{reason}: {[getattr(a, 'shape', a) for a in args]}, {want.dtype}"
        else:
            self.right[name] += 1
        return want


def is_new_and_dense(want, args) -> bool:
    if not isinstance(want, torch.Tensor) or want.layout != torch.strided or not want.numel():
        return False
    if want.device.type != "cpu" or want.is_conj() or want.is_neg() or not Laid.of(want, None).is_dense:
        return False
    at = want.untyped_storage()._cdata
    tensors = [a for a in torch.utils._pytree.tree_leaves(args) if isinstance(a, torch.Tensor)]
    return all(a.layout == torch.strided and a.untyped_storage()._cdata != at for a in tensors)


def difference(found, args, kwargs, want) -> str:
    """Empty, or what is not as the operator does it. The memory is a graph's: of the size that is needed, and fixed."""
    variant, out = found
    room = bytearray(b"\xa5" * (want.untyped_storage().nbytes() + 64))
    storage = torch.frombuffer(memoryview(room)[: want.untyped_storage().nbytes()], dtype=torch.uint8).untyped_storage()
    place = laid(storage, want.dtype, want.shape, want.stride(), want.storage_offset() * want.itemsize)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            variant(*args, **kwargs, **{out: place})
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if place.shape != want.shape or place.stride() != want.stride():
        return "the place has another shape"
    if bytes(room[-64:]) != b"\xa5" * 64:
        return "it wrote beyond the place"
    return "" if agree(place, want) else "other values"


def run_samples(mode: Samples, most: int, dtypes=None, kinds: int = 1, every: int = 1, first: int = 0) -> None:
    """Runs each ``every``-th operator of torch's list, ``most`` samples of it in each of the first ``kinds`` of ``dtypes`` that
    it has, or in all that it has.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db[first::every]:
        own = info.supported_dtypes("cpu")
        for dtype in sorted(own, key=str) if dtypes is None else [d for d in dtypes if d in own][:kinds]:
            try:
                for at, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
                    if at == most:
                        break
                    with torch.no_grad(), mode:
                        info.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:  # a sample that torch itself cannot run here says nothing of the overloads
                continue


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(16))
def test_the_out_overloads_that_graphs_use_give_what_their_operators_give(part, request):
    """g04: binary_cross_entropy.out and huber_loss.out do not."""
    mode = Samples(PROVED)
    dtypes = None if request.config.getoption("--everything") else [torch.float32, torch.int64, torch.bool]
    run_samples(mode, most=1, dtypes=dtypes, kinds=3 if "ONECOPY_NIGHTLY" in os.environ else 1, every=16, first=part)
    assert not mode.wrong
    assert len(mode.right) > 8, "torch's samples run nearly none of them"


@pytest.mark.parametrize("name", ["binary_cross_entropy.out", "huber_loss.out"])
def test_overloads_that_are_not_their_operator_are_on_no_list(name):
    assert f"aten::{name}" not in PROVED


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    proof = Samples()
    run_samples(proof, most=int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 30)
    for overload, reason in sorted(proof.wrong.items()):
        print(f"# {overload}: {reason}"[:200])
    for overload in sorted(set(proof.right) - set(proof.wrong)):
        print(overload)
