#!/usr/bin/env python3
"""Verifies a checkpoint without any code of the trainer, by doc/file_formats.md: checksums, fields and ranges of trainer.json,
names, types and shapes of all tensors, finite values, and that master values and weights agree.

    scripts/verify_checkpoint.py DIR [...]          DIR: a step_* directory, or a run's, of which the newest is meant
    scripts/verify_checkpoint.py DIR --export DIR   also: an exported directory has these weights, rounded to its type

One line a checkpoint. Exit code 0: all are valid; 1: the first fault of each that is not is named. Needs numpy and libxxhash.
"""
import argparse
import ctypes
import json
import math
import re
import sys
from pathlib import Path

import tool

try:
    import numpy as np
    XXH3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
except (ImportError, OSError) as missing:
    if __name__ == "__main__":
        sys.exit(f"verify_checkpoint: {missing}; apt-get install python3-numpy libxxhash0, and run it with /usr/bin/python3")
    raise

XXH3.restype, XXH3.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}
TRANSPOSED = r"^transformer\..*c_(attn|proj|fc)\.weight"  # the optimizer's state of these is (out, in)
MATRIX = r"(c_attn|c_fc|_?proj)\.weight"  # of a block
OPTIMIZERS = {"adamw": "F32", "adamw8bit": "U8", "adamw-bf16": "BF16", "adamw-kahan": "BF16",  # type of their moments
              "lion": "F32", "sgd": "F32", "adafactor": None, "muon": "F32"}
BLOCK = [("ln_1.weight", "C"), ("ln_1.bias", "C"), ("attn.c_attn.weight", "C 3C"), ("attn.c_attn.bias", "3C"),
         ("attn.c_proj.weight", "C C"), ("attn.c_proj.bias", "C"), ("ln_2.weight", "C"), ("ln_2.bias", "C"),
         ("mlp.c_fc.weight", "C FF"), ("mlp.c_fc.bias", "FF"), ("mlp.c_proj.weight", "FF C"), ("mlp.c_proj.bias", "C")]


def need(condition, text):
    if not condition:
        raise ValueError(text)


def whole(value, low, high=2**53 - 1):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value) and low <= value <= high


def number(value):
    return float(value) if value in ("nan", "inf", "-inf") or (type(value) in (int, float) and math.isfinite(value)) else None


def xxh3(data):
    return "%016x" % XXH3(np.frombuffer(data, np.uint8).ctypes.data if len(data) else None, len(data))


def load_json(path):
    def unique(pairs):
        need(len(pairs) == len(dict(pairs)), f"{path.name}: a field is stated twice")
        return dict(pairs)
    return json.loads(path.read_bytes(), object_pairs_hook=unique)


def tensors(path):
    """{name: (type, shape, values)} and the metadata; the data is covered once, in order."""
    data = np.memmap(path, np.uint8, "r")
    length = int(data[:8].view("<u8")[0])
    need(length <= len(data) - 8, f"{path.name}: a header of {length} bytes")
    header, at, out = json.loads(bytes(data[8:8 + length])), 8 + length, {}
    metadata = header.pop("__metadata__", {})
    for name, e in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = (8 + length + o for o in e["data_offsets"])
        size = math.prod(e["shape"]) * np.dtype(TYPES[e["dtype"]]).itemsize
        need(begin == at and end - begin == size, f"{path.name}: {name} is at {begin} to {end}, expected {size} bytes at {at}")
        out[name], at = (e["dtype"], tuple(e["shape"]), data[begin:end].view(TYPES[e["dtype"]])), end
    need(at == len(data), f"{path.name}: {len(data) - at} bytes after the last tensor")
    return out, metadata


def as_fp32(kind, values):
    return (values.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else values.astype(np.float32)


def rounded(kind, values):  # to nearest even
    if kind != "BF16":
        return values.astype(TYPES[kind])
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def gpt2_layout(config):
    C, L = config["n_embd"], config["n_layer"]
    size = {"C": C, "3C": 3 * C, "FF": config.get("n_inner") or 4 * C}
    shapes = {"wte.weight": (config["vocab_size"], C), "wpe.weight": (config["n_positions"], C)}
    shapes |= {f"h.{n}.{name}": tuple(size[s] for s in shape.split()) for name, shape in BLOCK for n in range(L)}
    shapes |= {"ln_f.weight": (C,), "ln_f.bias": (C,)}
    return [("transformer." + name, {"transformer." + name: shape}) for name, shape in shapes.items()]


def class_layout(config):
    C, HS, act = config["hidden_size"], config["head_dim"], config["hidden_act"]
    Q, KV, FF = config["num_attention_heads"] * HS, config["num_key_value_heads"] * HS, config["intermediate_size"]
    fc, fcproj = {"gelu_pytorch_tanh": ("c_fc", "c_proj"), "silu": ("gate_up_proj", "down_proj")}.get(act, ("up_proj", "down_proj"))

    def norm(name):
        return [(f"{name}.{k}", {f"{name}.{k}": (C,)}) for k in ("weight", "bias") if k == "weight" or "norm_epsilon" in config]

    attention, everywhere = config["attention_bias"], config["use_bias"]
    has_bias = {"qkv_proj": attention or config.get("qkv_bias", config["model_type"] == "qwen2"), "o_proj": attention,
                fc: config["mlp_bias"], fcproj: config["mlp_bias"]}

    def linear(of, name, columns, parts):
        out = [(f"{of}.{name}.weight", {f"{of}.{part}.weight": (rows, columns) for part, rows in parts.items()})]
        biases = {f"{of}.{part}.bias": (rows,) for part, rows in parts.items()}
        return out + [(f"{of}.{name}.bias", biases)] * (everywhere or has_bias[name])

    block = norm("input_layernorm") + linear("self_attn", "qkv_proj", C, {"q_proj": Q, "k_proj": KV, "v_proj": KV})
    if config.get("qk_norm", config["model_type"] == "qwen3"):
        block += [(f"self_attn.{n}.weight", {f"self_attn.{n}.weight": (HS,)}) for n in ("q_norm", "k_norm")]
    block += linear("self_attn", "o_proj", Q, {"o_proj": C}) + norm("post_attention_layernorm")
    block += linear("mlp", fc, C, {"gate_proj": FF, "up_proj": FF} if act == "silu" else {fc: FF})
    block += linear("mlp", fcproj, FF, {fcproj: C})
    embedding = (config["vocab_size"], C)
    layout = [] if config.get("embed_norm") else [("embed_tokens.weight", {"embed_tokens.weight": embedding})]
    if not config["rope_theta"]:
        layout += [("embed_positions.weight", {"embed_positions.weight": (config["max_position_embeddings"], C)})]
    for name, parts in block:
        layout += [(f"layers.{n}.{name}", {f"layers.{n}.{k}": shape for k, shape in parts.items()})
                   for n in range(config["num_hidden_layers"])]
    layout = [("model." + name, {"model." + k: s for k, s in parts.items()}) for name, parts in layout + norm("norm")]
    if config.get("embed_norm"):  # the head is the embedding, before its norm
        need(not config["tie_word_embeddings"], "embed_norm and tie_word_embeddings are both true")
        return [("model.embed_tokens.weight", {"lm_head.weight": embedding}), *layout]
    return layout + [("lm_head.weight", {"lm_head.weight": embedding})] * (not config["tie_word_embeddings"])


def model_layout(config):
    """Of each tensor of the trainer its name in the optimizer's file, and {name: shape} of its parts, by rows, in the weights'."""
    return (gpt2_layout if config["model_type"] == "gpt2" else class_layout)(config)


def state_shape(name, parts):
    shapes = list(parts.values())
    return shapes[0][::-1] if re.search(TRANSPOSED, name) else (sum(s[0] for s in shapes), *shapes[0][1:])


def check_trainer(directory):
    raw = (directory / "trainer.json").read_bytes()
    t = load_json(directory / "trainer.json")
    seal = re.fullmatch(rb'(.*),\n  "xxh3": "([0-9a-f]{16})"\n}\n', raw, re.S)
    need(t["format"] == 2, f"format {t['format']}")
    need(seal and xxh3(seal[1]) == seal[2].decode(), "trainer.json: wrong checksum")
    known = {"format", "step", "position", "T", "seed", "best_val_loss", "eot", "learning_rate", "model", "optimizer",
             "tuning", "data", "control", "options", "files", "xxh3"}
    need(set(t) <= known, f"trainer.json: unknown {set(t) - known}")
    need(f"step_{t['step']:08d}" == directory.name, f"step {t['step']} in {directory.name}")
    need(re.fullmatch(r"\d{1,20}", t["seed"]) and int(t["seed"]) < 2**64, f"seed {t['seed']}")
    need(t["best_val_loss"] is None or number(t["best_val_loss"]) >= 0, f"best_val_loss {t['best_val_loss']}")
    need(t.get("learning_rate") is None or number(t["learning_rate"]) >= 0, f"learning_rate {t.get('learning_rate')}")
    need(t["optimizer"] in OPTIMIZERS, f"optimizer {t['optimizer']}")
    c, step = t["control"], t["step"]
    windows = [c["loss_window"], c["norm_window"]]
    for of, field, low, *high in [(t, "step", 0), (t, "position", step), (t, "T", 1), (t, "eot", -1, 2**31 - 1),
                                  (c, "updates", 0, step), (c, "skip", 0, 3), (c, "bad_tensor", -1),
                                  (c, "skipped", 0, step), (c, "good_steps", 0, step), *((w, "count", 0, 128) for w in windows)]:
        need(whole(of.get(field, 0), low, *high), f"{field} {of.get(field)}{' of a window' if of in windows else ''}")
    need(all(number(c[k]) is not None for k in ("loss", "norm", "grad_factor", "loss_z", "norm_z")), "control: no number")
    need(0 < number(c["loss_scale"]) <= 2**24, f"loss_scale {c['loss_scale']}")
    for w in windows:
        need(w["next"] == w["count"] if w["count"] < 128 else whole(w["next"], 0, 127), "next of a window")
        need(len(w["values"]) == 128 and all(math.isfinite(number(v)) for v in w["values"]), "values of a window")
    need({"model.safetensors", "config.json", "optimizer.safetensors"} <= set(t["files"]), "files are not listed")
    for name, facts in t["files"].items():
        data = np.memmap(directory / name, np.uint8, "r")
        found = {"bytes": len(data), "xxh3": xxh3(data)}
        need(found == facts, f"{name} has {found}, expected {facts}")
    return t


def check_optimizer(state, metadata, layout, optimizer):
    """Type and shape of each tensor by its name, and that none is missing. Returns the rounding errors of the weights."""
    need(metadata["optimizer"] == optimizer, f"optimizer.safetensors is of {metadata}, not {optimizer}")
    expected, errors = {}, {}
    for name, parts in layout:
        shape = padded = state_shape(name, parts)
        if name.endswith(("wte.weight", "embed_tokens.weight", "lm_head.weight")):
            padded = (-(-shape[0] // 128) * 128, shape[1])  # what codes cover
        if optimizer == "adafactor" and len(shape) == 2:
            expected |= {f"exp_avg_sq_row.{name}": (("F32",), padded[:1]), f"exp_avg_sq_col.{name}": (("F32",), shape[1:])}
            continue
        second = "adam" in optimizer or optimizer == "adafactor" or optimizer == "muon" and not re.search(MATRIX, name)
        for moment in ["exp_avg"] * (optimizer != "adafactor") + ["exp_avg_sq"] * second:
            codes = state[f"{moment}.{name}"][0] == "U8"
            expected[f"{moment}.{name}"] = ("F32", OPTIMIZERS[optimizer]), padded if codes else shape
            if codes:
                expected[f"{moment}_scale.{name}"] = ("F32",), (-(-math.prod(padded) // 256),)
        if f"weight_error.{name}" in state:
            expected[f"weight_error.{name}"], errors[name] = (("BF16", "F16"), shape), state[f"weight_error.{name}"]
    odd = set(state) - {"fp8.slots"} ^ set(expected)
    need(not odd, f"optimizer.safetensors: {sorted(odd)} of {optimizer}")
    for name, (kinds, shape) in expected.items():
        kind, found, values = state[name]
        need(kind in kinds and found == shape, f"optimizer.safetensors: {name} is {kind} {found}, expected {kinds} {shape}")
        if kind != "U8":
            need(np.isfinite(as_fp32(kind, values)).all(), f"optimizer.safetensors: {name} has a value that is not finite")
            signed = name.startswith(("exp_avg.", "weight_error."))
            need(signed or (as_fp32(kind, values) >= 0).all(), f"optimizer.safetensors: {name} is negative")
    return errors


def check_weights(weights, shapes, kinds):
    need(list(weights) == list(shapes), f"tensors: {sorted(set(weights) ^ set(shapes)) or 'in another order'}")
    for name, (kind, shape, values) in weights.items():
        need(shape == shapes[name] and kind in kinds, f"{name} is {kind} {shape}, expected {kinds} {shapes[name]}")
        need(np.isfinite(as_fp32(kind, values)).all(), f"{name} has a value that is not finite")


def check_rounding(weights, layout, errors, options):
    """What a run keeps as its weights follows from the file: the value less its rounding error, exactly of the error's type;
    without master weights the value itself is of the compute type."""
    low = {"bf16": "BF16", "fp16": "F16"}.get(options.get("dtype"))
    for name, parts in layout:
        values = np.concatenate([weights[part][2] for part in parts])
        if name in errors:
            kind, shape, error = errors[name]
            error = as_fp32(kind, error)
            values = values - (error.reshape(shape).T.ravel() if re.search(TRANSPOSED, name) else error)
        elif low and not options.get("master-weights", 1):
            kind = low
        else:
            continue
        wrong = (as_fp32(kind, rounded(kind, values)) != values).sum()
        need(wrong == 0, f"{name}: {wrong} values are no {kind} weight with their rounding error")


def check_norm_of_embedding(weights):
    """Each program rounds the norm and the product: to a unit in the last place each."""
    head = weights["lm_head.weight"]
    rows = head[2].reshape(head[1]).astype(np.float64)
    norms = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-7)
    found = weights["model.embed_tokens.weight"][2].reshape(head[1])
    need((np.abs(found - norms) <= 2**-22 * np.abs(norms)).all(), "model.embed_tokens.weight is not the norm of lm_head.weight's rows")


def check_export(directory, weights, shapes):
    exported, _ = tensors(directory / "model.safetensors")
    check_weights(exported, shapes, ("F32", "F16", "BF16"))
    for name, (kind, _, values) in exported.items():
        same = np.array_equal(rounded(kind, weights[name][2]).view(np.uint8), values.view(np.uint8))
        need(same, f"{directory}: {name} differs from the checkpoint's weights")


def verify(path, export=None):
    steps = sorted(path.glob("step_*[0-9]"), key=lambda p: int(p.name[5:])) if not (path / "trainer.json").exists() else [path]
    need(steps, "no checkpoint")
    directory = steps[-1].resolve()
    t = check_trainer(directory)
    config = load_json(directory / "config.json")
    layout = model_layout(config)
    shapes = {name: shape for _, parts in layout for name, shape in parts.items()}
    if config.get("embed_norm"):
        shapes["model.embed_tokens.weight"] = shapes["lm_head.weight"]
    weights, _ = tensors(directory / "model.safetensors")
    check_weights(weights, shapes, ("F32",))
    if config.get("embed_norm"):
        check_norm_of_embedding(weights)
    state, metadata = tensors(directory / "optimizer.safetensors")
    check_rounding(weights, layout, check_optimizer(state, metadata, layout, t["optimizer"]), t["options"])
    if export:
        check_export(export, weights, shapes)
    count = sum(math.prod(s) for s in shapes.values())
    return f"{directory}: step {t['step']}, {count} weights, {t.get('optimizer', 'adamw')}, {len(state)} tensors of state: valid"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--export", type=Path, metavar="DIR")
    options, faults = parser.parse_args(), 0
    for path in options.checkpoints:
        try:
            print(verify(path, options.export))
        except (ValueError, KeyError, TypeError, OSError) as fault:
            what = f"{fault} is missing" if isinstance(fault, KeyError) else fault
            faults += 1
            print(f"{path}: {what}", file=sys.stderr)
    return faults > 0


if __name__ == "__main__":
    tool.run(main)
