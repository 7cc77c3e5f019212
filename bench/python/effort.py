# SPDX-License-Identifier: Apache-2.0
"""The number of rounds and exchanges of a measurement."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Effort:
    quick: bool = False
    device: str = "cpu"

    def rounds(self, usual: int) -> int:
        return (usual + 4) // 5 if self.quick else usual
