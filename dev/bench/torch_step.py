#!/usr/bin/env python3
"""The same training step in PyTorch, for comparison: GPT-2 or a block after it, clipping, AdamW with decay on matrices.

    dev/bench/torch_step.py [starcoder2:|llama:|qwen3:|arcee:]L=12,C=768,NH=12,V=50257[,NKV=4][,d_ff=2048] B T
                            fp32|bf16 [steps]

bf16 is torch.autocast over fp32 weights, as usual in PyTorch. Prints one JSON object: the median of the steps
after one warm-up step. Eager: what a user of Debian's PyTorch has (no compiler, no fused attention before 2.0). The
blocks after GPT-2 need nn.RMSNorm and grouped heads in scaled_dot_product_attention: PyTorch 2.5.
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

# Of the families of llmc/model/model_config.c what a block consists of.
FAMILIES = {
    "gpt2": {"rope": False, "rms": False, "qk_norm": False, "activation": "gelu", "bias": True, "tied": True},
    "starcoder2": {"rope": True, "rms": False, "qk_norm": False, "activation": "gelu", "bias": True, "tied": True},
    "llama": {"rope": True, "rms": True, "qk_norm": False, "activation": "swiglu", "bias": False, "tied": False},
    "qwen3": {"rope": True, "rms": True, "qk_norm": True, "activation": "swiglu", "bias": False, "tied": True},
    "arcee": {"rope": True, "rms": True, "qk_norm": False, "activation": "relu2", "bias": False, "tied": False},
}


def shape_of(descriptor):
    """Of a descriptor of the trainer, without presets: the numbers, and what the block consists of."""
    family, _, numbers = descriptor.rpartition(":")
    shape = {key: int(value) for key, value in (part.split("=") for part in numbers.split(","))}
    shape = {**FAMILIES[family or "gpt2"], "NKV": shape["NH"], **shape}
    hidden = (8 * shape["C"] + 3 * 128 - 1) // (3 * 128) * 128 if shape["activation"] == "swiglu" else 4 * shape["C"]
    return {"d_ff": hidden, **shape}


def head_norm(x, norm):
    """RMSNorm in the dtype of x: with a weight of another dtype PyTorch has no fused one."""
    return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        C, bias, norm = shape["C"], shape["bias"], nn.RMSNorm if shape["rms"] else nn.LayerNorm
        self.HS = C // shape["NH"]
        self.ln1, self.ln2 = norm(C), norm(C)
        self.qkv = nn.Linear(C, (shape["NH"] + 2 * shape["NKV"]) * self.HS, bias=bias)
        self.proj = nn.Linear(C, C, bias=bias)
        if shape["qk_norm"]:
            self.q_norm, self.k_norm = nn.RMSNorm(self.HS), nn.RMSNorm(self.HS)
        self.fc = nn.Linear(C, shape["d_ff"] * (2 if shape["activation"] == "swiglu" else 1), bias=bias)
        self.fcproj = nn.Linear(shape["d_ff"], C, bias=bias)

    def rotated(self, x, angles):
        """Halves, as transformers rotates them, in the dtype of x."""
        cos, sin = angles[0].to(x.dtype), angles[1].to(x.dtype)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def attention(self, x, angles):
        B, T, C = x.shape
        NH, NKV = self.shape["NH"], self.shape["NKV"]
        q, k, v = self.qkv(x).view(B, T, NH + 2 * NKV, self.HS).transpose(1, 2).split((NH, NKV, NKV), 1)
        if self.shape["qk_norm"]:
            q, k = head_norm(q, self.q_norm), head_norm(k, self.k_norm)
        if self.shape["rope"]:
            q, k = self.rotated(q, angles), self.rotated(k, angles)
        if hasattr(F, "scaled_dot_product_attention"):
            grouped = {"enable_gqa": True} if NKV < NH else {}
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        else:
            scores = q @ k.transpose(-1, -2) / self.HS ** 0.5
            mask = torch.ones(T, T, dtype=torch.bool).triu(1)
            out = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(B, T, C))

    def activated(self, x):
        if self.shape["activation"] == "swiglu":
            gate, up = x.chunk(2, -1)
            return F.silu(gate) * up
        return F.relu(x).square() if self.shape["activation"] == "relu2" else F.gelu(x, approximate="tanh")

    def forward(self, x, angles):
        x = x + self.attention(self.ln1(x), angles)
        return x + self.fcproj(self.activated(self.fc(self.ln2(x))))


class Model(nn.Module):
    """Contexts of up to T tokens."""

    def __init__(self, shape, T):
        super().__init__()
        C, Vp = shape["C"], (shape["V"] + 127) // 128 * 128
        self.wte = nn.Embedding(Vp, C)
        self.wpe = None if shape["rope"] else nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["L"]))
        self.ln_f = nn.RMSNorm(C) if shape["rms"] else nn.LayerNorm(C)
        self.head = None if shape["tied"] else nn.Linear(C, Vp, bias=False)
        HS = C // shape["NH"]
        angles = torch.arange(T)[:, None] * 10000.0 ** -(torch.arange(0, HS, 2) / HS)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("angles", torch.stack((angles.cos(), angles.sin())))

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        if self.wpe:
            x = x + self.wpe.weight[: tokens.shape[1]]
        angles = self.angles[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, angles)
        logits = F.linear(self.ln_f(x), self.head.weight if self.head else self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    shape = shape_of(sys.argv[1])
    B, T, dtype = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    steps = int(sys.argv[5]) if len(sys.argv) > 5 else 2
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # Debian's build starts with one
    torch.manual_seed(1)
    model = Model(shape, T)
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
    print(json.dumps({"torch": torch.__version__, "parameters": sum(p.numel() for p in model.parameters()),
                      "step_seconds": seconds, "tokens_per_second": B * T / seconds}))


if __name__ == "__main__":
    main()
