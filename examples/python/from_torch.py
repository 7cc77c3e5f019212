# SPDX-License-Identifier: Apache-2.0
import torch
import onecopy.multiprocessing as mp  # was: import torch.multiprocessing as mp


def double(inbox, outbox):
    for tensor in iter(inbox.get, None):
        tensor.mul_(2)  # the sender's memory
        outbox.put(tensor.sum())


if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    worker = context.Process(target=double, args=(inbox, outbox))
    worker.start()
    weights = torch.ones(2, 3)
    first_row = weights[0]
    inbox.put(weights)
    print("sum over there:", outbox.get().item())
    print("first row here:", first_row.tolist())
    inbox.put(None)
    worker.join()
