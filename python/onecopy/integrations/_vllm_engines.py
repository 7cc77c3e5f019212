# SPDX-License-Identifier: Apache-2.0
"""Both sides of vLLM's weight transfer: the trainer names its tensors by a handle, each worker opens it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import InvalidArgument, open as _open, share as _share
from ._packages import need

_base = need("vllm.distributed.weight_transfer.base", "'vllm>=0.33'", "onecopy.integrations.vllm")


@dataclass
class OnecopyInitInfo(_base.WeightTransferInitInfo):
    """Nothing: handles say all."""


@dataclass
class OnecopyUpdateInfo(_base.WeightTransferUpdateInfo):
    """Handles of all weights, by the device that they are on: text alone, so that it goes through HTTP as it is."""

    handles: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.handles:
            raise ValueError("handles must have at least one handle, by device")


@dataclass
class OnecopyTrainerInitInfo(_base.TrainerInitInfo):
    """The trainer's side has no settings."""

    backend: ClassVar[str] = "onecopy"


class OnecopyWeightTransferEngine(_base.WeightTransferEngine):
    """In each of vLLM's workers: gives the trainer's tensors to the model, which copies them into its own layout."""

    init_info_cls = OnecopyInitInfo
    update_info_cls = OnecopyUpdateInfo

    def init_transfer_engine(self, init_info: OnecopyInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        _reload().initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: OnecopyUpdateInfo) -> None:
        """
        Raises:
            OwnerDied: the trainer has ended; its weights with it.
        """
        bundle = _open(_nearest(update_info.handles, self.device), framework="torch")
        with _without_completeness_check():
            self.model.load_weights(list(bundle.items()))

    def finish_weight_update(self) -> None:
        _reload().finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


class OnecopyTrainerWeightTransferEngine(_base.TrainerWeightTransferEngine):
    """In the trainer: shares the weights where they are, round after round, without a buffer beside them.

    ``send_weights()`` is called on each rank; rank 0 talks to vLLM. The handles are kept until vLLM has finished.
    """

    init_info_cls = OnecopyTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info: OnecopyTrainerInitInfo, *, client: Any, source: Any = None) -> Any:
        if source is None or not source.implements_iter_full():
            raise InvalidArgument("the backend onecopy needs source=, a WeightSource with iter_full()")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        if engine.is_sender:
            client.init_weight_transfer_engine({})
        return engine

    def send_weights(self) -> None:
        if self.is_sender:
            self.client.start_weight_update()
        weights = {name: tensor.detach() for name, tensor in self.source.iter_full()}
        handle = _share(weights)
        handles = self._of_all_ranks({_device_of(weights): str(handle)})
        if self.is_sender:
            self.client.update_weights({"handles": handles})
            self.client.finish_weight_update()
        self._wait_for_all_ranks()
        del handle, weights  # until here, since a text keeps nothing

    @staticmethod
    def _of_all_ranks(mine: dict[str, str]) -> dict[str, str]:
        distributed = _ranks()
        if distributed is None:
            return mine
        gathered: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(gathered, mine)
        merged: dict[str, str] = {}
        for handles in gathered:
            for device, text in handles.items():
                merged.setdefault(device, text)
        return merged

    @staticmethod
    def _wait_for_all_ranks() -> None:
        distributed = _ranks()
        if distributed is not None:
            distributed.barrier()


def _ranks() -> Any:
    """torch.distributed where it has several ranks."""
    import torch

    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return distributed if several else None


def _device_of(weights: dict[str, Any]) -> str:
    """The device of the first tensor, by a name that all processes have for it."""
    if not weights:
        raise InvalidArgument("the source has no weights")
    return _name_of(next(iter(weights.values())).device)


def _name_of(device: Any) -> str:
    import torch

    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type


def _nearest(handles: dict[str, str], device: Any) -> str:
    """The weights on the worker's own card; else the first rank's, which are read from where they are."""
    return handles.get(_name_of(device)) or next(iter(handles.values()))


def _reload() -> Any:
    return need("vllm.model_executor.model_loader.reload", "'vllm>=0.33'", "onecopy.integrations.vllm")


def _without_completeness_check() -> Any:
    """As vLLM's own engines do it; older versions have no such check."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    except ImportError:
        return contextlib.nullcontext()
    return disable_mtp_completeness_check()
