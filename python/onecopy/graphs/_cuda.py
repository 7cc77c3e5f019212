# SPDX-License-Identifier: Apache-2.0
"""A graph on a CUDA device: a capture of torch in its own window of addresses over the pages of an arena."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _core
from ..errors import OutOfMappings, OutOfMemory
from ._arena import Arena
from ._captures import KEEPS_GRAPHS, drop, drop_later, first_line, new_graph
from ._cuda_capture import Boxed, Captured, are_plain, capture
from ._layout import Output, Source, StaticInput, extent_of, laid, offset_of
from ._leases import Leases
from ._operators import NotReplayable
from ._pool import CapturePool, captures_of


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
        self._copies_in_graph = arena.copies_in_graphs and are_plain(arguments)
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
        gathers = self._copies_in_graph
        scatters = gathers and self._policy == "copy"
        done = capture(self._function, arguments, self._in_place, self._arena, graph, pool, gathers, scatters)
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
            index: StaticInput(argument)
            for index, argument in enumerate(arguments)
            if isinstance(argument, torch.Tensor) and argument.is_cuda and index not in copied
        }
        if self._copies_in_graph:
            self._make_call(done, arguments)

    def _make_call(self, done: Captured, arguments: Sequence[Any]) -> None:
        executable = self._graph.raw_cuda_graph_exec()
        call = _core._GraphCall(self._arena.lock.core, str(self._arena.device), executable, done.gather, done.scatter)
        for index, memory in self._copied_inputs:
            call.add_copied_input(index, memory.data_ptr(), extent_of(memory))
        for index in self._static_inputs:
            call.add_static_input(index, arguments[index])
        if self._policy == "copy":
            for source, memory in zip(done.sources, self._sources, strict=True):
                call.add_output_copy(source.whole(memory))
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
        elif output.kind == "input" and output.is_all_of(arguments[output.at]):
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
        if output.is_all_of(tensor):
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
