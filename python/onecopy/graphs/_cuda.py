# SPDX-License-Identifier: Apache-2.0
"""A graph on a CUDA device: a capture of torch in its own window of addresses over the pages of an arena."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _core
from ..errors import OutOfMappings, OutOfMemory
from ._arena import Arena
from ._captures import KEEPS_GRAPHS, close_dropped, drop, drop_later, first_line, new_graph, recording
from ._key import MAX_KEYED_ELEMENTS
from ._layout import Inputs, Output, Source, address_of, extent_of, laid, lay_out, offset_of
from ._leases import Leases
from ._pool import CapturePool, captures_of
from ._record import NotReplayable

Boxed = Callable[[list[Any]], Any]
"""A function that takes its arguments in one list, and may empty the list."""


class CudaRun:
    """The first call of a shape: the constructor runs it eagerly in memory of the arena. The caller gets its results.

    Raises:
        NotReplayable: these arguments cannot be captured. Nothing has run.
        OutputInUse: the run would overwrite an output. Nothing has run.
        The function's exceptions.
    """

    def __init__(
        self,
        function: Boxed,
        arguments: Sequence[Any],
        in_place: set[int],
        arena: Arena,
        _mutated: object = (),  # a graph writes into its inputs in place
    ) -> None:
        _check(arguments)
        close_dropped()
        self._function = function
        self._in_place = in_place
        self._arena = arena
        assert arena.device is not None
        with captures_of(arena.device.index):
            numbers = _random_numbers(arena.device)
            self.results = _run_in(arena, function, arguments)
            self._is_random = _random_numbers(arena.device) != numbers

    def make(self, arguments: Sequence[Any], outputs: str) -> CudaGraph:
        """Captures the graph. Raises NotReplayable, OutOfMemory; then the capture is undone (I5)."""
        return CudaGraph(self._function, arguments, self._in_place, self._arena, outputs, self._is_random)


def _check(arguments: Sequence[Any]) -> None:
    for index, argument in enumerate(arguments):
        if (
            isinstance(argument, torch.Tensor)
            and argument.device.type == "cpu"
            and argument.numel() > MAX_KEYED_ELEMENTS
        ):
            raise NotReplayable(
                f"input {index} is a CPU tensor of {argument.numel()} elements, and a graph would keep its "
                "present values; pass it on the device"
            )


def _random_numbers(device: Any) -> Any:
    """Returns the offset of the device's random generator, or None if this torch does not report it."""
    generator = torch.cuda.default_generators[device.index]
    return generator.get_offset() if hasattr(generator, "get_offset") else None


def _run_in(arena: Arena, function: Boxed, arguments: Sequence[Any]) -> list[Any]:
    arena.leases.evacuate()
    pool = _pool_for_a_run(arena)
    if pool is None:
        return list(function(list(arguments)))
    with arena.lock.of(torch.cuda.current_stream(arena.device)):
        with pool.use():
            results = _plain(function(list(arguments)))
        results = _moved_out(results, arguments)
    arena.lock.wait()
    _keep_content(pool, arena)
    pool.close()
    return results


def _pool_for_a_run(arena: Arena) -> CapturePool | None:
    """Returns a pool for an eager run, or None to use torch's memory.

    A limit of the arena or a lack of addresses must not make the call fail.
    """
    if arena.limit is not None:
        return None
    try:
        return arena.open_pool()
    except OutOfMappings:
        return None


def _moved_out(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """Copies the results out of the arena. Results that share memory still do, and inputs are returned unchanged."""
    given = {address_of(a) for a in arguments if isinstance(a, torch.Tensor)}
    moved: dict[int, torch.UntypedStorage] = {}
    out = []
    for result in results:
        if isinstance(result, torch.Tensor) and result.is_cuda and address_of(result) not in {0, *given}:
            at = address_of(result)
            if at not in moved:
                moved[at] = result.untyped_storage().clone()
            out.append(laid(moved[at], result.dtype, result.shape, result.stride(), offset_of(result)))
        else:
            out.append(result)
    return out


def _plain(results: Any) -> list[Any]:
    """Resolves lazy conjugation and negation, so that the bytes in memory are the values."""
    return [r.resolve_conj().resolve_neg() if isinstance(r, torch.Tensor) else r for r in results]


def _keep_content(pool: CapturePool, arena: Arena) -> None:
    """Gives tensors that the function has kept (e.g. a table that it made once) their own pages, with their content."""
    alive = pool.alive()
    if not alive:
        return
    copies = [(pool.bytes_at(*extent), pool.bytes_at(*extent).clone()) for extent in alive]
    torch.cuda.synchronize(arena.device)
    pool.window.keep_alive(alive)
    for memory, content in copies:
        memory.copy_(content)
    torch.cuda.synchronize(arena.device)


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device


class _StaticInput:
    """The address and layout of an input in place at the capture. A graph does not keep the tensor: the address of each
    call's own tensor is compared before a replay (I3)."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.address = tensor.data_ptr()
        self.layout = _layout_of(tensor)

    def is_of(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() == self.address and _layout_of(tensor) == self.layout


@dataclasses.dataclass
class _Captured:
    """The result of a capture. `copied_inputs`: the index, address and size in bytes of each, and an example tensor."""

    results: list[Any] = dataclasses.field(default_factory=list)
    outputs: list[Any] = dataclasses.field(default_factory=list)
    sources: list[Source] = dataclasses.field(default_factory=list)
    copied_inputs: list[tuple[int, int, int, Any]] = dataclasses.field(default_factory=list)
    gather: list[int] = dataclasses.field(default_factory=list)
    scatter: list[int] = dataclasses.field(default_factory=list)


class CudaGraph:
    """A captured graph of one shape of one function.

    Between replays the shared pages hold no live value (I1): outputs are copied out or leased, and memory alive at
    the end of the capture gets its own pages. A replay runs only after the address of every input in place was
    compared with the graph's (I3). If torch allows it, the graph's first nodes copy the inputs, and its last nodes
    copy the outputs.

    Thread safety: the caller holds the arena's lock.
    """

    def __init__(
        self,
        function: Boxed,
        arguments: Sequence[Any],
        in_place: set[int],
        arena: Arena,
        outputs: str,
        is_random: bool = False,
    ) -> None:
        self._function = function
        self._in_place = in_place
        self._policy = outputs
        self._arena = arena
        self._is_random = is_random
        self._leases = arena.leases if outputs == "view" else Leases()
        self._pool: CapturePool | None = None
        self.call: Any = None
        """The replay in C++; None if this torch gives no access to its graphs."""
        self.is_quick = False
        """Whether ``call`` makes all results without Python."""
        self.last_used = self.replays = 0
        self._copies_in_graph = arena.copies_in_graphs and _are_plain(arguments)
        self._capture(arguments)

    # --- the capture ------------------------------------------------------------------------------------

    def _capture(self, arguments: Sequence[Any]) -> None:
        pool = self._arena.open_pool()
        graph = new_graph()
        failure: Exception | None = None
        try:
            self._record(graph, pool, arguments)
        except torch.OutOfMemoryError as error:
            failure = OutOfMemory(pool.window.refusal or first_line(error))
        except Exception as error:
            failure = NotReplayable(f"its capture failed: {type(error).__name__}: {first_line(error)}")
        except BaseException:
            drop(graph, pool)
            raise
        if failure is not None:  # raised here, after the error's frames and the tensors in them were released
            drop(graph, pool)
            raise failure

    def _record(self, graph: torch.cuda.CUDAGraph, pool: CapturePool, arguments: Sequence[Any]) -> None:
        done = self._capture_into(graph, pool, arguments)
        if self._policy != "private":
            done.results.clear()
        pool.keep_alive()  # private outputs are still alive here
        done.results.clear()
        if KEEPS_GRAPHS:
            graph.instantiate()
        self._graph, self._pool, self._outputs = graph, pool, done.outputs
        self._sources = [pool.bytes_at(source.address, source.nbytes) for source in done.sources]
        self._copied_inputs = [
            (index, laid(pool.bytes_at(at, nbytes).untyped_storage(), like.dtype, like.shape, like.stride(), 0))
            for index, at, nbytes, like in done.copied_inputs
        ]
        copied = {index for index, _ in self._copied_inputs}
        self._static_inputs = {
            index: _StaticInput(argument)
            for index, argument in enumerate(arguments)
            if isinstance(argument, torch.Tensor) and argument.is_cuda and index not in copied
        }
        if self._copies_in_graph:
            self._make_call(done, arguments)

    def _capture_into(self, graph: torch.cuda.CUDAGraph, pool: CapturePool, arguments: Sequence[Any]) -> _Captured:
        begin, inputs, done = pool.window.base, Inputs(), _Captured()
        with recording(graph, pool, self._arena.stream):
            boxed, done.copied_inputs = self._boxed(arguments, inputs)
            if self._copies_in_graph and done.copied_inputs:
                done.gather = self._arena.copy_nodes([(at, nbytes) for _, at, nbytes, _ in done.copied_inputs])
            done.results = _plain(self._function(boxed))
            boxed.clear()
            done.outputs, done.sources = lay_out(done.results, inputs, begin, begin + pool.window.used)
            if self._copies_in_graph and done.sources and self._policy == "copy":
                done.scatter = self._arena.copy_nodes([_copied(source) for source in done.sources])
        return done

    def _boxed(self, arguments: Sequence[Any], inputs: Inputs) -> tuple[list[Any], list[tuple[int, int, int, Any]]]:
        """Returns the arguments, with a tensor of the window in place of each copied input; and the copied inputs.

        Only the returned list references the tensors of the window, so the capture reuses their memory after the last
        operator that reads them.
        """
        boxed: list[Any] = []
        copied_inputs = []
        for index, argument in enumerate(arguments):
            if index not in self._in_place and isinstance(argument, torch.Tensor) and _can_be_copied(argument):
                copy = torch.empty_strided(
                    argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device
                )
                copied_inputs.append((index, copy.data_ptr(), extent_of(copy), argument))
                argument = copy
                del copy
            if isinstance(argument, torch.Tensor):
                inputs.add(index, argument)
            boxed.append(argument)
        return boxed, copied_inputs

    def _make_call(self, done: _Captured, arguments: Sequence[Any]) -> None:
        executable = self._graph.raw_cuda_graph_exec()
        call = _core._GraphCall(self._arena.lock.core, str(self._arena.device), executable, done.gather, done.scatter)
        for index, memory in self._copied_inputs:
            call.add_copied_input(index, memory.data_ptr(), extent_of(memory))
        for index in self._static_inputs:
            call.add_static_input(index, arguments[index])
        if self._policy == "copy":
            for source, memory in zip(done.sources, self._sources, strict=True):
                call.add_output_copy(_whole(source, memory))
        self.is_quick = self._policy == "copy" and not self._is_random
        for output in self._outputs:
            self.is_quick = self.is_quick and self._add_result(call, output, done.sources, arguments)
        self.call = call

    def _add_result(self, call: Any, output: Any, sources: list[Source], arguments: Sequence[Any]) -> bool:
        """Adds a result to the call. Returns whether the call makes this result without Python."""
        if not isinstance(output, Output):
            call.add_object(output)
        elif output.kind == "made" and sources[output.at].only is output:
            call.add_new_output(output.at)
        elif output.kind == "input" and _is_itself(output, arguments[output.at]):
            call.add_argument(output.at)
        elif output.kind == "constant":
            call.add_object(output.constant)
        else:
            return False
        return True

    def again(self, arguments: Sequence[Any]) -> CudaGraph | None:
        """Captures the function once more, for inputs at these addresses, and keeps this graph for its own.

        Returns None if the other graph would need more memory than the shared pages, or has no room.
        """
        if self._policy == "private" or not self._arena.footprint.aliases:
            return None
        try:
            return CudaGraph(self._function, arguments, self._in_place, self._arena, self._policy, self._is_random)
        except (OutOfMemory, OutOfMappings):
            return None

    def move(self, arguments: Sequence[Any]) -> None:
        """Captures the graph again, for inputs at these addresses.

        Raises:
            NotReplayable, OutOfMemory: as CudaRun.make(); then the graph cannot be used.
        """
        self.close()
        self._capture(arguments)

    def close(self) -> None:
        """Returns the graph's memory after its last replay. Raises OutputInUse, and keeps the memory then."""
        if self._pool is None:
            return
        if self._leases is self._arena.leases:
            self._leases.evacuate()
        self._arena.lock.wait()
        if self.call is not None:
            self.call.close()
            self.call = None
        self._copied_inputs, self._outputs, self._sources = [], [], []
        drop(self._graph, self._pool)
        self._pool = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # bound early: globals end first
        pool = getattr(self, "_pool", None)
        if is_finalizing() or pool is None:
            return
        closing = [self._graph.reset, pool.close]
        if self.call is not None:
            closing.insert(0, self.call.close)
        drop_later(functools.partial(self._arena.try_close, *closing))

    # --- the call ---------------------------------------------------------------------------------------

    def evacuate(self) -> None:
        """Moves outputs that a replay would overwrite. Raises OutputInUse.

        The caller calls it before it reads the inputs, since an output may be an input of the same call.
        """
        for leases in (self._arena.leases, self._leases):
            if not leases.is_empty:
                with self._arena.lock.of(torch.cuda.current_stream(self._arena.device)):
                    leases.evacuate()

    def is_in_place(self, arguments: Sequence[Any]) -> bool:
        """Returns whether all inputs in place are at the addresses of the capture."""
        if self.call is not None:
            return bool(self.call.is_in_place(arguments))
        return all(static.is_of(arguments[index]) for index, static in self._static_inputs.items())

    def describe_moves(self, arguments: Sequence[Any]) -> str:
        """Returns a text that says which inputs have moved, and where to."""
        return ", ".join(
            f"input {index} from {static.address:#x} to {arguments[index].data_ptr():#x}"
            for index, static in self._static_inputs.items()
            if arguments[index].data_ptr() != static.address
        )

    def replay(self, arguments: Sequence[Any]) -> list[Any]:
        """Replays in the order of the current stream. Raises OutputInUse."""
        with self._arena.lock.of(torch.cuda.current_stream(self._arena.device)), torch.no_grad():
            new_outputs = self._run(list(arguments))
            results = [self._handed(o, arguments, new_outputs) if isinstance(o, Output) else o for o in self._outputs]
        self._leases.show_all(results)
        return results

    def _run(self, arguments: list[Any]) -> list[Any]:
        """Runs the graph. Returns the new memory for each source's results, or None for memory not made yet."""
        if self.call is not None:
            made = self.call.run(arguments, self._replay_random if self._is_random else None)
            return made or [None] * len(self._sources)
        if self._copied_inputs:
            torch._foreach_copy_(
                [memory for _, memory in self._copied_inputs], [arguments[index] for index, _ in self._copied_inputs]
            )
        self._replay_random()
        return [None] * len(self._sources)

    def _replay_random(self) -> None:
        """Replays through torch, whose generator supplies the graph's random numbers."""
        assert self._arena.device is not None
        with captures_of(self._arena.device.index):
            self._graph.replay()

    def _handed(self, output: Output, arguments: Sequence[Any], new_outputs: list[Any]) -> torch.Tensor:
        if output.kind == "empty":
            return torch.empty_strided(output.shape, output.strides, dtype=output.dtype, device=self._arena.device)
        if output.kind == "input":
            return self._input(output, arguments[output.at])
        if output.constant is not None:
            return output.constant
        if new_outputs[output.at] is None:
            new_outputs[output.at] = self._memory_for(self._sources[output.at])
        memory = new_outputs[output.at]
        if memory.dtype == output.dtype and memory.shape == output.shape and memory.stride() == output.strides:
            return memory
        return laid(memory.untyped_storage(), output.dtype, output.shape, output.strides, output.offset)

    def _input(self, output: Output, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the input itself, or the view of it that the function returned."""
        if _is_itself(output, tensor):
            return tensor
        storage, offset = tensor.untyped_storage(), offset_of(tensor) + output.offset
        return laid(storage, output.dtype, output.shape, output.strides, offset)

    def _memory_for(self, source: torch.Tensor) -> torch.Tensor:
        """Returns the memory that outputs of one source share: a copy of the source, or the leased source itself."""
        if self._policy == "copy":
            return source.clone()
        assert self._pool is not None
        leased = self._pool.bytes_at(source.data_ptr(), source.numel())
        self._leases.add(leased.untyped_storage())
        return leased

    # --- for the report ---------------------------------------------------------------------------------

    @property
    def slow_paths(self) -> frozenset[str]:
        """The slow paths that the graph uses, in words."""
        return frozenset() if self.call is not None else frozenset({"copies that are not nodes of the graph"})

    @property
    def planned_bytes(self) -> int:
        """The number of bytes that the capture used in its window."""
        return self._pool.window.used if self._pool is not None else 0

    lower_bound = planned_bytes

    @property
    def private_bytes(self) -> int:
        return self._pool.window.own if self._pool is not None else 0

    @property
    def call_count(self) -> int:
        return 1


def _can_be_copied(tensor: torch.Tensor) -> bool:
    """Returns whether a copy node can copy the tensor: it is on a card, and not empty, and no elements overlap."""
    if not tensor.is_cuda or tensor.numel() == 0:
        return False
    return all(size <= 1 or stride > 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _copied(source: Source) -> tuple[int, int]:
    """Returns the address and size of the bytes to copy out: the whole source, or the bytes of its only result."""
    only = source.only
    if only is None:
        return source.address, source.nbytes
    count = 1
    for size in only.shape:
        count *= size
    return source.address, count * only.dtype.itemsize


def _whole(source: Source, memory: torch.Tensor) -> torch.Tensor:
    """Returns the source's memory in the layout of its only result, or as bytes if there are several."""
    only = source.only
    if only is None:
        return memory
    return laid(memory.untyped_storage(), only.dtype, only.shape, only.strides, 0)


def _is_itself(output: Output, tensor: torch.Tensor) -> bool:
    same = (output.dtype, output.shape, output.strides) == (tensor.dtype, tuple(tensor.shape), tensor.stride())
    return same and output.offset == 0


def _are_plain(arguments: Sequence[Any]) -> bool:
    """Returns whether bytes can be copied in all calls: a copy would lose torch's lazy conjugation and negation."""
    return not any(isinstance(a, torch.Tensor) and (a.is_complex() or a.is_neg()) for a in arguments)
