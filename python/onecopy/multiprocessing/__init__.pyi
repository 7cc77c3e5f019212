# For type checkers: the names of the standard library's multiprocessing and of torch.multiprocessing.
from collections.abc import Callable, Iterable
from multiprocessing import *
from typing import Any

from torch.multiprocessing import (
    _get_thread_name as _get_thread_name,
    _prctl_pr_set_pdeathsig as _prctl_pr_set_pdeathsig,
    _set_thread_name as _set_thread_name,
)
from torch.multiprocessing.spawn import (
    ENV_VAR_PARALLEL_START as ENV_VAR_PARALLEL_START,
    ProcessContext as ProcessContext,
    ProcessExitedException as ProcessExitedException,
    ProcessRaisedException as ProcessRaisedException,
    SpawnContext as SpawnContext,
)

from . import (
    connection as connection,
    context as context,
    dummy as dummy,
    heap as heap,
    managers as managers,
    patches as patches,
    pool as pool,
    process as process,
    queue as queue,
    queues as queues,
    reduction as reduction,
    reductions as reductions,
    resource_sharer as resource_sharer,
    resource_tracker as resource_tracker,
    shared_memory as shared_memory,
    sharedctypes as sharedctypes,
    strategies as strategies,
    synchronize as synchronize,
    util as util,
)
from .patches import (
    init_reductions as init_reductions,
    install as install,
    installed as installed,
    uninstall as uninstall,
)
from .strategies import (
    get_all_sharing_strategies as get_all_sharing_strategies,
    get_sharing_strategy as get_sharing_strategy,
    set_sharing_strategy as set_sharing_strategy,
)

SUBDEBUG: int
SUBWARNING: int

def spawn(
    fn: Callable[..., object],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None: ...
def start_processes(
    fn: Callable[..., object],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None: ...
