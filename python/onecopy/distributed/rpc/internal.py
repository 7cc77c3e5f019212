# SPDX-License-Identifier: Apache-2.0
import collections
import enum

from ... import _core
from ...rpc import values
from ...rpc.references import PyRRef


class RPCExecMode(enum.Enum):
    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


PythonUDF = collections.namedtuple("PythonUDF", ["func", "args", "kwargs"])
RemoteException = collections.namedtuple("RemoteException", ["msg", "exception_type"])


def _build_rpc_profiling_key(exec_type, func_name, current_worker_name, dst_worker_name):
    return f"rpc_{exec_type.value}#{func_name}({current_worker_name} -> {dst_worker_name})"


class _Codec:
    """The form in which a value crosses, without pickle: bytes, and the tensors beside them."""

    def serialize(self, value):
        if isinstance(value, PyRRef) and value._held is not None and value._held.is_deleted:
            raise RuntimeError("Cannot call fork an UserRRef after deletion.")
        data, tensors, _ = _core._encode_values(value, values.reduce)
        return data, tensors

    def deserialize(self, data, tensors):
        return _core._decode_values(data, tensors, values.rebuild)[0]


_internal_rpc_pickler = _Codec()
serialize, deserialize = _internal_rpc_pickler.serialize, _internal_rpc_pickler.deserialize
