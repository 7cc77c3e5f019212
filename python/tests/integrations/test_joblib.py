# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.joblib: loky's workers have the caller's tensors, not copies."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("joblib")

PROGRAM = """
import joblib
import torch
import onecopy.integrations.joblib

def add_one(tensor, number):
    tensor[number] += 1
    return tensor[number]

if __name__ == "__main__":
    {register}
    rows = torch.nn.Parameter(torch.zeros(4, 1000), requires_grad=False)
    results = joblib.Parallel(n_jobs=2)(joblib.delayed(add_one)(rows, number) for number in range(4))
    print(rows.sum().item())
    results[2].fill_(5)
    print(rows[2, 0].item())
    from joblib.externals.loky import get_reusable_executor
    get_reusable_executor().shutdown(wait=True)
"""


def test_workers_write_the_callers_tensors_and_return_views_of_them(run_python):
    program = PROGRAM.format(register="onecopy.integrations.joblib.register()")
    assert run_python(program, stderr=None) == "4000.0\n5.0\n"


def test_without_it_they_have_copies(run_python):
    assert run_python(PROGRAM.format(register="pass"), stderr=None) == "0.0\n0.0\n"
