#!/usr/bin/env python3
"""The same training step in idiomatic PyTorch on a GPU: torch.compile,
scaled_dot_product_attention, bf16 autocast over fp32 weights, fused AdamW, clipping, no dropout.
The model is torch_step.py's, with the trainer's padded vocabulary.

    dev/bench/torch_gpu.py WEIGHTS SHARD B T [--dtype bf16|fp32] [--steps 20] [--eager]
                           [--sdpa default|cudnn] [--device cpu]

WEIGHTS is a directory of the trainer's --export; every step reads the first B windows of SHARD.
Prints one JSON object: the median of the steps after the warm-up, by device events, and the losses
of the first steps. If B does not fit it is halved until it does. --device cpu is for trying the
script out.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from torch_step import load_model, make_optimizer, read_batches, train_step

WARMUP_STEPS, LOSSES = 5, 3


def attention(kind):
    """default: PyTorch's own choice, on Hopper FlashAttention-2; cudnn: cuDNN's, or an error."""
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


def measure(options, B):
    """No step waits for its loss."""
    compiled = hasattr(torch, "compile") and not options.eager
    model = load_model(options.weights, options.T).to(options.device)
    optimizer, name = make_optimizer(model)
    forward = torch.compile(model) if compiled else model
    windows = next(read_batches(options.shard, B, options.T)).to(options.device)
    clock, losses = Clock(options.device), []
    for _ in range(WARMUP_STEPS + options.steps):
        clock.mark()
        losses.append(train_step(forward, optimizer, windows, options.device, options.dtype))
    clock.mark()
    times = clock.seconds()
    seconds = statistics.median(times[WARMUP_STEPS:])
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else None
    return {
        "torch": torch.__version__,
        "compiled": compiled,
        "sdpa": options.sdpa,
        "optimizer": name,
        "B": B,
        "T": options.T,
        "dtype": options.dtype,
        "step_seconds": seconds,
        "tokens_per_second": B * options.T / seconds,
        "first_step_seconds": times[0],
        "losses": [float(loss) for loss in losses[:LOSSES]],
        "loss": float(losses[-1]),
        "memory_peak": peak,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("shard")
    parser.add_argument("B", type=int)
    parser.add_argument("T", type=int)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--sdpa", default="default", choices=["default", "cudnn"])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where a matmul is fp32
    B = options.B
    while B >= 1:
        try:
            with attention(options.sdpa):
                print(json.dumps(measure(options, B)))
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
