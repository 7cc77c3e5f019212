"""The C++ core of onecopy; import onecopy instead."""

import builtins
from collections.abc import (
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence
)
import os
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    SupportsIndex,
    overload
)

import numpy as _numpy
import torch as _torch
from typing_extensions import TypeVar

import onecopy.dtypes



_T = TypeVar("_T", default=Any)

def _start_log() -> None:
    """Lines of the library go to onecopy._log.emit() from now on."""

def _stop_log() -> None:
    """They go to stderr again."""

def _log_line(level: str, text: str) -> None:
    """A line of the library, for tests."""

def _end_of_interpreter() -> None: ...

def _switch_on_collection() -> None:
    """What a forked child does first."""

class _Exporter:
    pass

class Tensor:
    """
    A strided array in memory that other processes can open without a copy, or, made by
    ``from_dlpack()``, on memory of another library. It keeps its memory alive. Made by
    ``empty()``, ``zeros()``, ``full()``, ``from_dlpack()``, ``open()`` and the loaders.
    Compared by identity.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) from one element of a dimension to the next."""

    @property
    def dtype(self) -> onecopy.dtypes.DType:
        """The element type: a str such as ``"float32"``."""

    @property
    def device(self) -> str:
        """
        Where the memory is, as this process numbers devices: ``"cpu"``, ``"cuda:0"``, ``"npu:0"``.
        """

    @property
    def access(self) -> Literal['readwrite', 'read']:
        """``"readwrite"``, or ``"read"`` when the memory must not be written."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def is_contiguous(self) -> bool:
        """Do the elements follow each other in row-major order?"""

    @property
    def is_shared(self) -> bool:
        """
        Can other processes open it as it is? False for memory of other libraries.
        """

    @property
    def data_ptr(self) -> int:
        """Address of element 0 in this process."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: object) -> Tensor:
        """
        A part of the tensor on the same memory. ``key``: ints, slices with positive steps,
        ``...``, None, or a tuple of those.
        """

    def __setitem__(self, key: object, value: object) -> None:
        """
        Writes a number or an array into a part of the tensor. Arrays of another dtype or shape
        are converted and broadcast by numpy.

        Raises:
            ReadOnly: the tensor was opened with ``access="read"``.
            OverflowError: an int does not fit into the dtype.
        """

    def __iter__(self) -> Iterator[Tensor]: ...

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """
        The elements in another shape, on this memory; -1 stands for the rest.

        Raises:
            InvalidArgument: another number of elements, or the tensor is not contiguous.
        """

    def view(self, *shape_or_dtype: int | str | Sequence[int]) -> Tensor:
        """
        ``reshape()``, or, given a dtype, the same bytes as elements of that type.
        """

    def copy(self) -> Tensor:
        """The elements in new shared memory on the tensor's device, row-major."""

    def to(self, device: Any) -> Tensor:
        """
        The tensor itself if it is on that device, or else a copy there, row-major. Waits for work
        of the program's current streams on it, and until the copy is made.
        """

    def cpu(self) -> Tensor:
        """``to("cpu")``."""

    def copy_from(self, source: object) -> None:
        """
        Copies all elements of an array of the same dtype and shape: of onecopy, torch, numpy,
        or anything else with DLPack or the buffer protocol. Large ones without the GIL.

        Raises:
            InvalidArgument: another dtype or shape.
            ReadOnly: the tensor was opened with ``access="read"``.
        """

    def item(self) -> bool | int | float | complex:
        """The one element as a Python number."""

    def tolist(self) -> Any:
        """
        The elements as nested lists of Python numbers; one number for a 0-d tensor.
        """

    def __bool__(self) -> bool: ...

    def __int__(self) -> int: ...

    def __float__(self) -> float: ...

    def __index__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        """
        The tensor as a DLPack capsule, as the array API standard says. No copy unless
        ``copy=True``. A read-only tensor needs ``max_version=(1, 0)`` or more.

        Work of the program's current stream (torch's, or else the default one) on a CUDA tensor
        comes before the consumer's later work in ``stream``. None and 1 are the legacy default
        stream, 2 the thread's default stream, -1 is for consumers that keep the order themselves.
        Consumers on Ascend devices name no stream: the call waits until that work is done.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface; only tensors of CUDA devices have it."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...

    def numpy(self) -> _numpy.ndarray[Any, Any]:
        """
        A ``numpy.ndarray`` on the same memory, not writeable when the tensor is read-only.
        bfloat16 and the 8-bit floats need the package ml_dtypes.

        Raises:
            Unsupported: numpy has no such dtype, and ml_dtypes is not installed; or the tensor is
                on a device: use ``.cpu()`` first.
        """

    def torch(self) -> _torch.Tensor:
        """
        A ``torch.Tensor`` on the same memory. torch has no read-only tensors: writing to one
        that was opened with ``access="read"`` is a segmentation fault.
        """

    def __copy__(self) -> Tensor: ...

    def __deepcopy__(self, memo: object) -> Tensor: ...

    def __jax_array__(self) -> Any:
        """
        A ``jax.Array`` on the same memory: ``jax.numpy.asarray()`` asks for it. The tensor must
        not be written from then on, because jax takes its arrays for constant.
        """

    def memoryview(self) -> memoryview:
        """
        A ``memoryview`` on the same memory, for files, sockets and ``struct``. The tensor itself
        is no buffer: ``torch.asarray()`` would take its bytes for float32.

        Raises:
            BufferError: the tensor is on a device, or its dtype has no format: see ``view()``.
        """

    def __bytes__(self) -> bytes: ...

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """
        ``pickle`` and ``torch.save()`` write the elements: unpickling makes a new tensor.
        Picklers for another process write a handle instead: queues, pipes, pools and arguments of
        multiprocessing, joblib and Ray. Then the memory is kept until the first unpickling, ten
        minutes at most; memory of other libraries is copied into shared memory first.
        """

    def _reduce_handle(self) -> object:
        """How a channel pickles the tensor."""

    __contains__: None = None

def from_dlpack(x: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """
    An array of another library as a tensor on the same memory, which ``share()`` copies
    once into shared memory. An array on memory of onecopy is that memory again.
    ``copy=True`` copies at once, and so does a ``device`` that the array is not on. Memory of a
    CUDA device is shared where it is; that of an Ascend device has to be copied. Arrays of jax must
    not change, which DLPack does not say: do not write to them here.

    Raises:
        TypeError: x has no ``__dlpack__``.
        Unsupported: a device that is neither the cpu nor of CUDA or Ascend, an unknown dtype,
            negative strides.
    """

def record_stream(tensor: Any, stream: Any) -> None:
    """
    Says that a tensor on a device is used in another stream than the one that was current when it was
    opened: its memory is kept until that stream, too, has come past the end of the tensor (for
    torch: of its storage) here. Needs no host to wait.

    Args:
        tensor: of onecopy or torch, on a CUDA or Ascend device.
        stream: a stream of torch or cupy, or its number. It must live until then.

    Raises:
        TypeError: tensor is no tensor, or stream no stream.
        InvalidArgument: the tensor is on the cpu, which has no streams.
    """

def _current_stream(device: object) -> int:
    """The number of the stream that share() and open() are ordered in."""

def empty(shape: int | Sequence[int], dtype: Any = 'float32', device: Any = 'cpu', pin: bool = False) -> Tensor:
    """
    A new tensor in shared memory, row-major, not initialised.

    Args:
        shape: sizes of the dimensions; one int for one dimension, () for none.
        dtype: element type, e.g. "bfloat16"; dtypes of torch and numpy do as well. Python's bool,
            int, float and complex are "bool", "int64", "float64" and "complex128", as in numpy.
        device: "cpu", or a device as this process numbers it: "cuda:0", "npu:0". "cuda" alone is
            torch's current CUDA device, or "cuda:0" while torch has not used any.
        pin: pins it for this process's cards, as ``pin()`` does.

    Raises:
        InvalidArgument: a negative size, more than 2^63 - 1 bytes, or no such device.
        Unsupported: there is no driver for the device or it is too old, or it was used before this
            process was forked.
        OutOfMemory: there is not so much memory; it is reserved here, so that writing
            cannot fail.
    """

def zeros(shape: int | Sequence[int], dtype: Any = 'float32', device: Any = 'cpu', pin: bool = False) -> Tensor:
    """``empty()``, filled with zeros."""

def full(shape: int | Sequence[int], fill_value: bool | int | float | complex, dtype: Any = 'float32', device: Any = 'cpu', pin: bool = False) -> Tensor:
    """
    ``empty()``, filled with a number.

    Raises:
        TypeError: fill_value is no number of that dtype.
        OverflowError: fill_value does not fit into the dtype.
    """

class Handle:
    """
    The bytes that travel: enough to open a tensor, or a bundle of them, in another process.
    Made by ``share()``, a handle keeps the memory alive; read from bytes or text, it keeps
    nothing. Pickling one that keeps memory holds it until the first open, ten minutes at
    most.
    """

    def to_bytes(self) -> bytes:
        """
        The handle as bytes, about 150. They keep nothing alive: to open them, a process must
        keep the tensor meanwhile.
        """

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> Handle:
        """
        Reads the result of ``to_bytes()``.

        Raises:
            BadHandle: they are truncated, damaged or contradictory.
            VersionMismatch: they are of another version.
        """

    @staticmethod
    def from_text(text: str) -> Handle:
        """Reads what ``str()`` gave. Raises as ``from_bytes()`` does."""

    def __str__(self) -> str:
        """
        ``"onecopy:..."``: safe on command lines, in environment variables and in URLs.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object) -> bool: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __copy__(self) -> Handle: ...

    def __deepcopy__(self, memo: object) -> Handle: ...

    @property
    def is_bundle(self) -> bool:
        """Does it name a bundle?"""

    @property
    def device_type(self) -> str:
        """
        The kind of device that its memory is on: ``"cpu"``, ``"cuda"``, ``"npu"``.
        """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the tensor's dimensions."""

    @property
    def dtype(self) -> onecopy.dtypes.DType:
        """The tensor's element type."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""

    @property
    def storage_nbytes(self) -> int:
        """
        Bytes that the opener can see: those of the whole storage that the tensor is a view of.
        """

def _as_tensor(x: Any, copy: bool) -> tuple[Tensor, bool] | None: ...

def _dtype(dtype: Any) -> onecopy.dtypes.DType: ...

def share(x: Any, *, copy: bool = False, exact: bool | Literal['copy'] = False) -> Handle:
    """
    A handle with which other processes open the same memory.

    Memory of onecopy is shared as it is. The storage of a torch tensor is moved into shared
    memory in place, with one copy, the first time: the tensor and all its views follow.
    Arrays of other libraries (numpy, jax, bytearray, anything with DLPack or the buffer
    protocol) cannot be moved: they are copied once, and later writes to the original are
    not seen; allocate with ``empty().numpy()`` to share without a copy.

    Memory of a CUDA device is shared in place, from any allocator (torch, cupy), and stays
    allocated until no process has it any more; on Ascend devices that is so for memory of
    onecopy. A handle lets others see the whole allocation that the tensor lies in. Work in the
    program's current stream (torch's, or else the default stream) comes before the openers'
    work.

    A dict, list or tuple, nested as you like, of arrays and plain values, or a
    ``torch.nn.Module`` (its parameters and buffers, tied ones once), becomes one handle of
    a bundle.

    Args:
        x: the value.
        copy: share a copy; the original stays where it is. Only values are copied, also of
            a tensor in the middle of an autograd graph.
        exact: True refuses (Unsupported, with the numbers) when others could see more than x
            through the handle: the rest of its storage or, for memory of another allocator on a
            device, of the whole allocation. "copy" shares a copy then. For one tensor only.

    Returns:
        A Handle, which keeps the memory alive.

    Raises:
        TypeError: x is no array and nothing with arrays in it.
        InvalidArgument: something inside x is neither an array nor a plain value.
        Unsupported: sparse and quantized tensors, devices that are neither the cpu nor of CUDA
            or Ascend, memory of a device that cannot be exported, elements that are no plain
            numbers.
        RuntimeError: torch refuses to share a tensor that requires grad and is no leaf.
        OutOfMemory.
    """

def _share_held(tensor: Tensor) -> bytes:
    """
    Bytes of a handle that can be opened once, as long as this process lives.
    """

def _hold_object(object: object) -> bytes:
    """
    Bytes for _end_hold(), in any process: the object is kept until then, or as long as this process lives.
    """

def _let_hold_last(handle: bytes) -> None:
    """Lets such a hold last as long as this process, not ten minutes."""

def _end_hold(handle: bytes) -> None:
    """Ends such a hold: the bytes will not be opened."""

def _reduce_plain(tensor: object | None, storage_class: object) -> object:
    """
    The arguments that rebuild a plain torch tensor in another process, once, with the class that opens its storage there; None for one of which there is more to say.
    """

def open(handle: Handle | bytes | bytearray | memoryview | str, device: Any = None, access: Literal['readwrite', 'read'] = 'readwrite', framework: Literal['onecopy', 'torch', 'numpy'] | None = None, pin: bool = False) -> Any:
    """
    The tensor or bundle that a handle names, on its memory: nothing is copied.

    Args:
        handle: a Handle, its ``to_bytes()``, or its text.
        device: None for where the memory is, or the device to use it on: another device of this
            process and of the same vendor reaches it where it is. Devices are found by their UUIDs,
            under any CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES of both processes.
        access: "read" maps the memory so that it cannot be written. numpy arrays are not
            writeable then; torch has no such tensors, and writing to one is a segmentation
            fault.
        framework: None for a Tensor, which other libraries take by DLPack, such as
            ``jax.numpy.from_dlpack()``; "torch" for a torch.Tensor, "numpy" for a numpy.ndarray.
        pin: pins memory of the cpu for this process's cards, as ``pin()`` does; of a bundle all of it.

    Returns:
        An array, or for a bundle's handle a Bundle whose arrays are of that framework.

    Raises:
        StaleHandle: the memory has been freed.
        OwnerDied: the process that allocated it is gone, and no other kept it.
        BadHandle: these are no bytes of a handle.
        ReadOnly: the handle lends its memory for reading only; use ``access="read"``.
        Unsupported: there is no way from that device to the memory; there is no driver for it; the
            device is hidden from this process, or was used before this process was forked.
        Timeout: its owner has not answered for ten seconds: it is stopped (SIGSTOP, a debugger).
        PeerDied: its owner lives, and cannot be reached from this network namespace; or the process
            that shared it died, or its device failed, before its stream was done.
        OutOfMemory, OutOfDescriptors, OutOfMappings, OtherBoot, OtherUser, BadSecret,
        VersionMismatch.

    The sharer's work in its current stream before ``share()`` comes before later work in this
    program's own current stream. The host does not wait, or else ``stats()["host_waits"]`` counts
    it.
    """

class _Copies:
    """Copies of a value's tensors on a device, in the value's order."""

    def __init__(self, device: object, stream: object | None, part: int = 536870912) -> None:
        """A card copies ``part`` bytes while those behind them are added."""

    def add(self, objects: list) -> int:
        """Adds objects up to the first that is no tensor; how many."""

    def end(self) -> list:
        """The copies, each of the library that the original came from."""

    @property
    def parts(self) -> list[int]:
        """How many tensors each part had."""

def _pin(tensor: Tensor, device: Any = None) -> None: ...

def _view_on(object: Any, device: Any) -> Any: ...

def _unpin(tensor: Tensor) -> None: ...

def _is_pinned(tensor: Tensor) -> bool: ...

def _pin_batch(tensor: Any, ordinal: int) -> bool: ...

def _begin_capture() -> None: ...

def _end_capture() -> None: ...

class Bundle(Mapping[str, Any]):
    """
    A mapping of names to the tensors of one handle, which opens a tensor when it is asked
    for. The tensors of a nested value are named by their place in it, e.g.
    ``"layers.3.weight"``. ``tree()`` gives back values that are no tensors, and the nested
    value as it was. Made by ``open()``: with ``framework="torch"`` for ``load_state_dict()``,
    which takes tensors of torch only.
    """

    def __len__(self) -> int: ...

    def __contains__(self, name: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, key: str | int) -> Any:
        """
        The tensor of that name or row, in the framework that the bundle was opened with. Each
        call opens it anew, on the same memory.

        Raises:
            KeyError, IndexError: there is none; the message says which names are near.
            StaleHandle, OwnerDied: as ``open()``.
        """

    def get(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
        """The tensor of that name, or ``default``."""

    def keys(self) -> list[str]:  # type: ignore[override]
        """The names, in order."""

    def values(self) -> list[Any]:  # type: ignore[override]
        """Opens all tensors at once and returns them."""

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Names and tensors, opened at once."""

    def tree(self, framework: Literal['onecopy', 'torch', 'numpy'] | None = None) -> Any:
        """
        The nested value that was shared, with all its tensors opened at once. An object that
        was at several places is one object again. torch tensors stay Parameters, and keep their
        ``requires_grad``. Subclasses of dict, list and tuple come back as dict, list and tuple;
        a bundle that another language made as a dict.

        Args:
            framework: of the tensors; None for the one that the bundle was opened with.
        """

    def load_into(self, module: Any, *, prefix: str = '', strict: bool = True) -> Any:
        """
        Makes the parameters and buffers of a ``torch.nn.Module`` the bundle's memory: nothing is
        copied. Unlike ``load_state_dict(assign=True)`` it takes non-persistent buffers too, as
        ``share(model)`` has them, so a module that was made on ``meta`` is complete. Tied tensors
        stay one object. A parameter requires a gradient if the module's did, and has the
        bundle's dtype. Hooks of ``load_state_dict()`` are not called.

        Args:
            module: with the same names; on ``meta``, or with values that are dropped.
            prefix: where the module is in the shared value: "model" for share({"model": ...}).
            strict: refuse names that only one of both has. A non-persistent buffer that is not
                on ``meta`` may be missing, and stays as it is.

        Returns:
            The names that were passed over, as ``missing`` and ``unexpected``.

        Raises:
            InvalidArgument: names or shapes differ; the module is as it was.
            StaleHandle, OwnerDied: as ``open()``.
        """

    def _values(self, framework: str) -> list[Any]: ...

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn: ...

    @property
    def handle(self) -> Handle:
        """The handle that the bundle was opened with."""

    def __repr__(self) -> str: ...

@overload
def load_safetensors(path: str | bytes | os.PathLike[str], *, framework: Literal['onecopy'] | None = None, progress: Callable[[int, int], object] | None = None) -> dict[str, Tensor]:
    """
    Reads all tensors of a safetensors file straight into one block of shared memory, by
    name, in the order of the file. The block lives as long as any of the tensors.

    Args:
        path: the file, or a directory: of one .safetensors file, or of several and the
            model.safetensors.index.json that names the file of each tensor. Each file is a
            block then, and all headers are compared with the index before anything is read.
        framework: of the tensors; None for onecopy's.
        progress: called from time to time with the bytes done and the bytes in all. The first
            half is done while memory is reserved, the second while the file is read. Its
            exceptions end the loading.

    Raises:
        BadFile: the file contradicts its format, or a directory its index.
        FileNotFoundError: there is no such file, or one that the index names is missing.
        InvalidArgument: a directory that does not determine the files to read.
        Unsupported: elements that onecopy lacks.
        OutOfMemory, System.
    """
@overload
def load_safetensors(path: str | bytes | os.PathLike[str], *, framework: Literal['torch'], progress: Callable[[int, int], object] | None = None) -> dict[str, _torch.Tensor]: ...
@overload
def load_safetensors(path: str | bytes | os.PathLike[str], *, framework: Literal['numpy'], progress: Callable[[int, int], object] | None = None) -> dict[str, _numpy.ndarray[Any, Any]]: ...

def _load(path: Any, device: Any, framework: Any = None, progress: Any = None) -> dict[str, Any]: ...

@overload
def load_npy(path: str | bytes | os.PathLike[str], *, framework: Literal['onecopy'] | None = None, progress: Callable[[int, int], object] | None = None) -> Tensor:
    """
    Reads a NumPy .npy file, in C or Fortran order, straight into shared memory. Arguments
    and errors as ``load_safetensors()``; object arrays, records and big-endian numbers are
    Unsupported.
    """
@overload
def load_npy(path: str | bytes | os.PathLike[str], *, framework: Literal['torch'], progress: Callable[[int, int], object] | None = None) -> _torch.Tensor: ...
@overload
def load_npy(path: str | bytes | os.PathLike[str], *, framework: Literal['numpy'], progress: Callable[[int, int], object] | None = None) -> _numpy.ndarray[Any, Any]: ...

def stats() -> dict[str, int]:
    """
    The holders of this process's memory, and its holdings of others' memory. Names with
    ``bytes`` count bytes, all others objects:

    - ``shared_total``, ``opened_total``: handles made and tensors opened since the start;
    - ``live_blocks``, ``live_bytes``: allocated here and referenced here;
    - ``limbo``: blocks freed here, still held by borrowers;
    - ``in_transit``: blocks kept for receivers that have not taken them yet;
    - ``segments``, ``bytes_shared``: of our own, and the physical memory reserved in them;
    - ``device_segments``, ``device_bytes``: those among them on devices;
    - ``foreign_segments``: of other processes, mapped here;
    - ``borrowers``, ``owners``: processes attached to this one, and those it is attached
      to;
    - ``leases``: claims of this process on blocks of others;
    - ``deposits``: segments of others kept open for receivers to come;
    - ``unkept``: segments put into queues that do not keep them: if their process dies, items
      still in the queue are lost. It can fall again: one whose queue's creator was stopped
      counts until a later put has asked again, and none counts once its queue is gone;
    - ``descriptors``: open descriptors of the whole process;
    - ``host_waits``: how often this process waited in place of a stream, on devices whose
      streams cannot wait for other processes;
    - ``direct_copies``: copies from one card to another that the card which is written to made
      by itself; ``staged_copies``, ``staged_bytes``: those that the driver made by way of the
      host, for want of peer access (CUDA devices);
    - ``torch_moved``, ``torch_moved_by_torch``, ``torch_adopted``: how storages of torch
      came into shared memory.
    """

def collect(older_than: float | None = None) -> None:
    """
    Gives back now, not later: freed memory, mappings of owners that are gone. Drops in default
    streams of devices are marked and ended, too; idle streams are given a millisecond to pass
    those marks.

    Args:
        older_than: also stop keeping memory for handles that were pickled more seconds ago
            than this and never opened. Without it that takes ten minutes; handles that
            multiprocessing pickled for its pipes and queues are kept until this process ends.
    """

def _trim(device: object | None) -> int:
    """onecopy.torch.trim(), but for what torch has."""

def list_owners() -> list[dict[str, Any]]:
    """
    Lists all processes of this user that own or serve shared memory. Processes that do not
    answer are left out.

    Returns:
        For each a dict of ``pid``, ``name``, ``stats`` (as ``stats()``, without torch's),
        ``devices`` (dicts of ``device``, ``uuid``, ``segments`` and ``bytes``),
        ``borrowers`` (dicts of ``pid``, ``name`` and ``claims``: the blocks that it holds),
        ``in_transit`` (dicts of ``blocks``, ``age_seconds`` and ``where`` they wait),
        ``groups`` (of rpc: dicts as ``onecopy ls --rpc --format json`` prints them) and
        ``arenas`` (of captured graphs: dicts of ``device``, the bytes ``shared`` by all graphs,
        ``own`` to one and ``mapped`` as addresses, ``windows``, ``parked``).
    """

def strategy() -> Literal['file_descriptor', 'file_system']:
    """Returns how memory is allocated: see ``set_strategy()``."""

def set_strategy(strategy: Literal['file_descriptor', 'file_system']) -> None:
    """
    Sets how memory is allocated: ``"file_descriptor"``, anonymous memory with nothing to
    leak, or ``"file_system"``, files in /dev/shm for programs that need names: ``gc`` of the
    command or the next program that uses onecopy removes those of killed processes.
    """

def torch_share(tensor: object) -> tuple[Tensor, int] | None:
    """
    The memory of a plain torch tensor of the CPU, moved into shared memory in place if it is not there already, and
    flags for torch_open(); of CUDA, shared where it is. None for other objects and for tensors that need more than flags.
    """

def _torch_reduce(tensor: object) -> object:
    """
    Class, bytes of a handle that can be opened once, and flags for torch_open(), of a plain tensor of the CPU, shared as
    torch_share() does it; None for others.
    """

def torch_open(tensor: Tensor, flags: int = 1) -> object:
    """
    A torch tensor on the memory of an onecopy tensor. One block is one torch storage in this process.
    """

def torch_share_storage(storage: object) -> Tensor:
    """
    The memory of a torch.UntypedStorage on the CPU, moved in place if need be, or on CUDA, as uint8[nbytes].
    """

def torch_share_block(storage: object) -> tuple[Tensor, int]:
    """
    The whole block that a torch.UntypedStorage lies in, as uint8[nbytes], and the byte where it begins in there:
    not 0 when torch was given a part of a block through numpy or DLPack. Moved in place if need be.
    """

def torch_open_storage(tensor: Tensor) -> object:
    """
    The torch.UntypedStorage that has the tensor's whole block in this process.
    """

def torch_is_shared(storage: object) -> bool:
    """Does this torch.UntypedStorage lie in memory of onecopy?"""

def _set_torch_keeps_storages(keeps: bool) -> None:
    """
    Says whether torch leaves storages in memory of onecopy where they are.
    """

def torch_new_shared(nbytes: int) -> object:
    """
    A new torch.UntypedStorage of that many bytes, uninitialised, in memory of onecopy.
    """

def torch_counters() -> dict[str, int]:
    """
    How torch storages came into shared memory: copied and exchanged in place; moved by torch's own, slower way;
    adopted because torch had shared them already.
    """

def _encode_values(value: object | None, reduce: object | None = None) -> object:
    """
    Returns the value's bytes and tensors; None when it has to be pickled. With `reduce` as calls are
    written: returns the torch tensors of the value, too.
    """

def _decode_values(data: bytes, tensors: list, rebuild: object | None = None) -> object:
    """
    Returns the value that _encode_values() wrote. With `rebuild` as calls are read: returns
    (value, its torch tensors).
    """

def _rewrite_value(data: bytes) -> object:
    """
    Reads a value as a program in C++ does, and returns what that writes of it.
    """

class Message:
    """
    A message of queues and pipes between Python and programs in C++: ``tag`` (a number of 32 bits),
    ``data`` (bytes) and ``tensors`` (onecopy.Tensor each).
    """

    def __init__(self, tag: int = 0, data: bytes = ..., tensors: Iterable[Tensor] = ()) -> None: ...

    @property
    def tag(self) -> int:
        """The sender's own number."""

    @property
    def data(self) -> bytes:
        """Plain bytes."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, not copied."""

    def __repr__(self) -> str: ...

class _Rows:
    def reduce(self, object: object | None) -> object: ...

def _decode_message(tag: int, data: bytes, tensors: Iterable[Tensor]) -> object:
    """What get() makes of a message."""

def _open_row(index: int, flags: int) -> object: ...

class _Putting:
    def at_once(self) -> bool:
        """Puts the object if there is space now; is it in the queue?"""

    def wait_for_space(self) -> None:
        """Waits; raises queue.Full when the time is over."""

class Queue(Generic[_T]):
    """
    Objects, in order, from any number of processes to any number of processes. Given to others
    as an argument of a process or through another queue.

    A tensor alone and plain values (None, bool, int, float, complex, str, bytes, tuple, list,
    dict, and tensors among them) cross without pickle. Tensors are those of onecopy and torch;
    numpy arrays on memory of onecopy cross as they do. Others of 64 KiB and more are copied once,
    smaller ones and those of objects are pickled.

    An object is delivered also if its putter is gone by then. An object whose getter was killed is
    not delivered again. ``onecopy.multiprocessing.Queue`` has the interface of the standard
    library's.

    Args:
        maxsize: how many objects it holds at most; 0 means: as many as memory allows.
    """

    def __init__(self, maxsize: int = 0) -> None: ...

    def put(self, obj: _T, timeout: float | None = None) -> None:
        """
        Put any object that can be pickled; tensors are shared, not copied.

        Args:
            timeout: seconds to wait at most while the queue is full; None for ever.

        Raises:
            Timeout, Closed, OutOfMemory, and exceptions of pickling: nothing was put then.
        """

    def get(self, timeout: float | None = None) -> _T:
        """
        The next object.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: nothing came.
            Closed: the queue is closed and empty.
            StaleHandle, OwnerDied, PeerDied: the object's tensors are lost, and it with them.
            OutOfDescriptors, OutOfMappings, OutOfMemory: the object is still in the queue.
        """

    def try_put(self, obj: _T) -> bool:
        """
        Put without waiting; False when the queue is full. Raises as ``put()`` does.
        """

    def try_get(self, default: Any = None) -> Any:
        """
        The next object without waiting, or ``default`` when there is none. Raises as ``get()`` does.
        """

    def aget(self) -> Coroutine[Any, Any, _T]:
        """
        Waits for the next object in an event loop of asyncio, without a thread: ``await queue.aget()``.

        May be cancelled, also by ``asyncio.timeout()`` and ``asyncio.wait_for()``: an object is taken only
        in the step that returns it. Other tasks run between two objects. Raises as ``get()`` does, but
        Timeout.
        """

    def __iter__(self) -> Queue[_T]:
        """
        Returns the queue: ``for obj in queue`` gets objects until the queue is closed and empty.
        """

    def __next__(self) -> _T: ...

    def __aiter__(self) -> Queue[_T]:
        """
        Returns the queue: ``async for obj in queue`` is ``aget()`` until the queue is closed and empty.
        """

    def __anext__(self) -> Coroutine[Any, Any, _T]: ...

    def _put(self, obj: object | None, block: object | None, timeout: object | None, report: object | None = None) -> object: ...

    def _begin_put(self, obj: object | None, block: object | None, timeout: object | None, report: object | None) -> _Putting | None: ...

    def _get(self, block: object | None, timeout: object | None) -> object: ...

    def close(self) -> None:
        """For all processes: puts fail from here on, gets drain the rest."""

    @property
    def closed(self) -> bool:
        """Has any process closed it?"""

    def size(self) -> int:
        """Objects in it now; others may change it at any time."""

    def empty(self) -> bool:
        """Is nothing in it now?"""

    def fileno(self) -> int:
        """
        Returns a descriptor that select, poll and epoll find readable while ``get()`` would not wait. It
        may stay readable a little longer, so use ``try_get()`` then. Do not read or close it. The first
        call starts a thread in this process, which sleeps until something comes.
        """

    @property
    def maxsize(self) -> int:
        """Its bound in objects; 0 means none."""

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __len__(self) -> int: ...

    def __bool__(self) -> bool: ...

    def _handle_bytes(self) -> bytes:
        """For a process that connects while this one has the queue open."""

    def _held_handle_bytes(self) -> bytes:
        """For a process that connects within ten minutes."""

    def __repr__(self) -> str: ...

def _connect_queue(handle: bytes) -> Queue: ...

class PipeHandle:
    """
    One end of a pipe, for another process to connect to. The object keeps that end alive; bytes
    or text do not.
    """

    def to_bytes(self) -> bytes:
        """For ``from_bytes()`` in the other process."""

    @staticmethod
    def from_bytes(data: bytes) -> PipeHandle:
        """Reads the result of ``to_bytes()``. Raises BadHandle, VersionMismatch."""

    def __str__(self) -> str:
        """For ``from_text()`` in the other process."""

    @staticmethod
    def from_text(text: str) -> PipeHandle:
        """Reads what ``str()`` gave. Raises BadHandle, VersionMismatch."""

def Pipe() -> tuple[PipeEnd, PipeEnd]:
    """
    Both ends of a new pipe. Give one to a child, as an argument of its process, and close it here
    then; ``handle()`` names it for others.
    """

class PipeEnd:
    """
    One end of a connection: each end receives what the other sends, as queues do it.

    Several processes may have one end; the first to receive gets the object.
    """

    @staticmethod
    def connect(handle: PipeHandle) -> PipeEnd:
        """The end that a PipeHandle names."""

    def handle(self) -> PipeHandle:
        """For another process that is to have this end as well, or in our place."""

    def send(self, obj: object) -> None:
        """
        Send any object that can be pickled; tensors are shared, not copied.

        Raises:
            Closed: no process has the other end any more; a death may be noticed some objects
                late.
            OutOfMemory, and exceptions of pickling.
        """

    def recv(self, timeout: float | None = None) -> Any:
        """
        The next object.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: nothing came.
            Closed: all was received, and no process has the other end any more.
            StaleHandle, OwnerDied, PeerDied: the object's tensors are lost, and it with them.
        """

    def poll(self, timeout: float | None = 0.0) -> bool:
        """
        Would ``recv()`` return or raise at once? Waits ``timeout`` seconds for it, for ever with None.
        """

    def fileno(self) -> int:
        """
        Returns a descriptor that select, poll and epoll find readable while ``poll()`` is true. It may
        stay readable a little longer. The death of the other end's last process makes it readable within
        about a tenth of a second. Do not read or close it. The first call starts a thread in this
        process, which sleeps until something comes.
        """

    def close(self) -> None:
        """This process has this end no more; all other calls raise Closed."""

    @property
    def closed(self) -> bool:
        """Has this process closed it?"""

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __enter__(self) -> PipeEnd: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class Listener:
    """
    Waits at an address for processes of this host that know the key, and makes a pipe with each.
    Both sides prove that they know it; it is never sent.

    Args:
        address: ``unix:/path``, ``unix:@name`` or ``tcp:127.0.0.1:port`` (port 0: any free one).
        key: any bytes but none at all.
    """

    def __init__(self, address: object | None, key: object | None) -> None:
        """
        Raises InvalidArgument for other addresses and an empty key, System when the address is
        taken.
        """

    @property
    def address(self) -> str:
        """The address to connect to, with the real port."""

    def accept(self, timeout: float | None = None) -> PipeEnd:
        """
        Our end of the pipe with the next client that knows the key. Others are refused and do not
        end the wait: see ``refused``.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout, Closed.
        """

    def fileno(self) -> int:
        """
        Returns a descriptor that select, poll and epoll find readable while ``accept()`` has something
        to do: call ``accept(timeout=0)`` then. That may raise Timeout, because a client connects in
        several steps. Do not read or close the descriptor.
        """

    @property
    def refused(self) -> int:
        """
        How many clients were refused so far: they do not know the key, or run as another user. The
        first is a warning in the log.
        """

    def close(self) -> None:
        """No process can connect any more; existing pipes go on."""

    @property
    def closed(self) -> bool:
        """Has this process closed it?"""

    def __enter__(self) -> Listener: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

def connect(address: str, key: bytes, timeout: float | None = 10.0) -> PipeEnd:
    """
    The other end of a pipe that a listener accepts.

    Args:
        address, key: those of the listener.
        timeout: seconds to wait at most; None for ever.

    Raises:
        PeerDied: no process listens there.
        BadSecret: the listener has another key.
        OtherUser: the listener is another user's, on a Unix socket.
        Timeout: it did not answer.
    """

class _GraphFootprint:
    """The size of an arena, in bytes."""

    @property
    def shared(self) -> int:
        """Physical memory, shown by all windows."""

    @property
    def own(self) -> int:
        """Physical memory that one window alone shows."""

    @property
    def mapped(self) -> int:
        """Addresses of all windows together."""

    @property
    def windows(self) -> int: ...

    @property
    def mappings(self) -> int:
        """Pieces of memory that the driver shows in all windows."""

    @property
    def parked(self) -> bool: ...

    @property
    def aliases(self) -> bool:
        """Whether each window has addresses of its own."""

class _GraphWindow:
    """
    Addresses of one capture over the pages of its arena; a buffer of its bytes.
    """

    @property
    def nbytes(self) -> int: ...

    @property
    def base(self) -> int: ...

class _GraphArena:
    """
    Scratch memory of captured graphs on one device: as much as the largest.
    """

    def __init__(self, device: object, limit: int | None = None) -> None:
        """``limit`` in bytes; None: no limit."""

    def open(self, nbytes: int) -> _GraphWindow:
        """A window. Raises OutOfMemory, InvalidArgument while parked."""

    def park(self) -> None:
        """Gives the memory back."""

    def resume(self) -> None:
        """Gets memory again. Raises OutOfMemory."""

    def footprint(self) -> _GraphFootprint: ...

class _GraphPool:
    """Memory of one capture, for torch's allocator."""

    def __init__(self, arena: _GraphArena, most: int) -> None:
        """``most`` addresses, in bytes."""

    def open(self) -> None:
        """torch's segments are of this pool from now on."""

    def close(self) -> None: ...

    def retire(self) -> None:
        """
        Shared memory is no more of this pool. The caller has waited for work that used it.
        """

    def keep_alive(self, alive: Sequence[tuple[int, int]]) -> None:
        """Memory of its own for addresses and bytes, with any content."""

    @property
    def ordinal(self) -> int: ...

    @property
    def base(self) -> int: ...

    @property
    def used(self) -> int:
        """Bytes."""

    @property
    def own(self) -> int:
        """Bytes that no other capture shows."""

    @property
    def segments(self) -> int:
        """How many torch has."""

def _graph_bytes(pool: _GraphPool, address: int, nbytes: int) -> object:
    """A tensor of torch's on bytes of a pool, which it keeps."""

class _ArenaLock:
    """The lock of an arena. Its thread may take it again."""

    def __init__(self) -> None: ...

    def bind(self, device: object) -> None: ...

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...

    def enter_stream(self, stream: int) -> None:
        """The stream goes on after the last holder's work."""

    def leave_stream(self, stream: int) -> None:
        """The next holder's work comes after all that is in the stream."""

    def wait(self) -> None:
        """The host waits for the last holder's work."""

    def set_running(self, is_running: bool) -> None: ...

    def set_leases(self, leases: int) -> None: ...

class _GraphCall:
    """The calls of one captured graph."""

    def __init__(self, lock: object, device: object, executable: int, gather: Sequence[int], scatter: Sequence[int]) -> None: ...

    def add_slot(self, index: int, at: int, nbytes: int) -> None: ...

    def add_place(self, index: int, tensor: object) -> None: ...

    def add_source(self, tensor: object) -> None: ...

    def add_fresh(self, source: int) -> None: ...

    def add_argument(self, index: int) -> None: ...

    def add_object(self, value: object | None) -> None: ...

    def run(self, arguments: object, launcher: object | None = None) -> object:
        """A tensor for each source. With the lock."""

    def is_in_place(self, arguments: object) -> bool: ...

    def close(self) -> None: ...

    @property
    def last_used(self) -> int: ...

    @last_used.setter
    def last_used(self, arg: int, /) -> None: ...

    @property
    def runs(self) -> int: ...

class _GraphCallTable:
    """The captured graphs of one function."""

    def __init__(self, device: object, keyed: Sequence[int], most_elements: int) -> None: ...

    def add(self, arguments: object, call: object) -> None: ...

    def remove(self, call: object) -> None: ...

    def clear(self) -> None: ...

    def tick(self) -> int: ...

    @property
    def hits(self) -> int: ...

    def __call__(self, boxed: object) -> object:
        """The results; None: declined."""

def _graph_copies(device: object, stream: int, memory: Sequence[tuple[int, int]]) -> list[int]:
    """Nodes for copies in the graph that the stream captures."""

def _prepare_graphs(device: object) -> bool:
    """
    Before the first capture on a device; False: copies cannot be nodes of graphs here.
    """

class _Evaluation:
    """One worker's part of a backward pass, without its messages."""

    def __init__(self, context: object, worker: int, sent: object, roots: object, engine: object, retain: bool) -> None: ...

    def take(self, arrived: object) -> tuple: ...

    def resolve(self) -> tuple: ...

    def mark(self, key: object) -> list: ...

    def owed(self) -> list: ...

def _rpc_context() -> object:
    """Returns this thread's context of distributed autograd, or None."""

def _swap_rpc_context(context: object | None) -> object:
    """
    Makes a context, or None, the context of this thread. Returns the one before.
    """

class _RpcGiving:
    """
    What the message that is being written gives away; good until it is written.
    """

    @property
    def agent(self) -> object: ...

    @property
    def receiver(self) -> int: ...

    @property
    def is_result(self) -> bool: ...

    def give(self, reference: object, fork: object) -> None: ...

    def move(self, marked: object) -> None: ...

    def count(self, route: str, rows: int = 0) -> None: ...

def _rpc_giving() -> _RpcGiving: ...

def _rpc_taking() -> object:
    """(agent, number of the sender) of the message that is being read."""

class _RunningCall:
    """A call that this process runs."""

    @property
    def caller(self) -> object:
        """The WorkerInfo of the caller."""

    @property
    def caller_id(self) -> int: ...

    @property
    def number(self) -> int: ...

    @property
    def function(self) -> str:
        """The name of the function, as module:name."""

    @property
    def trace(self) -> object:
        """
        The name of the call in the logs of both sides, and of the calls that it makes.
        """

    @property
    def deadline(self) -> object:
        """The deadline as time.monotonic() has it, or None."""

    @property
    def cancelled(self) -> bool:
        """
        Whether the caller has cancelled the call, does not wait for it, or has ended.
        """

    def remaining(self) -> object:
        """Seconds until the deadline, or None. Negative behind it."""

    def check(self) -> None:
        """
        Raises Cancelled when the caller does not want the result, Timeout behind the deadline.
        """

    def cancel(self) -> None:
        """Marks the call as cancelled."""

    def on_cancel(self, hook: object) -> None:
        """
        Calls the hook when the call is cancelled; at once if it is. The hook must not wait.
        """

def _current_call() -> object:
    """
    Returns the call that this thread runs for another member; None outside of a call.
    """

class _RpcCall:
    @property
    def number(self) -> int: ...

    @property
    def done(self) -> bool: ...

    @property
    def member(self) -> int: ...

    def wait(self) -> None: ...

    def want(self, future: object) -> bool: ...

    def end(self) -> bool: ...

    def complete(self) -> None: ...

def _rpc_host() -> int:
    """
    A number of this boot and these namespaces: processes of one reach each other's memory.
    """

def _share_tensor(tensor: object) -> object:
    """
    Returns (onecopy.Tensor, flags) of a torch tensor on the same memory; None for one that cannot be shared.
    """

def _open_tensor(tensor: Tensor, flags: int) -> object:
    """Returns the torch tensor of which _share_tensor() made them."""

def _decode_call(data: bytes) -> object: ...

def _encode_call(args: tuple) -> object: ...

class _RpcEndpoint:
    """This process as a member of a group; see python/src/rpc/endpoint.h."""

    def __init__(self, agent: object, reduce: object, rebuild: object, name: str, number: int) -> None: ...

    def call(self, to: object | None, function: object | None, args: object | None, kwargs: object | None, timeout: object | None) -> object: ...

    def begin(self, to: object | None, function: object | None, args: object | None, kwargs: object | None, timeout: object | None, future: object) -> None: ...

    def call_verb(self, to: int, verb: str, args: object, seconds: float, is_result: bool = False) -> object: ...

    def begin_verb(self, to: int, verb: str, args: object, seconds: float, is_result: bool, reference: object | None, future: object) -> None: ...

    def call_gradients(self, to: int, args: object) -> object: ...

    def begin_gradients(self, to: int, args: object) -> object: ...

    def note(self, to: int, verb: object, value: object | None) -> None: ...

    def begin_here(self, seconds: float, future: object) -> object: ...

    def run_soon(self, task: object) -> None: ...

    def outcome(self, call: _RpcCall, seconds: float) -> object: ...

    def answer(self, to: int, call: int, result: object | None) -> None: ...

    def fail(self, to: int, call: int, kind: object, text: str, code: str) -> None: ...

    def call_native(self, to: object | None, function: object | None, args: object | None, kwargs: object | None, timeout: object | None) -> object: ...

    def begin_native(self, to: int, name: str, args: object | None, kwargs: object | None, trace: object | None, seconds: float, future: object) -> None: ...

    def native_deadline(self, timeout: object | None) -> tuple: ...

    def address(self) -> bytes: ...

    def join(self, address: bytes, is_program: bool = False) -> object: ...

    def is_far(self, number: int) -> bool: ...

    def has_left(self, number: int) -> bool: ...

    def connect(self, number: int, seconds: float) -> None: ...

    def routes(self, to: int) -> dict: ...

    def number_of(self, name: object) -> object: ...

    def set_devices(self, of: int, of_calls: Sequence[tuple[int, int]], of_answers: Sequence[tuple[int, int]], numbers_agree: bool, is_automatic: bool) -> None: ...

    def look(self) -> None: ...

    def run(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def calls_under_way(self) -> int: ...

    @property
    def idle_workers(self) -> int: ...

    @property
    def serving(self) -> int: ...

    def wait_for_served(self, max: int, seconds: float) -> bool: ...

    @property
    def timeout(self) -> float: ...

    @timeout.setter
    def timeout(self, arg: float, /) -> None: ...

    def set_limit(self, max: int, refuses: bool) -> None: ...

    def acquire(self, agent: object, to: int, seconds: float) -> None: ...

    def release(self, to: int) -> None: ...

    def limits(self) -> dict: ...

    def observe(self, is_called: bool, function: str, seconds: float, failed: bool) -> None: ...

    def times_called(self) -> dict: ...

    def times_served(self) -> dict: ...

    def calls_made(self) -> list: ...

    def calls_running(self) -> list: ...

    def cancel(self, caller: int, number: int) -> None: ...

    def run_as(self, agent: object, caller: int, number: int, function: str, seconds: float, trace: object | None, run: object) -> object:
        """Returns run(call) with that call as the current one of this thread."""

__version__: str
