#!/usr/bin/env python3
"""The same training step in idiomatic PyTorch on a GPU: torch.compile, scaled_dot_product_attention,
bf16 autocast over fp32 weights, fused AdamW, clipping. The model is torch_step.py's.

    dev/bench/torch_gpu.py L=12,C=768,NH=12,V=50257 B T [--dtype bf16|fp32] [--steps 20] [--eager]
                           [--sdpa default|cudnn] [--device cpu]

Prints one JSON object: the median of the steps after the warm-up, by device events. If B does not fit it is halved
until it does. --device cpu is for trying the script out.
"""
import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch_step import Model, shape_of

WARMUP_STEPS = 5


def make(shape, T, device):
    torch.manual_seed(1)
    model = Model(shape, T).to(device)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    fused = {"fused": True} if device == "cuda" else {}
    return model, torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), **fused)


def attention(kind):
    """default: what PyTorch takes by itself, on Hopper FlashAttention-2; cudnn: cuDNN's, or an error."""
    if kind == "default":
        return contextlib.nullcontext()
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        sys.exit(f"PyTorch {torch.__version__} cannot select cuDNN's attention")
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)


class Clock:
    """Marks in the stream of the device; on a CPU, where everything has happened, the time."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def mark(self):
        if self.device == "cuda":
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        if self.device != "cuda":
            return [b - a for a, b in zip(self.marks, self.marks[1:])]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(self.marks, self.marks[1:])]


def measure(options, shape, B):
    """No step waits for its loss."""
    compiled = hasattr(torch, "compile") and not options.eager
    model, optimizer = make(shape, options.T, options.device)
    forward = torch.compile(model) if compiled else model
    windows = torch.randint(0, shape["V"], (B, options.T + 1), device=options.device)
    clock = Clock(options.device)
    for _ in range(WARMUP_STEPS + options.steps):
        clock.mark()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = forward(windows[:, :-1], windows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    clock.mark()
    times = clock.seconds()
    seconds = statistics.median(times[WARMUP_STEPS:])
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else None
    return {"torch": torch.__version__, "compiled": compiled, "sdpa": options.sdpa, "B": B, "T": options.T, "dtype": options.dtype,
            "step_seconds": seconds, "tokens_per_second": B * options.T / seconds, "first_step_seconds": times[0],
            "loss": float(loss.detach()), "memory_peak": peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("B", type=int)
    parser.add_argument("T", type=int)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--sdpa", default="default", choices=["default", "cudnn"])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    shape = shape_of(options.shape)
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where a matmul is fp32
    B = options.B
    while B >= 1:
        try:
            with attention(options.sdpa):
                print(json.dumps(measure(options, shape, B)))
            return 0
        except torch.cuda.OutOfMemoryError:
            B //= 2
        if hasattr(torch, "compiler"):
            torch.compiler.reset()
        torch.cuda.empty_cache()
    print("out of memory even at B=1", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
