#!/usr/bin/env python3
"""The same training step in PyTorch, for comparison: GPT-2 with a tied head, clipping, AdamW with decay on matrices.

    dev/bench/torch_step.py L=12,C=768,NH=12,V=50257 B T fp32|bf16 [steps]

bf16 is torch.autocast over fp32 weights, as usual in PyTorch. Prints one JSON object: the median of the steps
after one warm-up step. Eager: what a user of Debian's PyTorch has (no compiler, no fused attention before 2.0).
"""
import contextlib
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, C, NH):
        super().__init__()
        self.NH = NH
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.fcproj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.NH, C // self.NH).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / (C // self.NH) ** 0.5
            mask = torch.ones(T, T, dtype=torch.bool).triu(1)
            out = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, L, C, NH, V, T):
        super().__init__()
        self.wte, self.wpe = nn.Embedding((V + 127) // 128 * 128, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block(C, NH) for _ in range(L))
        self.ln_f = nn.LayerNorm(C)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1), targets.flatten())


def main():
    shape = {key: int(value) for key, value in (part.split("=") for part in sys.argv[1].split(","))}
    B, T, dtype = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    steps = int(sys.argv[5]) if len(sys.argv) > 5 else 2
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # Debian's build starts with one
    torch.manual_seed(1)
    model = Gpt2(shape["L"], shape["C"], shape["NH"], shape["V"], T)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95))
    windows = torch.randint(0, shape["V"], (B, T + 1))
    times = []
    for _ in range(steps + 1):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext():
            loss = model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[1:])
    print(json.dumps({"torch": torch.__version__, "step_seconds": seconds, "tokens_per_second": B * T / seconds}))


if __name__ == "__main__":
    main()
