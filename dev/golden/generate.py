#!/usr/bin/env python3
"""Writes the golden values of test/golden: a tiny GPT-2 in PyTorch, its loss, gradients and ten steps of AdamW and Muon.

    python3 dev/golden/generate.py [DIRECTORY]      (default: test/golden; needs numpy and torch >= 2.15)

Everything is computed in float64 from weights that fp32 represents exactly, and stored as fp32: the values in the files are
right to 6e-8, so a test compares with the exact result and not with another rounding error. The files:

    tiny_gpt2/config.json, model.safetensors   the model as Hugging Face saves it (Conv1D matrices are (in, out))
    expected.safetensors                       the values, matrices in (out, in) layout, V rows for wte:
        windows (10, B, T+1)     the token windows of the ten steps; the values below are of windows[0] and the start
        logits (B, T, V), losses (B, T), grad.NAME     the gradient of the mean loss
        adamw (5)                beta1, beta2, eps, weight decay on matrices, clip
        learning_rates (10), step_losses (10), norms (10)   norms: before clipping
        final.NAME               the weights after ten steps; the key part of c_attn.bias, whose gradient is zero,
                                 has rounding noise that AdamW made full steps of: not to be compared
    optimizers.safetensors       ten steps of PyTorch's own optimizers from the same start, clipped as above:
        skipped (4), adamw.NAME  torch.optim.AdamW without these steps, as torch.amp.GradScaler skips steps that overflow:
                                 the learning rate moves on, the optimizer's count of updates does not
        muon (2), muon.NAME      momentum and weight decay; torch.optim.Muon in match_rms_adamw for the matrices of the
                                 blocks, q, k and v each by itself, and AdamW for all other tensors

With one version of PyTorch the same command writes the same bytes; with another only the gradient of the key part of
c_attn.bias, 1e-17 instead of 0, has been another. Before it writes, it checks its formulas against each other: GELU against
the formula, attention against a loop, AdamW against torch.optim.AdamW, and Muon against a singular value decomposition.
"""
import json
import math
import os
import struct
import sys
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F

L, C, NH, V, MAX_T, T, B, STEPS = 2, 32, 4, 61, 24, 16, 3, 10
SEED = 20240520
BETA1, BETA2, EPS, WEIGHT_DECAY, CLIP = (float(np.float32(x)) for x in (0.9, 0.95, 1e-8, 0.1, 4.0))
SKIPPED = (0, 1, 2, 5)  # of the ten steps
MOMENTUM, MUON_DECAY = (float(np.float32(x)) for x in (0.95, 0.5))
CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def make_weights(generator):
    """Matrices in (out, in) layout, under Hugging Face's names. Nothing is zero or one: a bias that is left out shows."""

    def normal(scale, *shape, mean=0.0):
        values = mean + scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.float().double()  # fp32 holds it exactly

    weights = {"wte.weight": normal(0.3, V, C), "wpe.weight": normal(0.2, MAX_T, C)}
    for block in range(L):
        h = f"h.{block}."
        weights.update({
            h + "ln_1.weight": normal(0.2, C, mean=1.0), h + "ln_1.bias": normal(0.1, C),
            h + "attn.c_attn.weight": normal(0.2, 3 * C, C), h + "attn.c_attn.bias": normal(0.2, 3 * C),
            h + "attn.c_proj.weight": normal(0.15, C, C), h + "attn.c_proj.bias": normal(0.1, C),
            h + "ln_2.weight": normal(0.2, C, mean=1.0), h + "ln_2.bias": normal(0.1, C),
            h + "mlp.c_fc.weight": normal(0.2, 4 * C, C), h + "mlp.c_fc.bias": normal(0.2, 4 * C),
            h + "mlp.c_proj.weight": normal(0.1, C, 4 * C), h + "mlp.c_proj.bias": normal(0.1, C),
        })
    weights.update({"ln_f.weight": normal(0.2, C, mean=1.0), "ln_f.bias": normal(0.1, C)})
    return {"transformer." + name: value for name, value in weights.items()}


def attention(qkv):
    """(B, T, 3C) -> (B, T, C), causal."""
    batch, length = qkv.shape[:2]
    q, k, v = qkv.view(batch, length, 3, NH, C // NH).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / math.sqrt(C // NH)
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, C)


def forward(w, windows):
    """Token windows (B, T+1) -> logits (B, T, V), losses (B, T)."""
    w = {name[len("transformer."):]: value for name, value in w.items()}
    tokens, targets = windows[:, :-1], windows[:, 1:]

    def norm(x, name):
        return F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for block in range(L):
        h = f"h.{block}."
        x = x + linear(attention(linear(norm(x, h + "ln_1"), h + "attn.c_attn")), h + "attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
    logits = norm(x, "ln_f") @ w["wte.weight"].T  # the tied head
    return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


def gradients(w, windows):
    """Logits, losses and the gradient of the mean loss by name."""
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    logits, losses = forward(leaves, windows)
    losses.mean().backward()
    return logits.detach(), losses.detach(), {name: value.grad for name, value in leaves.items()}


def train(weights, windows, learning_rates):
    """Ten steps: clip by the global norm, AdamW with decay on matrices. Returns losses, norms, final weights."""
    w = {name: value.clone() for name, value in weights.items()}
    m = {name: torch.zeros_like(value) for name, value in w.items()}
    v = {name: torch.zeros_like(value) for name, value in w.items()}
    losses, norms = [], []
    for step, (batch, lr) in enumerate(zip(windows, learning_rates), start=1):
        _, loss, grads = gradients(w, batch)
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
        losses.append(float(loss.mean()))
        norms.append(norm)
        for name, g in grads.items():
            g = g * min(1.0, CLIP / norm)
            m[name] = BETA1 * m[name] + (1 - BETA1) * g
            v[name] = BETA2 * v[name] + (1 - BETA2) * g * g
            direction = m[name] / (1 - BETA1**step) / ((v[name] / (1 - BETA2**step)).sqrt() + EPS)
            decay = WEIGHT_DECAY if w[name].ndim == 2 else 0.0
            w[name] = w[name] - lr * (direction + decay * w[name])
    return losses, norms, w


def adamw(tensors, weight_decay):
    """torch.optim.AdamW with decay on matrices."""
    groups = [{"params": [p for p in tensors if p.ndim == 2], "weight_decay": weight_decay},
              {"params": [p for p in tensors if p.ndim == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(BETA1, BETA2), eps=EPS)


def adamw_alone(parts):
    return [adamw([p for each in parts.values() for p in each], WEIGHT_DECAY)]


def muon_and_adamw(parts):
    of_muon = {name for name, each in parts.items() if ".h." in name and each[0].ndim == 2}
    return [torch.optim.Muon([p for name in of_muon for p in parts[name]], weight_decay=MUON_DECAY, momentum=MOMENTUM,
                             adjust_lr_fn="match_rms_adamw"),
            adamw([p for name, each in parts.items() if name not in of_muon for p in each], MUON_DECAY)]


def optimize(weights, windows, learning_rates, make, skipped=()):
    """The weights after the steps that are not skipped, by the optimizers that make(parts) returns."""
    parts = {name: [part.clone() for part in value.chunk(3 if name.endswith("c_attn.weight") else 1)]
             for name, value in weights.items()}  # q, k and v
    optimizers = make(parts)
    for step, (batch, lr) in enumerate(zip(windows, learning_rates)):
        if step in skipped:
            continue
        _, _, grads = gradients({name: torch.cat(each) for name, each in parts.items()}, batch)
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
        for name, each in parts.items():
            for part, grad in zip(each, grads[name].chunk(len(each))):
                part.grad = grad * min(1.0, CLIP / norm)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            with mock.patch.object(torch, "bfloat16", torch.float64):  # the type that Muon multiplies matrices in
                optimizer.step()
    return {name: torch.cat(each) for name, each in parts.items()}


def check_muon():
    """Muon's matrices are multiplied in float64, and its singular values are those of the polynomial."""
    matrix = torch.randn(5, 9, dtype=torch.float64)
    part = torch.zeros_like(matrix)
    part.grad = matrix
    with mock.patch.object(torch, "bfloat16", torch.float64):
        torch.optim.Muon([part], lr=1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    u, s, v = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    assert torch.allclose(part, -0.2 * math.sqrt(9) * u @ torch.diag(s) @ v, atol=1e-12)


def check_formulas(weights, windows, learning_rates, final, norms):
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    assert torch.allclose(F.gelu(x, approximate="tanh"), 0.5 * x * (1 + torch.tanh(u)), atol=1e-14)

    qkv = torch.randn(1, 5, 3 * C, dtype=torch.float64)
    out, size, head, i = attention(qkv), C // NH, 1, 3
    q, k, v = (qkv[0, :, part * C + head * size : part * C + (head + 1) * size] for part in range(3))
    p = torch.exp(torch.stack([q[i] @ k[j] for j in range(i + 1)]) / math.sqrt(size))
    assert torch.allclose(out[0, i, head * size : (head + 1) * size], (p / p.sum()) @ v[: i + 1], atol=1e-14)

    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimizer = adamw(leaves.values(), WEIGHT_DECAY)
    for batch, lr in zip(windows, learning_rates):
        optimizer.zero_grad()
        forward(leaves, batch)[1].mean().backward()
        torch.nn.utils.clip_grad_norm_(leaves.values(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    for name, value in final.items():  # torch clips by CLIP / (norm + 1e-6)
        same = torch.isclose(leaves[name], value, rtol=0, atol=1e-6)
        assert same.all() or (name.endswith("c_attn.bias") and same[:C].all() and same[2 * C :].all()), name
    assert max(norms) > 1.2 * CLIP and min(norms) < CLIP, f"both clipped and free steps are wanted: {norms}"


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = np.ascontiguousarray(np.asarray(value), dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(np.shape(value)), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_model(directory, weights):
    os.makedirs(directory, exist_ok=True)
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "n_positions": MAX_T, "n_ctx": MAX_T, "vocab_size": V, "n_layer": L, "n_head": NH, "n_embd": C,
        "n_inner": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float32",
    }
    with open(os.path.join(directory, "config.json"), "w") as file:
        file.write(json.dumps(config, indent=2) + "\n")
    write_safetensors(os.path.join(directory, "model.safetensors"),
                      {name: value.T if name.endswith(CONV1D) else value for name, value in weights.items()})


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else "test/golden"
    generator = torch.Generator().manual_seed(SEED)
    torch.set_num_threads(1)  # one order of summation
    weights = make_weights(generator)
    windows = torch.randint(V, (STEPS, B, T + 1), generator=generator)
    learning_rates = [float(np.float32(1e-3 * (1 + step / 10))) for step in range(STEPS)]
    logits, losses, grads = gradients(weights, windows[0])
    step_losses, norms, final = train(weights, windows, learning_rates)
    check_formulas(weights, windows, learning_rates, final, norms)
    check_muon()

    write_model(os.path.join(directory, "tiny_gpt2"), weights)
    expected = {"windows": windows, "logits": logits, "losses": losses, "adamw": [BETA1, BETA2, EPS, WEIGHT_DECAY, CLIP],
                "learning_rates": learning_rates, "step_losses": step_losses, "norms": norms}
    expected.update({"grad." + name: value for name, value in grads.items()})
    expected.update({"final." + name: value for name, value in final.items()})
    write_safetensors(os.path.join(directory, "expected.safetensors"), expected)
    optimizers = {"skipped": SKIPPED, "muon": [MOMENTUM, MUON_DECAY]}
    for name, make, skipped in [("adamw", adamw_alone, SKIPPED), ("muon", muon_and_adamw, ())]:
        found = optimize(weights, windows, learning_rates, make, skipped)
        optimizers.update({f"{name}.{of}": value for of, value in found.items()})
    write_safetensors(os.path.join(directory, "optimizers.safetensors"), optimizers)
    print(f"losses {step_losses[0]:.6f} .. {step_losses[-1]:.6f}, norms {min(norms):.3f} .. {max(norms):.3f}")


if __name__ == "__main__":
    main()
