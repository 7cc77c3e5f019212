# SPDX-License-Identifier: Apache-2.0
"""Names of torch.distributed.rpc.internal that programs and torch's tests use."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from ... import _core
from ...rpc import values
from ...rpc.rref import PyRRef


class RPCExecMode(enum.Enum):
    """A way of calling a function."""

    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


class PythonUDF(NamedTuple):
    """A call of a function."""

    func: Any
    args: Any
    kwargs: Any


class RemoteException(NamedTuple):
    """An exception of a callee."""

    msg: str
    exception_type: type


def _build_rpc_profiling_key(
    exec_type: RPCExecMode, func_name: str, current_worker_name: str, dst_worker_name: str
) -> str:
    return f"rpc_{exec_type.value}#{func_name}({current_worker_name} -> {dst_worker_name})"


class _Codec:
    """Encodes values, without pickle, as bytes and the tensors beside the bytes."""

    def serialize(self, value: Any) -> tuple[bytes, list[Any]]:
        """Returns the bytes and the tensors of a value."""
        if isinstance(value, PyRRef) and not value.is_owner() and value._is_deleted:
            raise RuntimeError("Cannot call fork an UserRRef after deletion.")
        encoded: Any = _core._encode_values(value, values.reduce, values.CLASSES)
        return encoded[0], encoded[1]

    def deserialize(self, data: bytes, tensors: list[Any]) -> Any:
        """Returns the value of the results of serialize()."""
        decoded: Any = _core._decode_values(data, tensors, values.rebuild, values.CLASSES)
        return decoded[0]


_internal_rpc_pickler = _Codec()
serialize, deserialize = _internal_rpc_pickler.serialize, _internal_rpc_pickler.deserialize
