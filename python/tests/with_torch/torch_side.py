# SPDX-License-Identifier: Apache-2.0
"""One side of two programs that may have different versions of torch: does what each line of its input asks."""

from __future__ import annotations

import json
import sys
import warnings

import torch

import onecopy

warnings.simplefilter("ignore")
NAMES = (
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz uint16 uint32 uint64"
).split()
kept: dict[str, object] = {}


def numbers(name: str) -> torch.Tensor:
    return (torch.arange(12) % 2).to(getattr(torch, name)).reshape(3, 4)


def is_right(name: str, tensor: torch.Tensor) -> bool:
    wanted = numbers(name)
    return (tensor.dtype, tensor.shape) == (wanted.dtype, wanted.shape) and (
        tensor.contiguous().view(torch.uint8).tolist() == wanted.view(torch.uint8).tolist()
    )


def model(**options) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(3, 5, **options), torch.nn.BatchNorm1d(5, **options))
    return made.eval()


def answer_of(made: torch.nn.Module) -> list[list[float]]:
    with torch.no_grad():
        return made(torch.ones(1, 3)).tolist()


def torch_version() -> str:
    return torch.__version__


# --- tensors


def share_tensors() -> str:
    tensors = kept["tensors"] = {name: numbers(name) for name in NAMES}
    tensors["turned"] = numbers("float32").t()
    handle = kept["handle"] = onecopy.share(tensors)
    return str(handle)


def open_tensors(text: str) -> list[str]:
    """Returns the names of the tensors that are wrong, and writes to one."""
    tensors = kept["opened"] = onecopy.open(text, framework="torch")
    wrong = [name for name in NAMES if not is_right(name, tensors[name])]
    if not is_right("float32", tensors["turned"].t()):
        wrong.append("turned")
    tensors["float64"].fill_(7)
    return wrong


def value_of(name: str, index: int) -> float:
    return float(kept["tensors"][name].view(-1)[index])


# --- modules


def share_model() -> list[object]:
    made = kept["model"] = model()
    handle = kept["model handle"] = onecopy.share(made)
    return [str(handle), answer_of(made)]


def load_model(text: str) -> list[list[float]]:
    made = kept["engine"] = model(device="meta")
    onecopy.open(text).load_into(made)
    return answer_of(made)


def step() -> list[list[float]]:
    """Changes the weights in place, as an optimizer does."""
    made = kept["model"]
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(1)
    return answer_of(made)


def engine_answers() -> list[list[float]]:
    return answer_of(kept["engine"])


# --- queues


def make_queue() -> str:
    queue = kept["queue"] = onecopy.Queue(64)
    return str(queue.handle())


def connect_queue(text: str) -> None:
    kept["queue"] = onecopy.Queue.connect(text)


def put_items() -> None:
    queue = kept["queue"]
    for name in NAMES:
        queue.put({"name": name, "tensor": numbers(name), "dtype": getattr(torch, name), "device": torch.device("cpu")})
    parameter = torch.nn.Parameter(torch.ones(3))
    queue.put((parameter, torch.Size([2, 3]), torch.ones(4, 4)[1:, ::2]))


def get_items() -> list[str]:
    queue, wrong = kept["queue"], []
    for name in NAMES:
        item = queue.get(timeout=60)
        known = (item["name"], item["dtype"], item["device"])
        if known != (name, getattr(torch, name), torch.device("cpu")) or not is_right(name, item["tensor"]):
            wrong.append(name)
    parameter, size, view = queue.get(timeout=60)
    if not (type(parameter) is torch.nn.Parameter and parameter.requires_grad and size == torch.Size([2, 3])):
        wrong.append("parameter")
    if view.shape != (3, 2) or not view.eq(1).all():
        wrong.append("view")
    return wrong


# --- the store


def publish(value: float) -> int:
    return onecopy.store.connect(framework="torch").publish("weights", {"w": torch.full((300,), value)})


def follow() -> float:
    follower = kept.setdefault("follower", onecopy.store.connect(framework="torch").follow("weights"))
    follower.update()
    return follower["w"].mean().item()


def put_stored() -> None:
    kept["queue"].put(onecopy.store.connect(framework="torch").open("weights")["w"])


def get_sum() -> float:
    return kept["queue"].get(timeout=60).sum().item()


if __name__ == "__main__":
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(globals()[name](*arguments)), flush=True)
