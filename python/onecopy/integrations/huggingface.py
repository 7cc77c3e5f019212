# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's transformers with one copy of the weights for any number of processes.

>>> model = onecopy.hf.from_pretrained(AutoModelForCausalLM, "path/to/checkpoint")

The first process of a user loads the files. Later processes open its weights without reading the files. With
``store=True`` the weights are an object of ``onecopy.store``, and stay when all of these processes have ended.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .. import errors, load as _load_files, share as _share, store as _store
from ..store._notices import Notices
from ._packages import need

__all__ = ["from_pretrained"]

_WHAT = "onecopy.hf.from_pretrained()"
# arguments that place or change parameters in ways that a model made from its config cannot repeat
_REFUSED = ("device_map", "quantization_config", "tp_plan", "tp_size", "distributed_config", "gguf_file", "state_dict",
            "use_kernels", "kernel_config", "output_loading_info", "adapter_kwargs")  # fmt: skip
_OF_THE_HUB = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")
_NOT_OF_THE_CONFIG = (*_OF_THE_HUB, "attn_implementation", "dtype", "torch_dtype", "config", "use_safetensors",
                      "variant", "weights_only", "low_cpu_mem_usage")  # fmt: skip
# with these arguments alone, the weights come from the safetensors files of the checkpoint
_PLAIN = set(_NOT_OF_THE_CONFIG) - {"variant"}


def from_pretrained(cls: Any, path: str | os.PathLike[str], *, device: Any = None, access: str = "readwrite",
                    store: bool | str = False, **kwargs: Any) -> Any:  # fmt: skip
    """
    Returns ``cls.from_pretrained(path, **kwargs)`` with the parameters and buffers of the first process that called it.

    All processes use the same memory: a write to a parameter is visible in all of them. The files are read again if no
    process holds the model, or if a file has changed. If several processes call at once, the others wait for the first.
    With ``access="read"`` a write ends the process; the first process can always write.

    Args:
        cls: a class of transformers: ``LlamaForCausalLM``, ``AutoModelForCausalLM``.
        path: a directory with a checkpoint, or a name on the hub.
        device: the device of the model: None for the CPU, or e.g. ``"cuda:0"``.
        access: the access of the later processes to the memory: ``"readwrite"`` or ``"read"``.
        store: keeps the weights in ``onecopy.store``, under this name; True makes a name of the directory and
            the arguments. The weights are read-only in every process then, and ``access`` has no effect.
        kwargs: further arguments of ``cls.from_pretrained()``, such as ``dtype`` and ``attn_implementation``. Processes
            with other arguments use another copy.

    Raises:
        MissingPackage: transformers is not installed.
        Unsupported: an argument distributes or quantizes the model, the model is quantized, or it holds tensors that
            are neither parameters nor buffers.
        InvalidArgument: an argument cannot be compared between processes, since its repr contains an address.
    """
    transformers = need("transformers", "transformers", _WHAT)
    _refuse(kwargs)
    directory = _resolve(path, kwargs)
    identity = _identity(cls, directory, device, kwargs, transformers.__version__)
    if store:
        return _of_store(store, identity, cls, path, directory, device, kwargs)
    notices = Notices(identity)
    with notices.locked():
        bundle = notices.open(access=access)
        if bundle is None:
            return _load(cls, path, directory, device, kwargs, notices)
        model = _model_around(bundle, "model", bundle.tree()["class"], cls, directory, kwargs)
        _post(model, notices)  # a second handle, which can be opened after the first process has ended
    return model


def _refuse(kwargs: dict[str, Any]) -> None:
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise errors.Unsupported(f"{_WHAT} cannot take {name}=: load with transformers, then onecopy.share(model)")


def _resolve(path: str | os.PathLike[str], kwargs: dict[str, Any]) -> Path:
    """Returns the directory that contains the files of the checkpoint."""
    if os.path.isdir(path):
        return Path(os.path.realpath(path)) / kwargs.get("subfolder", "")
    hub = need("transformers.utils", "transformers", _WHAT)
    of_the_hub = {name: kwargs[name] for name in _OF_THE_HUB if name in kwargs}
    return Path(hub.cached_file(os.fspath(path), "config.json", **of_the_hub)).parent


# --- the first process ------------------------------------------------------------------------------


def _load(cls: Any, path: Any, directory: Path, device: Any, kwargs: dict[str, Any], notices: Notices) -> Any:
    model = _read(cls, path, directory, device, kwargs)
    _post(model, notices)
    return model


def _read(cls: Any, path: Any, directory: Path, device: Any, kwargs: dict[str, Any]) -> Any:
    """Returns the model that transformers makes of the files, with the weights in memory of onecopy where possible."""
    files = _weight_files(directory, kwargs)
    model = (
        _read_in_place(files, cls, path, directory, device, kwargs) if files else cls.from_pretrained(path, **kwargs)
    )
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False):
        raise errors.Unsupported(f"{_WHAT} cannot open quantized models in other processes: use onecopy.share(model)")
    return model if device is None else model.to(device)


def _read_in_place(files: list[Path], cls: Any, path: Any, directory: Path, device: Any, kwargs: dict[str, Any]) -> Any:
    """Returns the model of transformers; each parameter that a file holds unchanged is a tensor of ``onecopy.load()``.

    ``load()`` reads with several threads, and to a card without other memory of the host, while transformers makes the
    model of tensors that are not read.
    """
    mapped = _mapped(files)
    config = _config(directory, dict(kwargs))
    with ThreadPoolExecutor(1) as pool:
        if _is_cast(mapped, config, kwargs):
            return _made_of(mapped, cls, path, directory, {**kwargs, "config": config})
        loading = pool.submit(_load_files, directory, device="cpu" if device is None else device, framework="torch")
        model = _made_of(mapped, cls, path, directory, {**kwargs, "config": config})
        found = _unchanged(model, mapped)
        loaded = loading.result()
    for name, parameter in found.items():
        parameter.data = loaded[name]
    return model


def _weight_files(directory: Path, kwargs: dict[str, Any]) -> list[Path]:
    """Returns the safetensors files of a checkpoint that has no other weights, and none if an argument names others."""
    is_plain = set(kwargs) <= _PLAIN and kwargs.get("use_safetensors") is not False
    if not is_plain or (directory / "adapter_config.json").exists():
        return []
    names = {"model.safetensors"}
    if (index := directory / "model.safetensors.index.json").exists():
        names = set(json.loads(index.read_text())["weight_map"].values())
    files = sorted(directory.glob("*.safetensors"))
    return files if names == {file.name for file in files} else []


def _mapped(files: list[Path]) -> dict[str, Any]:
    """Returns the tensors of the files without reading them: the pages of a tensor are read when it is used."""
    load_file = need("safetensors.torch", "safetensors", _WHAT).load_file
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _is_cast(mapped: dict[str, Any], config: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether most of the weights get another dtype than the files have."""
    dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
    if dtype in (None, "auto"):
        dtype = getattr(config, "dtype", None)
    same = sum(tensor.nbytes for tensor in mapped.values() if dtype in (None, tensor.dtype))
    return 2 * same < sum(tensor.nbytes for tensor in mapped.values())


def _made_of(mapped: dict[str, Any], cls: Any, path: Any, directory: Path, kwargs: dict[str, Any]) -> Any:
    """Returns the model that transformers makes of the tensors: renamed, converted, tied and completed as it does."""
    import torch

    made = cls if hasattr(cls, "config_class") else type(_on_meta(cls, directory, dict(kwargs), torch))
    rest = {name: value for name, value in kwargs.items() if name not in _OF_THE_HUB}
    model = made.from_pretrained(None, state_dict=dict(mapped), **rest)
    model.config.name_or_path = model.name_or_path = os.fspath(path)
    _add_generation_config(model, directory)
    return model


def _unchanged(model: Any, mapped: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters that transformers took from a file as they are, by their names in the file."""

    def place(tensor: Any) -> tuple[Any, ...]:
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()

    names = {place(tensor): name for name, tensor in mapped.items() if tensor.numel()}
    return {names[at]: parameter for parameter in model.parameters() if (at := place(parameter)) in names}


def _post(model: Any, notices: Notices) -> None:
    notices.post(_share({"model": model, "class": _name(type(model))}), model)


# --- from the store ---------------------------------------------------------------------------------


def _of_store(name: bool | str, identity: str, cls: Any, path: Any, directory: Path, device: Any,
              kwargs: dict[str, Any]) -> Any:  # fmt: skip
    """Returns a model whose weights are the current version of an object, which the first process publishes."""
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    if not isinstance(name, str):
        name = f"huggingface/{directory.name}/{digest[:8]}"

    def read() -> dict[str, Any]:
        model = _read(cls, path, directory, device, kwargs)
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    weights = _store.connect(framework="torch").open_or_publish(name, read, key={"identity": digest}, place="as_is")
    return _model_around(weights, "", None, cls, directory, kwargs)


# --- the next ones ----------------------------------------------------------------------------------


def _model_around(
    weights: Any, prefix: str, made: str | None, cls: Any, directory: Path, kwargs: dict[str, Any]
) -> Any:
    """Returns a model made without memory, which then uses the memory of a bundle or a version.

    Args:
        made: the class of the model that was loaded; None if the identity of the weights says it.
    """
    import torch

    model = _on_meta(cls, directory, dict(kwargs), torch)
    if made not in (None, _name(type(model))):
        raise errors.Unsupported(
            f"this process makes a {_name(type(model))} of the checkpoint, but the process that has loaded it made a "
            f"{made}"
        )
    weights.load_into(model, prefix=prefix)
    if left := _names_on_meta(model, torch):
        raise errors.Unsupported(
            f"{type(model).__name__} keeps tensors that are neither parameters nor buffers: {', '.join(left[:8])}; "
            "load it with transformers, and share its tensors with onecopy.share()"
        )
    _add_generation_config(model, directory)
    return model.eval()


def _on_meta(cls: Any, directory: Path, kwargs: dict[str, Any], torch: Any) -> Any:
    """Returns a model of the class, made from its config on the device meta."""
    config = _config(directory, kwargs)
    about: dict[str, Any] = {
        name: kwargs[name] for name in ("attn_implementation", "trust_remote_code") if name in kwargs
    }
    dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
    if isinstance(dtype, torch.dtype):
        about["dtype"] = dtype
    with torch.device("meta"):
        make = cls.from_config if hasattr(cls, "from_config") else cls._from_config
        model = make(config, **about)
    model.tie_weights()
    return model


def _config(directory: Path, kwargs: dict[str, Any]) -> Any:
    if kwargs.get("config") is not None:
        return kwargs["config"]
    changes = {name: value for name, value in kwargs.items() if name not in _NOT_OF_THE_CONFIG}
    return need("transformers", "transformers", _WHAT).AutoConfig.from_pretrained(directory, **changes)


def _names_on_meta(model: Any, torch: Any) -> list[str]:
    """Returns the names of the tensors on the meta device, including attributes of modules."""
    named = [*model.named_parameters(), *model.named_buffers()]
    for path, module in model.named_modules():
        named += [(f"{path}.{name}", value) for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
    return [name for name, tensor in named if tensor.is_meta]


def _add_generation_config(model: Any, directory: Path) -> None:
    if not getattr(model, "can_generate", bool)() or not (directory / "generation_config.json").exists():
        return
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig.from_pretrained(directory)


# --- which models are the same ----------------------------------------------------------------------


def _identity(cls: Any, directory: Path, device: Any, kwargs: dict[str, Any], version: str) -> str:
    """Returns a text that is equal for two calls if one may use the model that the other has loaded."""
    files = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in sorted(directory.iterdir())
             if path.is_file() and path.suffix in (".safetensors", ".json", ".bin", ".py")]  # fmt: skip
    arguments = [f"{name}={_text(name, kwargs[name])}" for name in sorted(kwargs) if name not in _OF_THE_HUB]
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "") if device is not None else ""
    return "\n".join([_name(cls), str(directory), str(device), cards, version, *files, *arguments])


def _name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _text(name: str, value: Any) -> str:
    if hasattr(value, "to_json_string"):  # a config
        return str(value.to_json_string())
    text = repr(value)
    if " at 0x" in text:
        raise errors.InvalidArgument(f"{name}={text} cannot be compared between processes: load without it")
    return text
