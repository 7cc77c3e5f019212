# SPDX-License-Identifier: Apache-2.0
"""Drop-in replacements for rpc, autograd and optim of torch.distributed; a program changes the import line only.

``import onecopy.distributed.rpc as rpc``, ``import onecopy.distributed.autograd as dist_autograd``.
"""

from ..torch import _required as _required
