# SPDX-License-Identifier: Apache-2.0
import collections
import enum

from ...rpc import _values
from ...rpc._references import PyRRef


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
    """The form in which a value crosses: a tree of plain values, and its tensors. No pickle: see
    onecopy.rpc._values."""

    def serialize(self, value):
        tensors = []
        return _values.encode(value, tensors, self._refuse), tensors

    @staticmethod
    def _refuse(value):
        if not isinstance(value, PyRRef):
            return None
        if value._held is not None and value._held.is_deleted:
            raise RuntimeError("Cannot call fork an UserRRef after deletion.")
        raise RuntimeError("an RRef crosses in calls only")

    def deserialize(self, tree, tensors):
        return _values.decode(tree, tensors, None)


_internal_rpc_pickler = _Codec()
serialize, deserialize = _internal_rpc_pickler.serialize, _internal_rpc_pickler.deserialize
