# SPDX-License-Identifier: Apache-2.0
"""A graph on the CPU: a list of calls on tensors that lie where a plan has put them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.fx

from ._arena import Arena, Leases
from ._plan import Memory, lower_bound, place
from ._record import Laid, NotReplayable, Recording, Step, record

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class HostRun:
    """The first call of a shape: it runs by the book, is recorded, and its results are the caller's.

    Raises:
        NotReplayable: no graph can be made of it. No object of the caller was changed.
        The operators' exceptions.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Any],
        in_place: set[int],
        arena: Arena,
        mutated: Collection[int] = (),
    ) -> None:
        self._arena = arena
        self._recording, self.results = record(graph, arguments, in_place)

    def make(self, arguments: Sequence[Any], outputs: str) -> HostGraph:
        """Raises NotReplayable, OutOfMemory; nothing is left of the graph then (I5)."""
        return HostGraph(self._recording, arguments, self._arena, outputs)


class HostGraph:
    """A recorded graph of one shape of one function.

    Between replays the arena holds no live value (I1): outputs were copied out, or are leased. A replay runs only
    after every input in place was compared with the calls' address of it (I3); ``move()`` makes the calls anew for
    other places, and runs nothing.

    Thread safety: with the arena's lock.
    """

    def __init__(self, recording: Recording, arguments: Sequence[Any], arena: Arena, outputs: str) -> None:
        self._recording = recording
        self.last_used = self.replays = 0
        self._policy = outputs
        self._arena = arena
        own = _held_by_outputs(recording) if outputs == "private" else []
        self.private_bytes = sum(m.nbytes for m in own)
        shared = [m for m in recording.memories if m not in own]
        self.planned_bytes = place(shared)
        self.lower_bound = lower_bound(shared)
        self._window = arena.open(self.planned_bytes)
        bytes_ = torch.frombuffer(self._window, dtype=torch.uint8)
        self._bases = {m: bytes_[m.offset : m.offset + m.nbytes] for m in shared}
        self._bases |= {m: torch.empty(m.nbytes, dtype=torch.uint8) for m in own}
        self._leases = arena.leases if outputs == "view" else Leases()
        self.by_the_book: set[str] = set()
        """Operators that cannot write into given memory: their results are made elsewhere, and copied."""
        self.move(arguments)

    # --- the list of calls ------------------------------------------------------------------------------

    def move(self, arguments: Sequence[Any]) -> None:
        """Makes the calls for inputs at these places. Nothing is captured anew."""
        self._slots: list[tuple[int, torch.Tensor]] = []
        self._places: list[tuple[int, torch.Tensor, int]] = []
        self._calls: list[Call] = []
        self._bound: dict[torch.fx.Node, Any] = {}
        self._inputs: dict[Memory, tuple[int, int]] = {}
        for step in self._recording.steps:
            self._bound[step.node] = self._bind(step, arguments)
        outputs = next(n for n in self._last_nodes() if n.op == "output").args[0]
        self._results = [self._bound[o] if isinstance(o, torch.fx.Node) else o for o in outputs]
        self._bound.clear()

    def _last_nodes(self) -> Any:
        return reversed(self._recording.steps[0].node.graph.nodes) if self._recording.steps else ()

    def _bind(self, step: Step, arguments: Sequence[Any]) -> Any:
        if step.kind == "constant":
            return step.value
        if step.kind == "given":
            tensor = arguments[step.value]
            self._places.append((step.value, tensor, tensor.data_ptr()))
            return tensor
        if step.kind == "slot":
            return self._bind_slot(step, arguments)
        operator: Any = step.node.target
        args, kwargs = self._arguments(step.node.args), self._arguments(step.node.kwargs)
        if step.kind == "view":
            return self._checked_view(step, operator(*args, **kwargs))
        if step.kind == "make":
            return self._bind_make(step, operator, args, kwargs)
        if step.kind == "many":
            return self._bind_many(step, operator, args, kwargs)
        self._calls.append((_quick(operator), args, kwargs))
        return self._mutated(step, args, kwargs)

    def _arguments(self, arguments: Any) -> Any:
        return torch.fx.node.map_arg(arguments, lambda node: self._bound[node])

    def _bind_slot(self, step: Step, arguments: Sequence[Any]) -> torch.Tensor:
        (laid,) = step.laid
        assert laid is not None and laid.memory is not None
        slot = self._at(laid)
        self._slots.append((step.value, slot))
        self._inputs[laid.memory] = (step.value, arguments[step.value].storage_offset())
        return slot

    def _checked_view(self, step: Step, view: Any) -> Any:
        """A step that was recorded as a view must be one now."""
        parts = view if isinstance(view, (tuple, list)) else (view,)
        for laid, part in zip(step.laid, parts, strict=True):
            if laid is not None and laid.strides != part.stride():
                raise NotReplayable(f"{step.node.target} looks at memory in another way each time")
        return view

    def _bind_make(self, step: Step, operator: Any, args: Any, kwargs: Any) -> torch.Tensor:
        (laid,) = step.laid
        assert laid is not None
        result = self._at(laid)
        found = _out_variant(operator)
        if found is not None and laid.is_dense:
            variant, name = found
            self._calls.append((_quick(variant), args, {**kwargs, name: result}))
        else:
            self.by_the_book.add(str(operator))
            self._calls.append((functools.partial(_copy_result, _quick(operator), result), args, kwargs))
        return result

    def _bind_many(self, step: Step, operator: Any, args: Any, kwargs: Any) -> list[Any]:
        """Binds a step with several results, which are computed eagerly and copied to where the plan has them."""
        results = [
            value if laid is None or laid.memory is None or laid.memory.given else self._at(laid)
            for laid, value in zip(step.laid, step.value, strict=True)
        ]
        self.by_the_book.add(str(operator))
        self._calls.append((functools.partial(_copy_results, _quick(operator), results), args, kwargs))
        return results

    def _mutated(self, step: Step, args: Any, kwargs: Any) -> Any:
        """The result of an operator that writes into its arguments: the first of them, as torch's do."""
        schema = step.node.target._schema
        for at, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                return args[at] if at < len(args) else kwargs[argument.name]
        return None

    def _at(self, laid: Laid) -> torch.Tensor:
        assert laid.memory is not None
        base = self._bases[laid.memory]
        tensor = torch.empty(0, dtype=laid.dtype)
        start = base.storage_offset()
        assert start % tensor.element_size() == 0
        return tensor.set_(
            base.untyped_storage(), start // tensor.element_size() + laid.offset, laid.shape, laid.strides
        )

    # --- the call ---------------------------------------------------------------------------------------

    def is_in_place(self, arguments: Sequence[Any]) -> bool:
        """Returns whether all inputs in place are where the calls expect them."""
        for index, known, address in self._places:
            tensor = arguments[index]
            if tensor.data_ptr() != address:
                return False
            if tensor is not known and (tensor.stride() != known.stride() or tensor.shape != known.shape):
                return False
        return True

    def is_restless(self, arguments: Sequence[Any]) -> bool:
        """Returns False: its calls are made anew in microseconds."""
        return False

    def describe_moves(self, arguments: Sequence[Any]) -> str:
        """Returns in words which inputs have moved, and where to."""
        return ", ".join(
            f"input {index} from {address:#x} to {arguments[index].data_ptr():#x}"
            for index, _, address in self._places
            if arguments[index].data_ptr() != address
        )

    def replay(self, arguments: Sequence[Any]) -> list[Any]:
        """Raises OutputInUse, and the operators' exceptions."""
        self._arena.leases.evacuate()
        if self._leases is not self._arena.leases:
            self._leases.evacuate()
        with torch.no_grad():
            for index, slot in self._slots:
                slot.copy_(arguments[index])
            for function, args, kwargs in self._calls:
                function(*args, **kwargs)
            return self._hand_out(arguments)

    def _hand_out(self, arguments: Sequence[Any]) -> list[Any]:
        fresh: dict[Memory, torch.UntypedStorage] = {}
        results = [
            self._output(laid, bound, arguments, fresh) if isinstance(laid, Laid) else laid
            for laid, bound in zip(self._recording.outputs, self._results, strict=True)
        ]
        self._leases.show_all(results)
        return results

    def _output(self, laid: Laid, bound: Any, arguments: Sequence[Any], fresh: dict[Memory, Any]) -> torch.Tensor:
        if laid.memory is None:
            return torch.empty_strided(laid.shape, laid.strides, dtype=laid.dtype)  # without elements
        if laid.memory.given:
            return bound
        if laid.memory in self._inputs:
            index, offset = self._inputs[laid.memory]
            tensor = arguments[index]
            return tensor.as_strided(laid.shape, laid.strides, tensor.storage_offset() + laid.offset - offset)
        if laid.memory not in fresh:
            fresh[laid.memory] = self._storage_for(laid.memory)
        return torch.empty(0, dtype=laid.dtype).set_(fresh[laid.memory], laid.offset, laid.shape, laid.strides)

    def _storage_for(self, memory: Memory) -> torch.UntypedStorage:
        """The storage that outputs in one memory share: a copy of it, or itself."""
        base = self._bases[memory]
        if self._policy == "copy":
            return base.clone().untyped_storage()
        if self._policy == "private":
            leased = torch.frombuffer(memoryview(base.numpy()), dtype=torch.uint8).untyped_storage()
        else:
            end = memory.offset + memory.nbytes
            leased = torch.frombuffer(
                memoryview(self._window)[memory.offset : end], dtype=torch.uint8
            ).untyped_storage()
        self._leases.add(leased)
        return leased

    @property
    def call_count(self) -> int:
        return len(self._calls)


def _held_by_outputs(recording: Recording) -> list[Memory]:
    held = [o.memory for o in recording.outputs if isinstance(o, Laid)]
    return [m for m in recording.memories if m in held and m.made_at >= 0]


def _quick(operator: Any) -> Callable[..., Any]:
    """Returns the operator without the layers of Python that torch has around it."""
    return operator._op if isinstance(operator, torch._ops.OpOverload) else operator


@functools.cache
def _out_variant(operator: Any) -> tuple[Any, str] | None:
    """The overload that writes its one result into given memory, and the name of that argument."""
    if not isinstance(operator, torch._ops.OpOverload):
        return None
    wanted = [(a.name, str(a.type)) for a in operator._schema.arguments]
    for name in operator.overloadpacket.overloads():
        variant = getattr(operator.overloadpacket, name)
        outs = [a.name for a in variant._schema.arguments if a.is_out]
        others = [(a.name, str(a.type)) for a in variant._schema.arguments if not a.is_out]
        if len(outs) == 1 and others == wanted:
            return variant, outs[0]
    return None


def _copy_result(operator: Callable[..., Any], result: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    result.copy_(operator(*args, **kwargs))


def _copy_results(operator: Callable[..., Any], results: list[Any], *args: Any, **kwargs: Any) -> None:
    for place_, made in zip(results, operator(*args, **kwargs), strict=True):
        if isinstance(place_, torch.Tensor) and place_.numel():
            place_.copy_(made)
