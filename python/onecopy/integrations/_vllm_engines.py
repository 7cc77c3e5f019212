# SPDX-License-Identifier: Apache-2.0
"""Both sides of vLLM's weight transfer: the trainer sends the name of its tensors, and each worker opens them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import InvalidArgument, open as _open, share as _share, store as _store
from ._packages import need
from .vllm import PACKAGE, WHAT, sleep_of

_base = need(
    "vllm.distributed.weight_transfer.base", PACKAGE, WHAT,
    "WeightTransferEngine", "WeightTransferInitInfo", "WeightTransferUpdateInfo",
    "TrainerWeightTransferEngine", "TrainerInitInfo",
)  # fmt: skip


@dataclass
class OnecopyInitInfo(_base.WeightTransferInitInfo):  # type: ignore[name-defined]
    """An empty message, since the handles of an update contain everything."""


@dataclass
class OnecopyUpdateInfo(_base.WeightTransferUpdateInfo):  # type: ignore[name-defined]
    """The handles of all weights by device, or a version of an object of the store.

    The message is plain text, so HTTP can carry it.
    """

    handles: dict[str, str] = field(default_factory=dict)
    store: str = ""
    version: int | None = None

    def __post_init__(self) -> None:
        if bool(self.handles) == bool(self.store):
            raise ValueError("an update must contain either handles, by device, or the name of an object of the store")

    def open(self, device: Any) -> Any:
        """Opens the weights for a worker with this device, without a copy."""
        if self.store:
            return _store.connect(framework="torch").open(self.store, self.version)
        return _open(_nearest(self.handles, device), framework="torch")


@dataclass
class OnecopyTrainerInitInfo(_base.TrainerInitInfo):  # type: ignore[name-defined]
    """The settings of the trainer's side: the name of the object that each round publishes, or none."""

    backend: ClassVar[str] = "onecopy"
    store: str | None = None


class OnecopyWeightTransferEngine(_base.WeightTransferEngine):  # type: ignore[name-defined]
    """The worker's side: passes the trainer's tensors to the model, which copies them into its own layout.

    A model cannot serve between ``initialize_layerwise_reload()`` and ``finalize_layerwise_reload()``.
    ``receive_weights()`` calls both after it has opened the handle, so that a trainer may die at any moment.
    """

    init_info_cls = OnecopyInitInfo
    update_info_cls = OnecopyUpdateInfo

    def init_transfer_engine(self, init_info: OnecopyInitInfo) -> None:
        """Does nothing, since a handle needs no connection."""

    def start_weight_update(self) -> None:
        """Does nothing, since the model serves its old weights until new ones can be read."""

    def receive_weights(self, update_info: OnecopyUpdateInfo) -> None:
        """Loads all weights.

        If the new weights cannot be opened, the model keeps its old weights. If the model refuses a weight, the layers
        that are complete by then use their new weights, all others keep their old ones, and the model can serve.

        Raises:
            OwnerDied: the trainer has ended, and its memory was freed.
            StaleHandle: the trainer has abandoned the update, or the store has no such version.
        """
        load_in_place(self.model, self.model_config, update_info.open(self.device))

    def finish_weight_update(self) -> None:
        """Does nothing, since the model serves its new weights already."""

    def shutdown(self) -> None:
        """Does nothing, since nothing is kept between updates."""


class OnecopyTrainerWeightTransferEngine(_base.TrainerWeightTransferEngine):  # type: ignore[name-defined]
    """The trainer's side: shares the weights in place, or publishes them in the store.

    Each rank calls ``send_weights()``; rank 0 talks to vLLM. The handles are kept until vLLM has finished.
    """

    init_info_cls = OnecopyTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info: OnecopyTrainerInitInfo, *, client: Any, source: Any = None) -> Any:
        """Makes the engine of one rank.

        Raises:
            InvalidArgument: source is None, or yields only a part of the weights on each rank.
        """
        if source is None or not _yields_all(source, init_info.rank):
            raise InvalidArgument("the backend onecopy needs source=, a WeightSource that yields whole tensors of the "
                                  "whole model on each rank")  # fmt: skip
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine.rank = init_info.rank
        engine.store = init_info.store
        if engine.is_sender:
            client.init_weight_transfer_engine({})
        return engine

    def send_weights(self) -> None:
        """Sends the weights to vLLM. Returns when all of its workers have loaded them."""
        weights = {name: tensor.detach() for name, tensor in _pass_over(self.source)}
        handle, update = self._publish(weights) if self.store else self._lend(weights)
        if self.is_sender:
            self._start()
            self.client.update_weights(update)
            self.client.finish_weight_update()
        self._wait_for_all_ranks()
        del handle, weights  # kept until here, since the text of a handle keeps no memory alive

    def _lend(self, weights: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Returns the handle of this rank, and the message with the handles of all ranks."""
        handle = _share(weights)
        return handle, {"handles": self._of_all_ranks({_device_of(weights): str(handle)})}

    def _publish(self, weights: dict[str, Any]) -> tuple[None, dict[str, Any]]:
        """Publishes the weights by rank 0, and returns the message that names the version."""
        version = _store.connect().publish(self.store, weights) if self.is_sender else None
        return None, {"store": self.store, "version": version}

    def _start(self) -> None:
        """Starts an update, after finishing one that a dead trainer has left open: workers allow one at a time."""
        try:
            self.client.start_weight_update()
        except Exception as refusal:
            try:
                self.client.finish_weight_update()
            except Exception:  # no update is open, so vLLM refuses for another reason
                raise refusal from None
            self.client.start_weight_update()

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


def load_in_place(model: Any, model_config: Any, weights: Mapping[str, Any]) -> None:
    """Loads weights at the addresses of the old ones. Layers that do not get all of theirs keep the old ones."""
    if sleep := sleep_of(model_config):
        sleep.watch(model)
        sleep.offer(model, model_config, weights)
    reload = need("vllm.model_executor.model_loader.reload", PACKAGE, WHAT)
    reload.initialize_layerwise_reload(model)
    try:
        with _without_completeness_check():
            model.load_weights(list(weights.items()))
    except BaseException:
        _drop_partial_layers(model)
        raise
    finally:
        reload.finalize_layerwise_reload(model, model_config)


def _pass_over(source: Any) -> Any:
    """Returns an iterator over names and tensors, by ``iter_full()`` of vLLM 0.33 or ``iter()`` of 0.32."""
    return source.iter_full() if hasattr(source, "iter_full") else iter(source)


def _yields_all(source: Any, rank: int) -> bool:
    """Returns whether a rank's source yields the whole model, for vLLM 0.33 or 0.32."""
    if hasattr(source, "implements_iter_full"):
        return source.implements_iter_full() and len(source.owned_names(rank)) == len(source.metadata)
    return source.held_names() is None


def _ranks() -> Any:
    """Returns torch.distributed if there are several ranks, or None."""
    import torch

    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return distributed if several else None


def _device_of(weights: dict[str, Any]) -> str:
    """Returns the device of the first tensor, by a name that is the same in all processes."""
    if not weights:
        raise InvalidArgument("the source contains no weights")
    return _name_of(next(iter(weights.values())).device)


def _name_of(device: Any) -> str:
    import torch

    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type


def _nearest(handles: dict[str, str], device: Any) -> str:
    """Returns the handle of weights on the worker's own card, or else the handle of the first rank."""
    return handles.get(_name_of(device)) or next(iter(handles.values()))


def _drop_partial_layers(model: Any) -> None:
    """Makes ``finalize_layerwise_reload()`` restore the old weights of each layer whose new weights are incomplete."""
    of = need("vllm.model_executor.model_loader.reload.layerwise", PACKAGE, WHAT, "get_layerwise_info")
    layers = [of.get_layerwise_info(layer) for layer in model.modules()]
    for info in layers:
        info.load_numel = 0
        info.loaded_weights.clear()
    new = sum(not info.can_load() for info in layers)
    if new:
        logging.getLogger("onecopy").warning(
            "a weight update failed after %d of %d layers had received their new weights; the other layers keep their "
            "old weights until the next update", new, len(layers),
        )  # fmt: skip


def _without_completeness_check() -> Any:
    """Disables a check of vLLM, as its own engines do. Older versions do not have the check."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    except ImportError:
        return contextlib.nullcontext()
    return disable_mtp_completeness_check()
