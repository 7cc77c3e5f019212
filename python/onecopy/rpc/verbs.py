# SPDX-License-Identifier: Apache-2.0
"""The verbs that call functions without a name and that serve references, and the sending of references.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from . import functions, registry, rref, values
from .cells import Cell
from .errors import RemoteFailure
from .registry import Deferred, verb
from .rref import PyRRef
from .rref_table import Reference
from .serving import answer, run


@verb(".apply")
def _apply(agent: Any, caller: int, function: Any, args: Any, kwargs: Any) -> Any:
    return answer(agent, function, run(agent, function, args, kwargs))


# Arguments of verbs are prepared in the order of the lane, since a later drop may remove the value of a reference.


def _with_cell(agent: Any, caller: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replaces the first argument, a reference or an RRef to a value of this process, by its cell."""
    given = args[0]
    return (given._cell if isinstance(given, PyRRef) else agent.references.owned.cell(tuple(given)), *args[1:])


@verb(".method", _with_cell)
def _run_method(agent: Any, caller: int, cell: Cell, name: str, args: Any, kwargs: Any) -> Any:
    """Waits until the value is made, and runs a method of it."""
    try:
        functions.check_method(name)
        method = getattr(cell.value(), name)
    except BaseException as error:
        return RemoteFailure.of(error, agent.info, unescaped=True)
    return answer(agent, method, run(agent, method, args, kwargs, is_checked=True))


def _of_value(cell: Cell, then: Callable[[Any], Any]) -> Any:
    """Returns then(the value of the cell), or a Deferred if the value is not made yet."""
    return then(cell.made()) if cell.is_set() else Deferred(cell.future, then)


@verb(".fetch", _with_cell)
def _fetch(agent: Any, caller: int, cell: Cell) -> Any:
    return _of_value(cell, lambda made: made)


@verb(".type", _with_cell)
def _type(agent: Any, caller: int, cell: Cell) -> Any:
    return _of_value(cell, lambda made: type(Cell.unwrap(made)))


@verb(".backward", _with_cell)
def _backward(agent: Any, caller: int, cell: Cell, context_id: int, retain_graph: bool) -> Any:
    return Deferred(cell.future, lambda made: registry.backward(Cell.unwrap(made), context_id, retain_graph))


# --- sending references: see rref_table.py


def _parts(given: PyRRef) -> tuple[int, Reference, Reference]:
    giving: Any = _core._rpc_giving()
    if given._cell is None:
        if given._is_deleted:
            raise RuntimeError("Cannot call fork an UserRRef after deletion.")
        if given._owner != giving.receiver or given._session == rref.LOST:
            given._check()
    fork = giving.agent.references.give(given._owner, given._reference, given._cell, giving.receiver)
    giving.give(given, fork)
    return given._owner, given._reference, fork


def _rebuild(owner: int, reference: Reference, fork: Reference) -> PyRRef:
    """Makes a received reference. Called in the order of the lane."""
    taking: Any = _core._rpc_taking()
    agent, sender = taking
    made, me = rref.new(), agent.info.id
    if owner == me:
        made._own(agent, reference, agent.references.owned.cell(reference))
        if sender == me:
            agent.references.owned.count(reference, me, -1)
        return made
    if sender != owner:
        agent.note(owner, "accept", (reference, fork))
    made._hold(agent, owner, reference, fork)
    made._session = agent.member(owner).ended_session + 1 if sender == owner else agent.endpoint.session_with(owner)
    return made


values.register("reference", PyRRef, _parts, _rebuild)
