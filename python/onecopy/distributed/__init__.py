# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for torch.distributed's rpc, autograd and optim: change the import line.

``import onecopy.distributed.rpc as rpc``, ``import onecopy.distributed.autograd as dist_autograd``.
"""

from .. import _with_torch as _with_torch
