# SPDX-License-Identifier: Apache-2.0
"""A graph on the CPU: a list of operator calls on tensors whose places in memory were planned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.fx

from ._arena import Arena
from ._check import Trial
from ._layout import laid, offset_of
from ._operators import NotReplayable
from ._out_variants import out_variant
from ._plan import Memory, lower_bound, place
from ._record import Laid, Recording, Step, record, view_of_input, with_marks_of

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class HostRun:
    """The first call of a shape: the constructor runs and records the operators. The caller gets the results.

    Raises:
        NotReplayable: no graph can be made. Nothing has run, and no tensor of the caller was changed.
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
        self._trial = Trial(arguments, in_place, mutated)
        self._recording, self.results = record(graph, arguments, in_place)
        self._trial.end_of_run()

    def make(self, arguments: Sequence[Any], outputs: str) -> HostGraph:
        """Returns the graph, after a trial replay on copies has produced the results of the run.

        ``outputs`` has no effect: a graph on the CPU always returns new tensors.

        Raises:
            NotReplayable, OutOfMemory: no graph was made (I5).
        """
        if self._recording.refusal:
            raise NotReplayable(self._recording.refusal)
        graph = HostGraph(self._recording, self._arena)
        graph.try_out(self._trial, self.results)
        if self._trial.has_copies:
            graph.move(arguments)
        return graph


class HostGraph:
    """A recorded graph of one shape of one function.

    Between replays the arena holds no live value (I1), since outputs are copied out. A replay runs only after every
    input in place was compared with the tensor that the calls hold (I3). ``move()`` makes the calls again for other
    inputs, and runs nothing.

    Each memory of the plan is a separate storage with the size that it has in eager execution. So offsets from the
    beginning of a storage are unchanged, and no operator can reach beyond its storage.

    Thread safety: the caller holds the arena's lock.
    """

    is_quick = False
    call = None
    private_bytes = 0

    def __init__(self, recording: Recording, arena: Arena) -> None:
        self._recording = recording
        self.last_used = self.replays = 0
        self.planned_bytes = place(recording.memories)
        self.lower_bound = lower_bound(recording.memories)
        window = memoryview(arena.open(self.planned_bytes))
        self._shared = torch.frombuffer(window, dtype=torch.uint8)
        self._bases = {
            m: torch.frombuffer(window[m.offset : m.offset + m.nbytes], dtype=torch.uint8).untyped_storage()
            for m in recording.memories
        }
        self._memory_at = {storage._cdata: memory for memory, storage in self._bases.items()}
        self.slow_paths: set[str] = set()
        """Operators that cannot write into given memory, so that their results are copied."""

    # --- the list of calls ------------------------------------------------------------------------------

    def move(self, arguments: Sequence[Any]) -> None:
        """Builds the list of calls for these inputs, and runs none of them."""
        with torch.no_grad(), torch.inference_mode(False):  # calls in all modes use the arena's tensors
            self._bind_all(arguments)

    def _bind_all(self, arguments: Sequence[Any]) -> None:
        self._copied_inputs: list[tuple[int, torch.Tensor]] = []
        self._static_inputs: list[tuple[int, torch.Tensor, torch.UntypedStorage, int]] = []
        self._made: list[tuple[Laid, torch.Tensor]] = []
        self._calls: list[Call] = []
        self._bound: dict[torch.fx.Node, Any] = {}
        self._inputs: dict[int, int] = {}  # copied inputs, by the storages of their slots
        for step in self._recording.steps:
            self._bound[step.node] = self._bind(step, arguments)
        self._results = [self._bound[o] if isinstance(o, torch.fx.Node) else o for o in self._recording.outputs]
        self._bound.clear()

    def _bind(self, step: Step, arguments: Sequence[Any]) -> Any:
        if step.kind == "constant":
            return step.value
        if step.kind == "given":
            known = arguments[step.value].detach()  # so that changes of the caller's object do not reach the calls
            storage = known.untyped_storage()
            self._static_inputs.append((step.value, known, storage, storage.nbytes()))
            return known
        if step.kind == "slot":
            return self._bind_slot(step)
        operator: Any = step.node.target
        args, kwargs = self._arguments(step.node.args), self._arguments(step.node.kwargs)
        if step.kind == "view":
            return self._checked_view(step, operator(*args, **kwargs))
        if step.kind == "make":
            return self._bind_make(step, operator, args, kwargs)
        if step.kind == "many":
            return self._bind_many(step, operator, args, kwargs)
        self._calls.append((_without_layers(operator), args, kwargs))
        return None if step.kind == "effect" else self._mutated(step, args, kwargs)

    def _arguments(self, arguments: Any) -> Any:
        return torch.fx.node.map_arg(arguments, lambda node: self._bound[node])

    def _bind_slot(self, step: Step) -> torch.Tensor:
        (how,) = step.laid
        assert how is not None and how.memory is not None
        slot = self._at(how)
        self._copied_inputs.append((step.value, slot))
        self._inputs[slot.untyped_storage()._cdata] = step.value
        return slot

    def _checked_view(self, step: Step, view: Any) -> Any:
        """Returns the view. Raises NotReplayable if it is another view than the recorded one."""
        for how, part in zip(step.laid, view if isinstance(view, (tuple, list)) else (view,), strict=True):
            if how is None or how.memory is None:
                continue
            is_same = (how.dtype, how.shape, how.strides) == (part.dtype, tuple(part.shape), part.stride())
            if not how.memory.given:
                is_same &= how.offset == part.storage_offset()
                is_same &= self._bases[how.memory]._cdata == part.untyped_storage()._cdata
            if not is_same:
                raise NotReplayable(f"{step.node.target} views memory in another way each time")
        return view

    def _bind_make(self, step: Step, operator: Any, args: Any, kwargs: Any) -> torch.Tensor:
        (how,) = step.laid
        assert how is not None
        result = self._at(how)
        self._made.append((how, result))
        found = out_variant(operator) if how.is_dense else None
        if found is not None:
            variant, name = found
            self._calls.append((_without_layers(variant), args, {**kwargs, name: result}))
        else:
            self.slow_paths.add(str(operator))
            call = functools.partial(_copy_results, _without_layers(operator), [result])
            self._calls.append((call, args, kwargs))
        return result

    def _bind_many(self, step: Step, operator: Any, args: Any, kwargs: Any) -> list[Any]:
        results = [
            value if how is None or how.memory is None else self._at(how)
            for how, value in zip(step.laid, step.value, strict=True)
        ]
        self.slow_paths.add(str(operator))
        call = functools.partial(_copy_results, _without_layers(operator), results)
        self._calls.append((call, args, kwargs))
        return results

    def _mutated(self, step: Step, args: Any, kwargs: Any) -> Any:
        """Returns the results of an operator that writes into its arguments: the written arguments, in order."""
        schema: Any = step.node.target._schema
        written = [
            args[at] if at < len(args) else kwargs.get(argument.name)
            for at, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        results = written[: len(schema.returns)]
        return results[0] if len(results) == 1 else results or None

    def _at(self, how: Laid) -> torch.Tensor:
        assert how.memory is not None
        base = self._bases[how.memory]
        return laid(base, how.dtype, how.shape, how.strides, how.offset * how.dtype.itemsize)

    # --- the first replay -------------------------------------------------------------------------------

    def try_out(self, trial: Trial, wanted: Sequence[Any]) -> None:
        """Compares a replay with the first run. Raises NotReplayable if they differ, or if the replay fails."""
        arguments = trial.arguments
        self.move(arguments)
        self._shared.fill_(_POISON)  # else memory that the replay fails to write might hold the right numbers
        with trial.as_the_run():
            try:
                results = self._run(arguments)
            except Exception as error:
                raise NotReplayable(f"its first replay failed: {type(error).__name__}: {error}") from error
        trial.compare(results, wanted)
        for how, tensor in self._made:
            if (tuple(tensor.shape), tensor.stride()) != (how.shape, how.strides):
                raise NotReplayable("an operator has changed the shape of the tensor that it writes into")

    # --- the call ---------------------------------------------------------------------------------------

    def evacuate(self) -> None:
        """Has no effect, since no output lies in the arena."""

    def is_in_place(self, arguments: Sequence[Any]) -> bool:
        """Returns whether the calls hold the memory of all inputs in place."""
        for index, known, storage, nbytes in self._static_inputs:
            tensor = arguments[index]
            if tensor.dtype is not known.dtype or not known.is_set_to(tensor) or not has_same_marks(tensor, known):
                return False
            if storage.nbytes() != nbytes:  # the caller has freed its memory
                return False
        return True

    def describe_moves(self, arguments: Sequence[Any]) -> str:
        """Returns a text that says which inputs have moved, and where to."""
        return ", ".join(
            f"input {index} from {known.data_ptr():#x} to {arguments[index].data_ptr():#x}"
            for index, known, _, _ in self._static_inputs
            if not known.is_set_to(arguments[index])
        )

    def replay(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the calls on these inputs and returns the results. Raises the operators' exceptions."""
        return self._run(arguments)

    def _run(self, arguments: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            for index, slot in self._copied_inputs:
                slot.copy_(arguments[index])
            for function, args, kwargs in self._calls:
                function(*args, **kwargs)
            fresh: dict[Memory, torch.UntypedStorage] = {}
            return [
                self._output(bound, arguments, fresh) if isinstance(bound, torch.Tensor) else bound
                for bound in self._results
            ]

    def _output(
        self, bound: torch.Tensor, arguments: Sequence[Any], fresh: dict[Memory, torch.UntypedStorage]
    ) -> torch.Tensor:
        """Returns a copy of a result for the caller. Results that share a memory share the copy, too."""
        storage = bound.untyped_storage()._cdata
        if storage in self._inputs:
            return view_of_input(arguments[self._inputs[storage]], bound)
        memory = self._memory_at.get(storage)
        if memory is None:
            return bound.detach()  # a view of an input in place or of a constant, or an empty tensor
        if memory not in fresh:
            fresh[memory] = self._bases[memory].clone()
        made = laid(fresh[memory], bound.dtype, tuple(bound.shape), bound.stride(), offset_of(bound))
        return with_marks_of(made, bound)

    @property
    def call_count(self) -> int:
        return len(self._calls)


_POISON = 0xA5


def has_same_marks(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether both tensors agree in lazy conjugation and in lazy negation."""
    return bool(a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg())


def _without_layers(operator: Any) -> Callable[..., Any]:
    """Returns the function of an operator without torch's wrappers in Python."""
    call: Callable[..., Any] = operator._op if isinstance(operator, torch._ops.OpOverload) else operator
    return call


def _copy_results(operator: Callable[..., Any], places: list[Any], *args: Any, **kwargs: Any) -> None:
    made = operator(*args, **kwargs)
    for to, result in zip(places, made if isinstance(made, (tuple, list)) else (made,), strict=True):
        if not isinstance(to, torch.Tensor) or not to.numel():
            continue
        if to.shape != result.shape or to.dtype != result.dtype:
            raise RuntimeError(
                f"{operator} returned {result.dtype}{list(result.shape)}, but {to.dtype}{list(to.shape)} when recorded"
            )
        to.copy_(result)
