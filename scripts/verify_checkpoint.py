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

try:
    import numpy as np
except ImportError as missing:
    if __name__ == "__main__":
        sys.exit(f"verify_checkpoint: {missing}; apt-get install python3-numpy, and run it with /usr/bin/python3")
    raise

XXH3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
XXH3.restype, XXH3.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}
OPTIMIZERS = {"adamw": "F32", "adamw8bit": "U8", "adamw-bf16": "BF16", "adamw-kahan": "BF16",  # type of their moments
              "lion": "F32", "sgd": "F32", "adafactor": None, "muon": "F32"}
BLOCK = [("ln_1.weight", "C"), ("ln_1.bias", "C"), ("attn.c_attn.weight", "C 3C"), ("attn.c_attn.bias", "3C"),
         ("attn.c_proj.weight", "C C"), ("attn.c_proj.bias", "C"), ("ln_2.weight", "C"), ("ln_2.bias", "C"),
         ("mlp.c_fc.weight", "C 4C"), ("mlp.c_fc.bias", "4C"), ("mlp.c_proj.weight", "4C C"), ("mlp.c_proj.bias", "C")]


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


def to_bf16(values):  # to nearest even
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def model_shapes(config):
    C, L = config["n_embd"], config["n_layer"]
    size = {"C": C, "3C": 3 * C, "4C": 4 * C}
    shapes = {"wte.weight": (config["vocab_size"], C), "wpe.weight": (config["n_positions"], C)}
    shapes |= {f"h.{n}.{name}": tuple(size[s] for s in shape.split()) for name, shape in BLOCK for n in range(L)}
    shapes |= {"ln_f.weight": (C,), "ln_f.bias": (C,)}
    return {"transformer." + name: shape for name, shape in shapes.items()}


def check_trainer(directory):
    raw = (directory / "trainer.json").read_bytes()
    t = load_json(directory / "trainer.json")
    need(t["format"] in (1, 2), f"format {t['format']}")
    seal = re.fullmatch(rb'(.*),\n  "xxh3": "([0-9a-f]{16})"\n}\n', raw, re.S)
    need(t["format"] == 1 and "xxh3" not in t or seal and xxh3(seal[1]) == seal[2].decode(), "trainer.json: wrong checksum")
    known = {"format", "step", "position", "T", "seed", "best_val_loss", "eot", "model", "optimizer", "optimizer_start",
             "tuning", "data", "control", "options", "files", "xxh3"}
    need(set(t) <= known, f"trainer.json: unknown {set(t) - known}")
    need(whole(t["step"], 0) and f"step_{t['step']:08d}" == directory.name, f"step {t['step']} in {directory.name}")
    need(whole(t["position"], t["step"]) and whole(t["T"], 1), "position or T")
    need(re.fullmatch(r"\d{1,20}", t["seed"]) and int(t["seed"]) < 2**64, f"seed {t['seed']}")
    need(t["best_val_loss"] is None or number(t["best_val_loss"]) >= 0, f"best_val_loss {t['best_val_loss']}")
    need(whole(t["eot"], -1, 2**31 - 1) and whole(t.get("optimizer_start", 0), 0, t["step"]), "eot or optimizer_start")
    need(t.get("optimizer", "adamw") in OPTIMIZERS, f"optimizer {t['optimizer']}")
    c = t["control"]
    need(all(number(c[k]) is not None for k in ("loss", "norm", "grad_factor", "loss_z", "norm_z")), "control: no number")
    need(0 < number(c["loss_scale"]) <= 2**24, f"loss_scale {c['loss_scale']}")
    need(whole(c["skip"], 0, 3) and whole(c["bad_tensor"], -1), "skip or bad_tensor")
    need(all(whole(c[k], 0, t["step"]) for k in ("skipped", "good_steps")), "skipped or good_steps")
    for w in (c["loss_window"], c["norm_window"]):
        need(whole(w["count"], 0, 128) and len(w["values"]) == 128, "a window of the outlier detector")
        need(w["next"] == w["count"] if w["count"] < 128 else whole(w["next"], 0, 127), "next of a window")
        need(all(math.isfinite(number(v)) for v in w["values"]), "values of a window")
    for name, facts in t["files"].items():
        data = np.memmap(directory / name, np.uint8, "r")
        need(len(data) == facts["bytes"], f"{name}: {len(data)} bytes, expected {facts['bytes']}")
        need(xxh3(data) == facts["xxh3"], f"{name}: checksum {xxh3(data)}, expected {facts['xxh3']}")
    need({"model.safetensors", "config.json", "optimizer.safetensors"} <= set(t["files"]), "files are not listed")
    return t


def check_optimizer(state, metadata, shapes, optimizer):
    """Type and shape of each tensor by its name, and that none is missing. Returns the rounding errors of the weights."""
    need(metadata.get("optimizer", "adamw") == optimizer, f"optimizer.safetensors is of {metadata}, not {optimizer}")
    ours = {n: s if not re.search(r"c_(attn|proj|fc)\.weight", n) else s[::-1] for n, s in shapes.items()}
    wanted = {"fp8.slots"}
    for name, shape in ours.items():
        kind, matrix = OPTIMIZERS[optimizer], len(shape) == 2
        kept = []
        if kind:
            kept = ["exp_avg"] + ["exp_avg_sq"] * (optimizer.startswith("adamw"))
        elif matrix:
            kept = ["exp_avg_sq_row", "exp_avg_sq_col"]
        else:
            kept = ["exp_avg_sq"]
        for prefix in kept:
            need(f"{prefix}.{name}" in state, f"optimizer.safetensors: {prefix}.{name} is missing")
        wanted |= {f"{p}.{name}" for p in kept + ["exp_avg_scale", "exp_avg_sq_scale", "exp_avg_sq", "weight_error"]}
    for full, (kind, shape, values) in state.items():
        need(full in wanted, f"optimizer.safetensors: {full} is not part of {optimizer}")
        if full == "fp8.slots":
            continue
        prefix, name = full.split(".", 1)
        base = ours[name]
        padded = (-(-base[0] // 128) * 128, base[1]) if name.endswith("wte.weight") else base  # what codes cover
        expected = {"exp_avg_sq_row": padded[:1], "exp_avg_sq_col": base[-1:], "exp_avg_scale": (-(-math.prod(padded) // 256),),
                    "exp_avg_sq_scale": (-(-math.prod(padded) // 256),)}.get(prefix, padded if kind == "U8" else base)
        need(shape == expected, f"optimizer.safetensors: {full} is {shape}, expected {expected}")
        need(kind in ("F32", "BF16", "U8") or prefix == "weight_error", f"optimizer.safetensors: {full} is {kind}")
        if kind == "U8":
            need(f"{prefix}_scale.{name}" in state, f"optimizer.safetensors: {full} has no scales")
        else:
            numbers = as_fp32(kind, values)
            need(np.isfinite(numbers).all(), f"optimizer.safetensors: {full} has a value that is not finite")
            need(prefix in ("exp_avg", "weight_error") or (numbers >= 0).all(), f"optimizer.safetensors: {full} is negative")
    return {n.split(".", 1)[1]: v for n, v in state.items() if n.startswith("weight_error.")}


def check_weights(weights, shapes, kinds):
    need(list(weights) == list(shapes), f"tensors: {sorted(set(weights) ^ set(shapes)) or 'in another order'}")
    for name, (kind, shape, values) in weights.items():
        need(shape == shapes[name] and kind in kinds, f"{name} is {kind} {shape}, expected {kinds} {shapes[name]}")
        need(np.isfinite(as_fp32(kind, values)).all(), f"{name} has a value that is not finite")


def check_rounding(weights, errors, options):
    """What a run keeps as its weights follows from the file: the value less its rounding error, exactly of the error's type;
    without master weights the value itself is of the compute type."""
    low = {"bf16": "BF16", "fp16": "F16"}.get(options.get("dtype"))
    for name, (_, _, values) in weights.items():
        kind, exact = (low, values) if name not in errors else (errors[name][0], None)
        if name in errors:
            error = as_fp32(kind, errors[name][2])
            error = error.reshape(errors[name][1]).T.ravel() if re.search(r"c_(attn|proj|fc)\.weight", name) else error
            exact = values - error
        elif not low or options.get("master-weights", 1):
            continue
        back = as_fp32("BF16", to_bf16(exact)) if kind == "BF16" else exact.astype(np.float16).astype(np.float32)
        need((back == exact).all(), f"{name}: {(back != exact).sum()} values are no {kind} weight with their rounding error")


def check_export(directory, weights, shapes):
    exported, _ = tensors(directory / "model.safetensors")
    check_weights(exported, shapes, ("F32", "F16", "BF16"))
    for name, (kind, _, values) in exported.items():
        master = weights[name][2]
        same = {"F32": lambda: master.view(np.uint32) == values.view(np.uint32), "BF16": lambda: to_bf16(master) == values,
                "F16": lambda: master.astype(np.float16).view(np.uint16) == values.view(np.uint16)}[kind]()
        need(same.all(), f"{directory}: {name} differs from the checkpoint's weights at {(~same).sum()} places")


def verify(path, export=None):
    steps = sorted(path.glob("step_*[0-9]"), key=lambda p: int(p.name[5:])) if not (path / "trainer.json").exists() else [path]
    need(steps, "no checkpoint")
    directory = steps[-1].resolve()
    t = check_trainer(directory)
    shapes = model_shapes(load_json(directory / "config.json"))
    weights, _ = tensors(directory / "model.safetensors")
    check_weights(weights, shapes, ("F32",))
    state, metadata = tensors(directory / "optimizer.safetensors")
    check_rounding(weights, check_optimizer(state, metadata, shapes, t.get("optimizer", "adamw")), t["options"])
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
            what = f"field {fault} is missing" if isinstance(fault, KeyError) else fault
            faults += 1
            print(f"{path}: {what}", file=sys.stderr)
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
