#!/usr/bin/env python3
"""Writes the golden values of the blocks after GPT-2 in test/golden: tiny models of transformers' own classes, their loss,
gradients and ten steps of AdamW.

    python3 dev/golden/generate_blocks.py [DIRECTORY]      (default: test/golden; needs numpy, torch >= 2.15 and
                                                            transformers >= 5)

The classes are Starcoder2ForCausalLM, LlamaForCausalLM, Qwen3ForCausalLM, ArceeForCausalLM and Qwen2ForCausalLM; of each
NAME (starcoder2, llama, qwen3, arcee, qwen2, llama_biased, normed):

    tiny_NAME/config.json, model.safetensors   the model as save_pretrained names and stores it: in fp32, qwen2 in bf16;
                             llama_biased in several files with an index
    NAME.safetensors                           the values, under the names of model.safetensors:
        windows (10, B, T+1)     the token windows of the ten steps; the values below are of windows[0] and the start
        logits (B, T, V), losses (B, T), grad.TENSOR     the gradient of the mean loss
        adamw (5)                beta1, beta2, eps, weight decay on matrices, clip
        learning_rates (10), step_losses (10), norms (10)   norms: before clipping
        final.TENSOR             the weights after ten steps. The bias of k has a gradient of zero where nothing rotates
                                 it, but not with RoPE: all of them are to be compared

Everything is computed in float64, but for the angles of RoPE, which transformers rounds to fp32. Its RMSNorm, which
computes in fp32, is replaced by the formula, after the two have been compared. In normed, a Qwen3, the embedding goes
through RMSNorm without a weight; its file holds the embedding as lm_head.weight, and the norms of its rows as
model.embed_tokens.weight, so that the class computes the same, which is compared. Half as many heads of k and v as of q;
in Qwen3 and llama_biased the heads together are wider or narrower than the model; the heads of Llama, Arcee and Qwen2 are
untied.
"""
import copy
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from generate import adamw, write_safetensors

C, NH, NKV, L, D_FF, V, MAX_T, T, B, STEPS, SEED = 16, 4, 2, 2, 24, 37, 24, 16, 3, 10, 20240520
BETA1, BETA2, EPS, WEIGHT_DECAY = (float(np.float32(x)) for x in (0.9, 0.95, 1e-8, 0.1))
SHARED = {
    "vocab_size": V, "hidden_size": C, "intermediate_size": D_FF, "num_hidden_layers": L, "num_attention_heads": NH,
    "num_key_value_heads": NKV, "max_position_embeddings": MAX_T, "attn_implementation": "sdpa",
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "use_cache": False,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Of each class what differs, and the clip, which some of its steps exceed and some do not.
MODELS = {
    "starcoder2": (transformers.Starcoder2ForCausalLM, transformers.Starcoder2Config, 3.0, {
        "use_bias": True, "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "sliding_window": None,
        "tie_word_embeddings": True, "residual_dropout": 0.0, "embedding_dropout": 0.0, "rope_parameters": ROPE}),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, 3.6, {
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_parameters": ROPE}),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, 3.0, {
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "head_dim": 6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
    "arcee": (transformers.ArceeForCausalLM, transformers.ArceeConfig, 2.75, {
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rope_parameters": ROPE}),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, 3.0, {
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "llama_biased": (transformers.LlamaForCausalLM, transformers.LlamaConfig, 3.0, {
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
}  # fmt: skip
MODELS["normed"] = (*MODELS["qwen3"][:2], 2.7, MODELS["qwen3"][3])
NORM_EPS = 1e-7  # after the embedding
STORED = {"qwen2": torch.bfloat16}  # else fp32
SHARDS = {"llama_biased": "10KB"}  # else one file


def exact_rmsnorm(self, x):
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


def make_exact(model):
    """Replaces the RMSNorm of the model's classes, after a comparison."""
    for module in model.modules():
        kind = type(module)
        if kind.__name__.endswith("RMSNorm") and kind.forward is not exact_rmsnorm:
            x = torch.randn(5, module.weight.numel(), dtype=torch.float64)
            assert torch.allclose(kind.forward(module, x), exact_rmsnorm(module, x), rtol=0, atol=1e-6)
            kind.forward = exact_rmsnorm


def initialize(model, generator, dtype):
    """Nothing is zero or one, so that what is left out shows; the dtype holds every value."""
    for name, p in model.named_parameters():
        scale, mean = 0.3 if p.ndim == 2 else 0.1, 0.0
        if p.ndim == 1 and name.endswith("weight"):
            scale, mean = 0.3, 1.0
        values = mean + scale * torch.randn(p.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            p.copy_(values.to(dtype).double())


def run(model, windows):
    """Token windows (B, T+1) -> logits (B, T, V), losses (B, T)."""
    tokens, targets = windows[:, :-1], windows[:, 1:]
    logits = model(input_ids=tokens).logits
    assert logits.dtype == torch.float64
    return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


def rows_normalized(rows):
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + NORM_EPS)


def normalize_embedding(model, configure, settings):
    """Puts the norm behind the embedding. Returns the model of the class that computes the same."""
    plain = type(model)(configure(**SHARED, **{**settings, "tie_word_embeddings": False}, embed_norm=True)).double().eval()
    raw = model.model.embed_tokens.weight
    with torch.no_grad():
        plain.load_state_dict({**model.state_dict(), "model.embed_tokens.weight": rows_normalized(raw), "lm_head.weight": raw})
    model.model.embed_tokens.register_forward_hook(lambda module, given, rows: rows_normalized(rows))
    tokens = torch.arange(MAX_T)[None]
    assert torch.allclose(plain(input_ids=tokens).logits, model(input_ids=tokens).logits, rtol=0, atol=1e-5)
    return plain


def copies(model, prefix, of, in_file):
    return {prefix + in_file.get(name, name): of(p).detach().clone() for name, p in model.named_parameters()}


def generate(name, directory, windows, learning_rates):
    make, configure, clip, settings = MODELS[name]
    model = make(configure(**SHARED, **settings))
    model.eval()
    folder = os.path.join(directory, "tiny_" + name)
    dtype = STORED.get(name, torch.float32)
    initialize(model, torch.Generator().manual_seed(SEED + list(MODELS).index(name)), dtype)
    saved, in_file = model, {}
    if name == "normed":
        saved, in_file = normalize_embedding(model.double(), configure, settings), {"model.embed_tokens.weight": "lm_head.weight"}
    copy.deepcopy(saved).to(dtype).save_pretrained(folder, max_shard_size=SHARDS.get(name, "1GB"))
    os.remove(os.path.join(folder, "generation_config.json"))
    model.double()
    model.config.dtype = torch.float64
    make_exact(model)
    parameters = list(model.parameters())
    optimizer = adamw(parameters, WEIGHT_DECAY)
    values, step_losses, norms = {"windows": windows}, [], []
    for step, (batch, lr) in enumerate(zip(windows, learning_rates)):
        optimizer.zero_grad()
        logits, losses = run(model, batch)
        losses.mean().backward()
        if step == 0:
            values.update({"logits": logits.detach(), "losses": losses.detach(), **copies(model, "grad.", lambda p: p.grad, in_file)})
        norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in parameters)))
        step_losses.append(float(losses.mean().detach()))
        for p in parameters:
            p.grad *= min(1.0, clip / norms[-1])
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    assert max(norms) > 1.1 * clip and min(norms) < clip, f"{name}: clipped and free steps are wanted: {norms}"
    values.update({"adamw": [BETA1, BETA2, EPS, WEIGHT_DECAY, float(np.float32(clip))], "learning_rates": learning_rates,
                   "step_losses": step_losses, "norms": norms, **copies(model, "final.", lambda p: p, in_file)})
    write_safetensors(os.path.join(directory, name + ".safetensors"), values)
    print(f"{name}: losses {step_losses[0]:.6f} .. {step_losses[-1]:.6f}, norms {min(norms):.3f} .. {max(norms):.3f}")


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else "test/golden"
    torch.set_num_threads(1)  # one order of summation
    windows = torch.randint(V, (STEPS, B, T + 1), generator=torch.Generator().manual_seed(SEED))
    learning_rates = [float(np.float32(1e-3 * (1 + step / 10))) for step in range(STEPS)]
    for name in MODELS:
        generate(name, directory, windows, learning_rates)


if __name__ == "__main__":
    main()
