# SPDX-License-Identifier: Apache-2.0
"""A DataLoader whose batches go to the GPU without a copy in CPU memory: the first import is all that is new."""

import onecopy.multiprocessing
import torch


class Images(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 256

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"image": torch.full((3, 64, 64), float(i)), "label": torch.tensor(i)}


if __name__ == "__main__":
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    loader = torch.utils.data.DataLoader(Images(), batch_size=32, num_workers=2, pin_memory=device != "cpu")
    images = in_place = 0
    for batch in loader:
        in_place += batch["image"].is_shared() and (device == "cpu" or batch["image"].is_pinned())
        image = batch["image"].to(device, non_blocking=True)  # returns at once; the batch may be dropped here
        images += len(image)
    print("images:", images)
    print("batches in memory of a worker, pinned if there is a GPU:", in_place, "of", len(loader))
