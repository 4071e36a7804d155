#!/usr/bin/env python3
"""The same training step in PyTorch, for comparison: GPT-2 or a block after it, clipping, AdamW
with decay on matrices.

    dev/bench/torch_step.py WEIGHTS SHARD B T fp32|bf16 [--compile]

WEIGHTS is a directory that the trainer wrote (`./train_gpt2 -e d12,V=50257 -x 0 -v 0 -s 0 --export
WEIGHTS`), so that both begin with the same numbers; SHARD a file of tokens. Step s reads the
windows s B .. s B + B - 1 of it, in file order, as bench_step does. Makes a step for each line of
standard input and prints its loss and its seconds as a JSON object; after the last line a JSON
object of the settings.

The settings are those of a careful user: subnormal numbers are flushed to zero, every core has a
thread, scaled_dot_product_attention and the fused AdamW run where this PyTorch has them, bf16 is
torch.autocast over fp32 weights. The vocabulary is padded to a multiple of 128 rows, and the
padding takes no part in the softmax, as in the trainer. Blocks after GPT-2 need nn.RMSNorm and
grouped heads in scaled_dot_product_attention: PyTorch 2.5.
"""

import argparse
import contextlib
import itertools
import json
import os
import struct
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

HEADER_BYTES = 1024  # of a shard
VOCABULARY_ROWS = 128  # the trainer pads to a multiple
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


# ----------------------------------------------------------------------------- files of the trainer


def read_weights(directory):
    """The tensors of DIRECTORY/model.safetensors by name, as fp32."""
    data = bytearray((Path(directory) / "model.safetensors").read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8 : 8 + length]))
    whole, tensors = torch.frombuffer(data, dtype=torch.uint8), {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = (
                whole[begin:end].view(DTYPES[entry["dtype"]]).view(entry["shape"]).float()
            )
    return tensors


def read_batches(shard, B, T):
    """Endless batches of (B, T+1) tokens; window w begins at token w T; they start over."""
    tokens = (
        torch.frombuffer(
            bytearray(Path(shard).read_bytes()[HEADER_BYTES:]), dtype=torch.int16
        ).long()
        & 0xFFFF
    )
    count = (len(tokens) - 1) // T
    for first in itertools.count(0, B):
        starts = [w % count * T for w in range(first, first + B)]
        yield torch.stack([tokens[start : start + T + 1] for start in starts])


def shape_of(directory):
    """What the model consists of, from its config.json."""
    config = json.loads((Path(directory) / "config.json").read_text())
    if config["model_type"] == "gpt2":
        return {
            "L": config["n_layer"],
            "C": config["n_embd"],
            "NH": config["n_head"],
            "NKV": config["n_head"],
            "V": config["vocab_size"],
            "d_ff": config["n_inner"] or 4 * config["n_embd"],
            "rope": None,
            "rms": False,
            "eps": config["layer_norm_epsilon"],
            "qk_norm": False,
            "activation": "gelu",
            "bias": True,
            "tied": True,
        }
    rms, act = "rms_norm_eps" in config, {"silu": "swiglu", "relu2": "relu2"}.get(
        config["hidden_act"], "gelu"
    )
    return {
        "L": config["num_hidden_layers"],
        "C": config["hidden_size"],
        "NH": config["num_attention_heads"],
        "NKV": config["num_key_value_heads"],
        "V": config["vocab_size"],
        "d_ff": config["intermediate_size"],
        "rope": float(config["rope_theta"]),
        "rms": rms,
        "eps": config["rms_norm_eps" if rms else "norm_epsilon"],
        "qk_norm": config["model_type"] == "qwen3",
        "activation": act,
        "bias": config["use_bias"],
        "tied": config["tie_word_embeddings"],
    }


# ---------------------------------------------------------------------------------------- the model


def head_norm(x, norm):
    """RMSNorm in the dtype of x: with a weight of another dtype PyTorch has no fused one."""
    return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        C, bias, eps, norm = (
            shape["C"],
            shape["bias"],
            shape["eps"],
            nn.RMSNorm if shape["rms"] else nn.LayerNorm,
        )
        self.HS = C // shape["NH"]
        self.ln1, self.ln2 = norm(C, eps=eps), norm(C, eps=eps)
        self.qkv = nn.Linear(C, (shape["NH"] + 2 * shape["NKV"]) * self.HS, bias=bias)
        self.proj = nn.Linear(C, C, bias=bias)
        if shape["qk_norm"]:
            self.q_norm, self.k_norm = nn.RMSNorm(self.HS, eps=eps), nn.RMSNorm(self.HS, eps=eps)
        self.fc = nn.Linear(
            C, shape["d_ff"] * (2 if shape["activation"] == "swiglu" else 1), bias=bias
        )
        self.fcproj = nn.Linear(shape["d_ff"], C, bias=bias)

    def rotated(self, x, angles):
        """Halves, as transformers rotates them, in the dtype of x."""
        cos, sin = angles[0].to(x.dtype), angles[1].to(x.dtype)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def attention(self, x, angles):
        B, T, C = x.shape
        NH, NKV = self.shape["NH"], self.shape["NKV"]
        q, k, v = (
            self.qkv(x).view(B, T, NH + 2 * NKV, self.HS).transpose(1, 2).split((NH, NKV, NKV), 1)
        )
        if self.shape["qk_norm"]:
            q, k = head_norm(q, self.q_norm), head_norm(k, self.k_norm)
        if self.shape["rope"]:
            q, k = self.rotated(q, angles), self.rotated(k, angles)
        if HAS_SDPA:
            grouped = {"enable_gqa": True} if NKV < NH else {}
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        else:
            scores = q @ k.transpose(-1, -2) / self.HS**0.5
            mask = torch.ones(T, T, dtype=torch.bool).triu(1)
            out = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(B, T, C))

    def activated(self, x):
        if self.shape["activation"] == "swiglu":
            gate, up = x.chunk(2, -1)
            return F.silu(gate) * up
        return (
            F.relu(x).square()
            if self.shape["activation"] == "relu2"
            else F.gelu(x, approximate="tanh")
        )

    def forward(self, x, angles):
        x = x + self.attention(self.ln1(x), angles)
        return x + self.fcproj(self.activated(self.fc(self.ln2(x))))


class Model(nn.Module):
    """Contexts of up to T tokens."""

    def __init__(self, shape, T):
        super().__init__()
        self.V = shape["V"]
        C, Vp = shape["C"], (self.V + VOCABULARY_ROWS - 1) // VOCABULARY_ROWS * VOCABULARY_ROWS
        self.wte = nn.Embedding(Vp, C)
        self.wpe = None if shape["rope"] else nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["L"]))
        self.ln_f = (nn.RMSNorm if shape["rms"] else nn.LayerNorm)(C, eps=shape["eps"])
        self.head = None if shape["tied"] else nn.Linear(C, Vp, bias=False)
        if shape["rope"]:
            HS = C // shape["NH"]
            angles = torch.arange(T)[:, None] * shape["rope"] ** -(torch.arange(0, HS, 2) / HS)
            angles = torch.cat((angles, angles), -1)
            self.register_buffer("angles", torch.stack((angles.cos(), angles.sin())))

    def forward(self, tokens, targets):
        T = tokens.shape[1]
        x, angles = self.wte(tokens), None
        if self.wpe:
            x = x + self.wpe.weight[:T]
        else:
            angles = self.angles[:, :T]
        for block in self.blocks:
            x = block(x, angles)
        logits = F.linear(self.ln_f(x), self.head.weight if self.head else self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1)[:, : self.V], targets.flatten())


def sources_of(model, tensors):
    """Where each parameter of the model comes from: {name: tensor}, in the layout (out, in)."""
    names, gpt2 = {}, model.wpe is not None
    root = "transformer." if gpt2 else "model."
    if gpt2:
        names["wte.weight"], names["wpe.weight"] = [root + "wte.weight"], [root + "wpe.weight"]
        inside = {
            "ln1": ["ln_1"],
            "ln2": ["ln_2"],
            "qkv": ["attn.c_attn"],
            "proj": ["attn.c_proj"],
            "fc": ["mlp.c_fc"],
            "fcproj": ["mlp.c_proj"],
        }
    else:
        names["wte.weight"], names["head.weight"] = [root + "embed_tokens.weight"], [
            "lm_head.weight"
        ]
        gated = root + "layers.0.mlp.gate_proj.weight" in tensors
        plain = root + "layers.0.mlp.c_fc.weight" in tensors
        inside = {
            "ln1": ["input_layernorm"],
            "ln2": ["post_attention_layernorm"],
            "proj": ["self_attn.o_proj"],
            "qkv": [f"self_attn.{part}_proj" for part in "qkv"],
            "q_norm": ["self_attn.q_norm"],
            "k_norm": ["self_attn.k_norm"],
            "fc": (
                ["mlp.c_fc"]
                if plain
                else ["mlp.gate_proj", "mlp.up_proj"] if gated else ["mlp.up_proj"]
            ),
            "fcproj": ["mlp.c_proj" if plain else "mlp.down_proj"],
        }
    for kind in ("weight", "bias"):
        names[f"ln_f.{kind}"] = [f"{root}{'ln_f' if gpt2 else 'norm'}.{kind}"]
        for i in range(len(model.blocks)):
            for ours, theirs in inside.items():
                names[f"blocks.{i}.{ours}.{kind}"] = [
                    f"{root}{'h' if gpt2 else 'layers'}.{i}.{name}.{kind}" for name in theirs
                ]
    found = {}
    for name, _ in model.named_parameters():
        parts = [tensors[source] for source in names[name]]
        # transformers' Conv1D has (in, out).
        turned = gpt2 and name.startswith("blocks.") and parts[0].dim() == 2
        found[name] = torch.cat([part.t() if turned else part for part in parts])
    return found


def load_model(directory, T):
    """The model of a directory that the trainer wrote; rows beyond the vocabulary are 0."""
    model = Model(shape_of(directory), T)
    sources = sources_of(model, read_weights(directory))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            source = sources[name][: len(parameter)]  # positions beyond T are not used
            parameter.zero_()
            parameter[: len(source)] = source
    return model


def make_optimizer(model):
    """AdamW, fused where this PyTorch has it for the device of the model."""
    groups = [
        {
            "params": [p for p in model.parameters() if (p.dim() == 2) == decays],
            "weight_decay": 0.1 * decays,
        }
        for decays in (True, False)
    ]
    options = {"lr": 6e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **options), "fused AdamW"
    except (TypeError, RuntimeError):  # before 2.0 there is none, before 2.4 none on a CPU
        return torch.optim.AdamW(groups, **options), "AdamW"


def train_step(model, optimizer, windows, device, dtype):
    """One step; the loss is not waited for. model may be compiled."""
    with torch.autocast(device, torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext():
        loss = model(windows[:, :-1], windows[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


# ---------------------------------------------------------------------------------------- measuring


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("shard")
    parser.add_argument("B", type=int)
    parser.add_argument("T", type=int)
    parser.add_argument("dtype", choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    options = parser.parse_args()

    torch.set_num_threads(len(os.sched_getaffinity(0)))  # Debian's build starts with one
    flushed = torch.set_flush_denormal(True)
    model = load_model(options.weights, options.T)
    optimizer, name = make_optimizer(model)
    forward = torch.compile(model) if options.compile else model
    batches = read_batches(options.shard, options.B, options.T)
    for _, windows in zip(sys.stdin, batches):
        began = time.perf_counter()
        loss = float(train_step(forward, optimizer, windows, "cpu", options.dtype))
        print(json.dumps({"loss": loss, "step_seconds": time.perf_counter() - began}), flush=True)

    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "mode": "compiled" if options.compile else "eager",
                "parameters": sum(p.numel() for p in model.parameters()),
                "threads": torch.get_num_threads(),
                "flush_denormal": flushed,
                "attention": "SDPA" if HAS_SDPA else "explicit",
                "optimizer": name,
            }
        )
    )


if __name__ == "__main__":
    main()
