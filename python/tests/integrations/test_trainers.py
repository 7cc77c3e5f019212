# SPDX-License-Identifier: Apache-2.0
"""Programs on Lightning and accelerate: batches are used in the memory that a worker filled."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")


LIGHTNING = """
import lightning
import torch
import onecopy.multiprocessing  # workers of a DataLoader hand over memory of onecopy from here on


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, index):
        print("opened:", onecopy.stats()["opened_total"])
        return ((batch[0] * self.weight - batch[1]) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


if __name__ == "__main__":
    x = torch.linspace(0, 1, 32)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 3 * x), batch_size=16, num_workers=2)
    model = Line()
    lightning.Trainer(
        max_epochs=20,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, data)
    print("weight:", round(model.weight.item(), 1))  # 3.0
"""


@pytest.fixture
def on_the_page(repository):
    page = (repository / "docs/guides/data-loading.md").read_text()
    return re.search(r"^```py\n(import accelerate\n.*?)^```", page, re.MULTILINE | re.DOTALL)[1]


def run(directory, program):
    """Returns the program's lines. Warnings of the packages are theirs."""
    file = directory / "program.py"
    file.write_text(program)
    result = subprocess.run([sys.executable, file], cwd=directory, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_batches_of_lightning(tmp_path):
    pytest.importorskip("lightning")
    *opened, weight = run(tmp_path, LIGHTNING)
    assert len(opened) == 40 and "opened: 0" not in opened and weight == "weight: 3.0"


def test_batches_of_accelerate(on_the_page, tmp_path):
    pytest.importorskip("accelerate")
    assert run(tmp_path, on_the_page) == ["sum: 120.0 opened tensors: True", "sum: 376.0 opened tensors: True"]
