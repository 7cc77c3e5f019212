# SPDX-License-Identifier: Apache-2.0
"""Reports the memory of the graphs of an arena, and their replays."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from ._arena import Arena
from ._eager import Eager


@dataclasses.dataclass(frozen=True)
class GraphRow:
    """A captured shape. Sizes are in bytes."""

    function: str
    shapes: str
    planned: int
    lower_bound: int
    """The maximum of bytes needed at one step. No plan can take less."""
    private: int
    calls: int
    slow_paths: tuple[str, ...]
    """The slow paths of the graph: operators that cannot write into given memory, and others."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The memory and the calls of one arena. Sizes are in bytes; ``print()`` shows a table."""

    device: str
    shared_bytes: int
    """The physical memory that all graphs share."""
    private_bytes: int
    mapped_bytes: int
    parked: bool
    aliases: bool
    """Whether each graph uses its own addresses. If not, a graph that leaves tensors alive needs a separate arena."""
    held_outputs: int
    """The number of outputs in the arena that the program still holds."""
    captures: int
    replays: int
    moves: int
    evicted: int
    moved_to: tuple[str, ...]
    recaptured: int
    """The number of moves for which a graph was captured again; on a card, the moves to new addresses."""
    eager: dict[str, int]
    """The number of calls that ran eagerly, by reason."""
    graphs: tuple[GraphRow, ...]

    @property
    def saved_bytes(self) -> int:
        """The number of bytes saved in comparison with separate memory for each graph."""
        return sum(graph.planned for graph in self.graphs) - self.shared_bytes

    def __str__(self) -> str:
        lines = [
            f"arena on {self.device}: {_size(self.shared_bytes)} shared, {_size(self.private_bytes)} private, "
            f"{_size(max(self.saved_bytes, 0))} saved{', parked' if self.parked else ''}"
            f"{'' if self.aliases else ', all graphs at the same addresses'}",
            f"  {self.captures} captures, {self.replays} replays, {self.moves} moves ({self.recaptured} captured "
            f"anew), {self.evicted} dropped, {sum(self.eager.values())} eager calls, "
            f"{self.held_outputs} outputs held in place",
        ]
        lines += [f"  eagerly {count} times: {reason}" for reason, count in self.eager.items()]
        lines += [f"  moved: {move}" for move in self.moved_to]
        if self.graphs:
            lines.append(f"  {'planned':>10} {'at least':>10} {'operators':>10}  shapes")
        for graph in self.graphs:
            slow = f"; slower: {', '.join(graph.slow_paths)}" if graph.slow_paths else ""
            lines.append(
                f"  {_size(graph.planned):>10} {_size(graph.lower_bound):>10} {graph.calls:>10}  {graph.shapes}{slow}"
            )
        return "\n".join(lines)


def report(arena: Arena) -> Report:
    """Returns a report on the memory of the graphs of an arena, and on their replays."""
    with arena.lock:
        arena.collect()
        functions = list(arena.functions)
        arenas = {arena}.union(*(f.arenas for f in functions))
        footprints = [a.footprint for a in arenas]
        graphs = tuple(_rows(functions))
        eager: collections.Counter[str] = collections.Counter()
        for function in functions:
            eager += function.eager
        return Report(
            device=str(arena.device or "no device yet"),
            shared_bytes=sum(f.shared for f in footprints),
            private_bytes=max(sum(g.private for g in graphs), sum(f.own for f in footprints)),
            mapped_bytes=sum(f.mapped for f in footprints),
            parked=arena.footprint.parked,
            aliases=all(f.aliases for f in footprints),
            held_outputs=sum(len(a.leases) for a in arenas),
            captures=sum(f.captures for f in functions),
            replays=sum(f.replays for f in functions),
            moves=sum(f.moves for f in functions),
            evicted=sum(f.evicted for f in functions),
            recaptured=sum(f.recaptures for f in functions),
            moved_to=tuple(move for f in functions for move in f.moved_to),
            eager=dict(eager),
            graphs=graphs,
        )


def _rows(functions: list[Any]) -> list[GraphRow]:
    rows = []
    for function in functions:
        for key, graph in function.entries.items():
            if not isinstance(graph, Eager):
                rows.append(
                    GraphRow(
                        function=function.name,
                        shapes=_shapes(key),
                        planned=graph.planned_bytes,
                        lower_bound=graph.lower_bound,
                        private=graph.private_bytes,
                        calls=graph.call_count,
                        slow_paths=tuple(sorted(graph.slow_paths)),
                    )
                )
    return rows


def _shapes(key: tuple[Any, ...]) -> str:
    named = [f"{str(part[0]).removeprefix('torch.')}{list(part[1])}" for part in key if len(part) == 4]
    return " ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count / 1024:.1f} KiB"
