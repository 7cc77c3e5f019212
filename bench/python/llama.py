# SPDX-License-Identifier: Apache-2.0
"""A small Llama with random weights and static caches, of transformers if installed or else of plain torch."""

from __future__ import annotations

import importlib.util
import math
import warnings
from typing import Any

VOCABULARY = 1024
LENGTH = 128
_HEADS = 8


class Llama:
    """A model that makes one token per step. ``step`` writes into its cache argument, and may be compiled."""

    def __init__(self, layers: int, hidden: int, device: str, dtype: Any) -> None:
        import torch

        torch.manual_seed(5)
        self.device = device
        self.dtype = dtype
        has_transformers = importlib.util.find_spec("transformers") is not None
        self.kind = "transformers" if has_transformers else "plain torch"
        made = _of_transformers if has_transformers else _of_torch
        self.step, self.new_cache = made(layers, hidden, device, dtype)

    def tokens(self, step: Any, cache: Any, steps: int, first: int = 7) -> list[int]:
        """Runs a request, and returns its tokens: each is the most likely token after the ones before."""
        import torch

        token = torch.tensor([[first]], device=self.device)
        made = []
        for at in range(steps):
            logits = step(token, torch.tensor([at], device=self.device), cache)
            token = logits[:, -1:].argmax(-1)
            made.append(token.clone())
        return [int(one) for one in made]


def _of_transformers(layers: int, hidden: int, device: str, dtype: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    warnings.filterwarnings("ignore", category=FutureWarning)  # the older name of an argument works with all releases
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=hidden * 3, num_hidden_layers=layers,
        num_attention_heads=_HEADS, num_key_value_heads=_HEADS, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()

    def new_cache() -> Any:
        cache = StaticCache(config=config, max_cache_len=LENGTH)
        width = hidden // _HEADS
        cache.early_initialization(1, _HEADS, width, dtype, model.device)
        return cache

    def step(token: Any, at: Any, cache: Any) -> Any:
        return model(
            input_ids=token, position_ids=at.unsqueeze(0), cache_position=at, past_key_values=cache, use_cache=True
        ).logits

    return step, new_cache


def _of_torch(layers: int, hidden: int, device: str, dtype: Any) -> Any:
    import torch

    model = _Model(layers, hidden).to(device=device, dtype=dtype).eval()

    def new_cache() -> list[Any]:
        shape = (1, _HEADS, LENGTH, hidden // _HEADS)
        return [torch.zeros(shape, device=device, dtype=dtype) for _ in range(2 * layers)]

    return model, new_cache


def _Model(layers: int, hidden: int) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    width = hidden // _HEADS

    def rotated(x: Any, at: Any) -> Any:
        steps = torch.arange(0, width, 2, device=x.device, dtype=torch.float32)
        angles = at[:, None] * torch.exp(steps * (-math.log(10000.0) / width))
        sine, cosine = torch.cat([angles, angles], -1).sin(), torch.cat([angles, angles], -1).cos()
        low, high = x.chunk(2, -1)
        return (x * cosine + torch.cat([-high, low], -1) * sine).to(x.dtype)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
            self.out = nn.Linear(hidden, hidden, bias=False)
            self.gate, self.up = (nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(3 * hidden, hidden, bias=False)

        def forward(self, x: Any, at: Any, keys: Any, values: Any, mask: Any) -> Any:
            parts = self.qkv(self.first(x)).view(1, 1, 3, _HEADS, width).permute(2, 0, 3, 1, 4)
            keys.index_copy_(2, at, rotated(parts[1], at))
            values.index_copy_(2, at, parts[2])
            attended = functional.scaled_dot_product_attention(rotated(parts[0], at), keys, values, attn_mask=mask)
            x = x + self.out(attended.transpose(1, 2).reshape(1, 1, hidden))
            y = self.second(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.RMSNorm(hidden)
            self.head = nn.Linear(hidden, VOCABULARY, bias=False)

        def forward(self, token: Any, at: Any, cache: list[Any]) -> Any:
            x = self.embedding(token)
            mask = (torch.arange(LENGTH, device=x.device) <= at).view(1, 1, 1, LENGTH)
            for block, keys, values in zip(self.blocks, cache[::2], cache[1::2], strict=True):
                x = block(x, at, keys, values, mask)
            return self.head(self.norm(x))

    return Model()
