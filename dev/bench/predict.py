#!/usr/bin/env python3
"""The predicted time of a training step on a GPU, op by op, from the FLOP and bytes of its ops and the rates below; and,
next to it, a measured profile.

    dev/bench/predict.py [-e d12] [-b 64] [-t 1024] [--gpu "H200,A100 40GB"] [--trainer ./train_gpt2]
    dev/bench/predict.py ... --measured FILE    FILE: the profile.json of --profile, or the output of bench_ops
    dev/bench/predict.py --write | --check      the table of doc/gpu.md: write it, or fail if it is stale

The ops are the ops of llmc/ops.c in one micro-step without recomputation, with AdamW, fp32 gradients and master
weights; test/tools/test_predict.py compares their calls, FLOP and bytes with the trainer's own profile. Sizes, peaks
and bandwidths are the trainer's (--plan json). Nothing here was measured with this code.
"""
import argparse
import json
import math
import os
import re
import sys
from pathlib import Path

import gpu_tools as tools

DOC = tools.ROOT / "doc" / "gpu.md"
BEGIN, END = "<!-- made by dev/bench/predict.py -->", "<!-- end -->"

# --------------------------------------------------------------------------------------------------------------- rates

# As shares of the datasheet's peak and bandwidth: likely, worst, best. From what others measured on these GPUs (llm.c's
# steps, cuDNN, FlashAttention) and from instruction counts of our own kernels.
RATES = {
    "H200": {
        "matmul": (0.64, 0.59, 0.70),  # mean of the shapes below: at K = 768 a tile is mostly prologue and epilogue
        "attention forward": (0.267, 0.19, 0.29),
        "attention backward": (0.163, 0.133, 0.201),  # of 5 products; cuDNN's form that writes dS out, or ours
        "our attention forward": (0.192, 0.17, 0.22),
        "our attention backward": (0.159, 0.132, 0.195),
        "copy": (0.79, 0.74, 0.84),
        "layernorm backward": (0.74, 0.60, 0.81),  # 37 KB a multiprocessor on the way at any moment
        "cross-entropy": (0.76, 0.66, 0.83),
        "gelu in the epilogue": (0.79, 0.37, 0.84),  # bytes of the pre-activation; worst: the kernel, which is then taken
        "gelu' in the epilogue": (0.51, 0.24, 0.88),  # bytes of its operand
        "bias gradients": (0.76, 0.71, 2.3),  # best: in the epilogue of the weight gradient
        "launch": (2.5e-6, 4.5e-6, 1.5e-6),  # seconds
    },
    "A100 40GB": {
        "matmul": (0.745, 0.69, 0.79),
        "attention forward": (0.378, 0.30, 0.45),
        "attention backward": (0.348, 0.28, 0.40),
        "our attention forward": (0.378, 0.30, 0.45),
        "our attention backward": (0.348, 0.28, 0.40),
        "copy": (0.855, 0.80, 0.90),
        "layernorm backward": (0.80, 0.70, 0.86),
        "cross-entropy": (0.84, 0.74, 0.90),
        "gelu in the epilogue": None,  # expected to lose against the kernel
        "gelu' in the epilogue": None,
        "bias gradients": (0.845, 0.79, 0.90),
        "launch": (2.9e-6, 5e-6, 2e-6),
    },
}

# A matmul's rate over the mean, by weight: forward, input gradient, weight gradient. Short sums and narrow outputs cost.
FORWARD, INPUT, WEIGHT = range(3)
SHAPES = {"qkvw": (1.01, 1.06, 0.93), "attprojw": (0.935, 0.935, 0.885), "fcw": (1.01, 1.075, 0.98),
          "fcprojw": (1.075, 1.075, 0.98), "wte": (1.04, 1.09, 1.05)}  # fmt: skip

# A kernel in place of an epilogue moves so many times the bytes: reads and writes, or reads two tensors and writes one.
KERNELS = {"gelu in the epilogue": 2, "gelu' in the epilogue": 3}

# 124M at B=64, T=1024: likely, worst, best. PyTorch: compiled, bf16 autocast, fused AdamW; SDPA as it chooses, or cuDNN's.
STATED = {"H200": {"PyTorch, tokens/s": (450e3, 400e3, 520e3), "PyTorch with cuDNN's attention, tokens/s": (481e3, 428e3, 556e3),
                   "start without tuning file, s": (5.5, 6, 5), "start with it, s": (2.8, 3, 2.5)}}  # fmt: skip

# Kernels that a call of an op launches, where it is not one.
LAUNCHES = {"matmul_backward_weight": 2, "matmul_gelu_forward": 2, "attention_backward": 3,
            "head_loss_backward": 10, "embedding_backward": 4, "gradient_sumsq": 2}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------- ops


class Model:
    """Sizes of a run: what --plan json says, and how many bytes its numbers have."""

    def __init__(self, plan, dtype):
        for name in ("L", "C", "NH", "Vp", "max_T", "parameters"):
            setattr(self, name, plan["model"][name])
        self.B, self.T = plan["run"]["batch_size"], plan["run"]["T"]
        self.size = {"fp32": 4, "fp16": 2, "bf16": 2}[dtype]
        self.master = self.size < 4
        self.token_bytes = 2 if plan["model"]["V"] <= 1 << 16 else 4


class Row:
    """The calls of one op on one weight, as in a profile; parts: (rate, FLOP or bytes in all calls, factor of the rate)."""

    def __init__(self, op, tensor, calls, flops, moved, *parts):
        """flops, moved and parts: of one call. Without parts: bytes at the rate of a copy."""
        self.op, self.tensor, self.calls, self.flops, self.bytes = op, tensor, calls, calls * flops, calls * moved
        self.parts = [(rate, calls * amount, factor) for rate, amount, factor in parts or [("copy", moved, 1)]]
        self.launches = calls * LAUNCHES.get(op, 1)


def step(m):
    """The rows of a training step, in its order."""
    L, C, B, N, s = m.L, m.C, m.B, m.B * m.T, m.size
    u, tokens, statistics, lse = N * C * s, 4 * N, 8 * N, 4 * B * m.NH * m.T
    touched, tensors = min(N, m.Vp) * C, 4 + 12 * L
    dims = {"qkvw": (C, 3 * C), "attprojw": (C, C), "fcw": (C, 4 * C), "fcprojw": (4 * C, C)}

    def product(op, weight, kind, moved, *parts):
        IC, OC = dims[weight]
        flops = 2 * N * IC * OC
        return Row(op, weight, L, flops, (N * IC + N * OC + IC * OC) * s + moved,
                   ("matmul", flops, SHAPES[weight][kind]), *parts)

    def forward(weight):
        return product("matmul_forward", weight, FORWARD, dims[weight][1] * s)

    def forward_onto_residual(weight):
        return product("matmul_residual_forward", weight, FORWARD, C * s + u, ("copy", u, 1))

    def input_gradient(weight):
        return product("matmul_backward_input", weight, INPUT, 0)

    def weight_gradient(weight):
        """attproj's and fcproj's bias gradients are sums of layernorm_backward, fc's of gelu' where that is a kernel."""
        IC, OC = dims[weight]
        if weight in ("attprojw", "fcprojw"):
            row = product("matmul_backward_weight", weight, WEIGHT, (4 - s) * IC * OC)
            row.launches = row.calls
            return row
        return product("matmul_backward_weight", weight, WEIGHT, (4 - s) * IC * OC + 4 * OC,
                       ("bias gradients" if weight == "qkvw" else "bias gradient of fc", N * OC * s, 1))

    def normed(tensor, calls):
        return Row("layernorm_forward", tensor, calls, 0, 2 * u + 2 * C * s + statistics)

    def normed_backward(tensor, calls, units):
        moved = units * u + C * s + statistics + 12 * C
        return Row("layernorm_backward", tensor, calls, 0, moved, ("layernorm backward", moved, 1))

    scores, logits = N * C * (m.T + 1), 2 * N * C * m.Vp
    return [
        Row("batch_unpack", "windows", 1, 0, B * (m.T + 1) * m.token_bytes + 2 * tokens),
        Row("embedding_forward", "residual1", 1, 0, tokens + touched * s + m.T * C * s + u),
        normed("ln1w", L),
        forward("qkvw"),
        Row("attention_forward", "qkv", L, 2 * scores, 4 * u + lse, ("attention forward", 2 * scores, 1)),
        forward_onto_residual("attprojw"),
        normed("ln2w", L),
        product("matmul_gelu_forward", "fcw", FORWARD, 4 * C * s + 4 * u, ("gelu in the epilogue", 4 * u, 1)),
        forward_onto_residual("fcprojw"),
        normed("lnfw", 1),
        Row("head_loss_backward", "wte", 1, 3 * logits, 2 * u + m.Vp * C * (s + 4) + 2 * tokens,
            *(("matmul", logits, SHAPES["wte"][kind]) for kind in (FORWARD, INPUT, WEIGHT)),
            ("cross-entropy", 2 * N * m.Vp * s, 1)),
        Row("sequence_losses", "losses", 1, 0, 4 * N + 4 * B),
        normed_backward("lnfw", 1, 3),
        Row("gradient_add", "dresidual_sum", L, 0, 8 * C),
        weight_gradient("fcprojw"),
        product("matmul_gelu_backward_input", "fcprojw", INPUT, 4 * u, ("gelu' in the epilogue", 4 * u, 1)),
        weight_gradient("fcw"), input_gradient("fcw"),
        normed_backward("ln2w", L, 4),
        weight_gradient("attprojw"), input_gradient("attprojw"),
        Row("attention_backward", "qkv", L, 5 * scores, 8 * u + lse, ("attention backward", 5 * scores, 1)),
        weight_gradient("qkvw"), input_gradient("qkvw"),
        normed_backward("ln1w", L, 4),
        Row("embedding_backward", "dresidual", 1, 0, u + tokens + 8 * touched + 4 * m.max_T * C),
        Row("tensor_fill", "sequence_losses", 1, 0, 4 * B),
        Row("gradient_sumsq", "sumsq", 1, 0, 4 * m.parameters + 4 * tensors),
        Row("step_control_update", "sumsq", 1, 0, 2048 + 4 * tensors + 4 * B),
        Row("optimizer_update", "weights", 1, 0, m.parameters * (28 + (s if m.master else 0))),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- prediction


class Refused(Exception):
    """With the one line that is said."""


def plan_of(trainer, gpus, model, B, T, seconds=60):
    """--plan json of these GPUs (names of the trainer's table, with commas between them)."""
    finished = tools.run([trainer, "--plan", "json", "--gpu", gpus, "-e", model, "-b", B, "-t", T, "-s", 0], seconds)
    if finished.status != 0:
        raise Refused(f"no plan to predict from: {tools.reason(finished)}")
    try:
        plan = json.loads(finished.stdout)
        for device in plan["devices"]:
            Model(plan, device["dtype"])
            sum(device[key] for key in ("peak_flops", "bandwidth")) + device["memory"]["total"] + plan["model"]["V"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(f"no plan to predict from: {trainer} --plan json printed no plan") from None
    return plan


def gpu_named(text):
    """The GPU of RATES that a driver calls so, such as "NVIDIA A100-SXM4-40GB"; None: there are no rates for it."""
    words = set(re.split(r"[^a-z0-9]+", text.lower()))
    return next((name for name in RATES if set(name.lower().split()) <= words), None)


class Predicted:
    """A step on one device of a plan. safe: as with --attention own -ge 0."""

    def __init__(self, plan, device, safe=False):
        if device["name"] not in RATES:
            raise Refused(f"no rates are assumed for {device['name']}, only for {', '.join(RATES)}")
        self.name, self.rates, self.device, self.safe = device["name"], RATES[device["name"]], device, safe
        self.model = Model(plan, device["dtype"])
        self.rows = step(self.model)
        self.gaps = ("launch", sum(row.launches for row in self.rows), 1)
        parts = [part for row in self.rows for part in row.parts] + [self.gaps]
        self.ms = self.ranges(parts)
        # Of the whole: what is computed at one rate errs together, different rates do not.
        names = sorted({rate for rate, _, _ in parts})
        errors = [self.ranges([part for part in parts if part[0] == name]) for name in names]
        self.range = [self.ms[0] + sign * math.sqrt(sum((ms[which] - ms[0]) ** 2 for ms in errors))
                      for sign, which in ((-1, 2), (1, 1))]
        self.tokens = self.model.B * self.model.T

    def total(self, parts, which=0):
        """Milliseconds; which: 0 likely, 1 worst, 2 best."""
        return 1e3 * sum(self.part(*part, which) for part in parts)

    def part(self, rate, amount, factor, which):
        if rate in KERNELS and (self.safe or not self.rates[rate]):
            rate, amount = "copy", KERNELS[rate] * amount
        if rate == "bias gradient of fc":
            has_kernel = self.safe or not self.rates["gelu' in the epilogue"]
            rate, amount = "bias gradients", 0 if has_kernel else amount
        if self.safe and rate.startswith("attention"):
            rate = f"our {rate}"
        share = self.rates[rate][which] * factor
        if rate == "launch":
            return amount * share
        return amount / (share * self.device["peak_flops" if "matmul" in rate or "attention" in rate else "bandwidth"])

    def ranges(self, parts):
        return [self.total(parts, which) for which in range(3)]

    def stated(self):
        """What is not computed, of the run that it is stated for."""
        m = self.model
        return STATED.get(self.name, {}) if (m.L, m.C, m.B, m.T) == (12, 768, 64, 1024) else {}

    def tokens_per_second(self):
        """Likely, worst, best."""
        return [self.tokens / ms * 1e3 for ms in (self.ms[0], self.range[1], self.range[0])]


def grouped(rows):
    """[(name, rows)]: matmuls by op and weight, the rest by op, what takes next to nothing together."""
    groups = {}
    for row in rows:
        small = row.flops == 0 and row.op not in ("layernorm_forward", "layernorm_backward", "optimizer_update",
                                                  "gradient_sumsq", "embedding_forward", "embedding_backward")  # fmt: skip
        name = "other ops" if small else f"{row.op} {row.tensor}" if "matmul" in row.op else row.op
        groups.setdefault(name, []).append(row)
    return sorted(groups.items(), key=lambda group: group[0] == "other ops")


def op_table(predicted):
    """What the page shows: the first device with range and share, the others with their time."""
    first = predicted[0]
    columns = ["op", "calls", "GB", "TFLOP", f"{first.name}, ms", "range", "share", *(f"{p.name}, ms" for p in predicted[1:])]
    lines = []

    def add(name, calls, moved, flops, ranges, others):
        lines.append((name, calls, f"{moved / 1e9:.1f}" if moved else "", f"{flops / 1e12:.2f}" if flops else "",
                      f"{ranges[0]:.2f}", f"{ranges[2]:.2f} to {ranges[1]:.2f}", f"{ranges[0] / first.ms[0]:.1%}",
                      *(f"{ms:.2f}" for ms in others)))  # fmt: skip

    for (name, rows), *others in zip(*(grouped(p.rows) for p in predicted)):
        parts = [part for row in rows for part in row.parts]
        add(f"`{name}`" if name != "other ops" else name, sum(row.calls for row in rows), sum(row.bytes for row in rows),
            sum(row.flops for row in rows), first.ranges(parts),
            [p.total(parts) for p in predicted[1:]])  # fmt: skip
    add("between ops", "", 0, 0, first.ranges([first.gaps]),
        [p.total([p.gaps]) for p in predicted[1:]])
    add("**step**", "", sum(row.bytes for row in first.rows), sum(row.flops for row in first.rows),
        [first.ms[0], first.range[1], first.range[0]], [p.ms[0] for p in predicted[1:]])
    return tools.table(columns, lines)


def said(plan, predicted):
    """The words before the table."""
    m = predicted[0].model
    rates = "; ".join(f"{p.name}: {p.tokens_per_second()[0] / 1e3:.0f}K tokens/s ({p.tokens_per_second()[1] / 1e3:.0f}K to "
                      f"{p.tokens_per_second()[2] / 1e3:.0f}K)" for p in predicted)
    return (f"{plan['model']['parameters'] / 1e6:.1f}M parameters, B={m.B}, T={m.T}, {predicted[0].device['dtype']}, "
            f"predicted, not measured. {rates}.")


def page(plan, predicted):
    return "\n".join([said(plan, predicted), "", *op_table(predicted)])


# ---------------------------------------------------------------------------------------------------------- comparison


MAX_BYTES = 1 << 26  # of a file with measurements: those of a large model are 20 KB


def number(value, what):
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e30:
        raise Refused(f"{what} is not a number of milliseconds, FLOP or bytes")
    return float(value)


def printable(text):
    return "".join(c if c.isprintable() else "?" for c in str(text))[:60]


def read_profile(profile):
    """Row (op, tensor) -> (ms, FLOP) of a profile.json, and the ms of the step without timing and of all ops."""
    found, all_ops = {}, 0.0
    ops = profile.get("ops") if isinstance(profile, dict) else None
    if not isinstance(ops, list):
        raise Refused("no profile: it has no list of ops")
    for op in ops:
        if not isinstance(op, dict) or not isinstance(op.get("op"), str) or not isinstance(op.get("tensor"), str):
            raise Refused("no profile: one of its ops has no name")
        key = (op["op"], op["tensor"])
        ms, flops = (number(op.get(part), f"{part} of {printable(op['op'])}") for part in ("ms", "flops"))
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + ms, before[1] + flops)
        all_ops += ms
    return found, number(profile.get("median_plain_step_ms"), "median_plain_step_ms"), all_ops


def beside(predicted, profile):
    """[(name, [likely, worst, best], measured)] of a profile.json: each op, what is between them, the step; then what was
    measured and not predicted. None for what is not known; one of the two may be None as a whole."""
    measured, step_ms, all_ops = read_profile(profile) if profile is not None else ({}, None, 0)
    rows, known = [], set()
    for name, group in grouped(predicted.rows) if predicted else []:
        parts, keys = [part for row in group for part in row.parts], {(row.op, row.tensor) for row in group}
        there = [measured[key] for key in keys if key in measured]
        flops, done = sum(row.flops for row in group), sum(flops for _, flops in there)
        if there and abs(done - flops) > 1e-6 * flops:
            raise Refused(f"the profile is of another shape: {name} computes {done:.4g} FLOP in it and {flops:.4g} in the "
                          "prediction; -e, -b and -t say of what")
        rows.append((name, predicted.ranges(parts), sum(ms for ms, _ in there) if there else None))
        known |= keys
    rest = {key: ms for key, (ms, _) in measured.items() if key not in known}
    rows += [(printable(f"{op} {tensor}"), None, ms) for (op, tensor), ms in sorted(rest.items())]
    rows.append(("between ops", predicted and predicted.ranges([predicted.gaps]),
                 None if step_ms is None else max(0.0, step_ms - all_ops)))
    return rows + [("step", predicted and [predicted.ms[0], predicted.range[1], predicted.range[0]], step_ms)]


def alone(predicted, lines):
    """The same of the lines of bench_ops, a call each."""
    rows = {(row.op, row.tensor): row for row in predicted.rows}
    products = {"forward": "matmul_forward", "input gradient": "matmul_backward_input", "weight gradient": "matmul_backward_weight"}
    others = {"fc forward with GELU": ("matmul_gelu_forward", "fcw"),
              "fcproj input gradient with GELU": ("matmul_gelu_backward_input", "fcprojw"),
              "attention forward": ("attention_forward", "qkv"), "attention backward": ("attention_backward", "qkv"),
              "layernorm forward": ("layernorm_forward", "ln2w"),
              "attproj forward": ("matmul_residual_forward", "attprojw"),
              "fcproj forward": ("matmul_residual_forward", "fcprojw"),
              "layernorm backward": ("layernorm_backward", "ln1w")}  # fmt: skip

    def parts_of(name):
        """(parts, calls, FLOP of the row where it is the whole)."""
        if name.startswith("head, chunks of "):
            row = rows["head_loss_backward", "wte"]
        elif name == "200 launches, replayed":
            return [("launch", 200, 1)], 1, 0
        elif name == "GELU forward":
            row = rows["matmul_gelu_forward", "fcw"]
            return [("copy", KERNELS[rate] * amount, factor) for rate, amount, factor in row.parts[1:]], row.calls, 0
        elif name in others:
            row = rows[others[name]]
        else:
            weight, _, kind = name.partition(" ")
            key = (products.get(kind), f"{weight}w")
            row = rows.get(key)
            if name in ("fc forward", "fcproj input gradient"):  # in a step they come with GELU
                row = rows["matmul_gelu_forward", "fcw"] if weight == "fc" else rows["matmul_gelu_backward_input", "fcprojw"]
                return row.parts[:1], row.calls, row.flops
        return (row.parts, row.calls, row.flops) if row else (None, 1, 0)

    result = []
    for line in lines:
        if not isinstance(line, dict) or not isinstance(line.get("op"), str):
            continue  # the first one tells of the device
        name, seconds, flops = line["op"], number(line.get("seconds"), "seconds"), number(line.get("flops"), "flops")
        parts, calls, expected = parts_of(name)
        if expected and abs(flops * calls - expected) > 1e-6 * expected:
            raise Refused(f"these figures are of another shape: {printable(name)} computes {flops:.4g} FLOP in them and "
                          f"{expected / calls:.4g} in the prediction; set the shape with -e, -b and -t")
        ranges = parts and [ms / calls for ms in predicted.ranges(parts)]
        result.append((printable(name), ranges, 1e3 * seconds))
    if not result:
        raise Refused("neither a profile.json nor lines of bench_ops")
    return result


def read_measured(path):
    """The object of a profile.json, or the list of the lines of bench_ops."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise Refused(f"{path}: larger than {MAX_BYTES >> 20} MiB, not a profile")
    text = data.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    except (ValueError, RecursionError):
        raise Refused(f"{path}: neither a profile.json nor lines of bench_ops") from None


def ratio(measured, ranges):
    return f"{measured / ranges[0]:.2f}" if measured is not None and ranges else "-"


def comparison(predicted, measured):
    rows = alone(predicted, measured) if isinstance(measured, list) else beside(predicted, measured)
    cells = [(name, f"{ranges[0]:.3f}" if ranges else "-", f"{ranges[2]:.3f} to {ranges[1]:.3f}" if ranges else "-",
              "-" if ms is None else f"{ms:.3f}", ratio(ms, ranges)) for name, ranges, ms in rows]  # fmt: skip
    return "\n".join(tools.table(["ms", "predicted", "range", "measured", "measured / predicted"], cells))


# ---------------------------------------------------------------------------------------------------------------- page


def replaced(text, made):
    if BEGIN not in text or END not in text[text.index(BEGIN):]:
        raise Refused(f"{DOC}: no '{BEGIN}' with '{END}' after it")
    start = text.index(BEGIN)
    return text[:start] + f"{BEGIN}\n{made}\n" + text[text.index(END, start):]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-e", "--model", default="d12")
    parser.add_argument("-b", "--batch-size", type=int, default=64, metavar="B")
    parser.add_argument("-t", "--context", type=int, default=1024, metavar="T")
    parser.add_argument("--gpu", default=",".join(RATES), help="names of the trainer's table; the first counts")
    parser.add_argument("--trainer", default=os.environ.get("TRAINER", tools.ROOT / "train_gpt2"))
    parser.add_argument("--measured", type=Path, metavar="FILE")
    page_options = parser.add_mutually_exclusive_group()
    page_options.add_argument("--write", action="store_true")
    page_options.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        plan = plan_of(options.trainer, options.gpu, options.model, options.batch_size, options.context)
        predicted = [Predicted(plan, device) for device in plan["devices"]]
        if options.measured:
            measured = read_measured(options.measured)
            try:
                print(comparison(predicted[0], measured))
            except Refused as why:
                raise Refused(f"{options.measured}: {why}") from None
            return 0
        made = page(plan, predicted)
        if not (options.write or options.check):
            print(made)
            return 0
        text = DOC.read_text()
        new = replaced(text, made)
        if options.write:
            DOC.write_text(new)
        elif new != text:
            raise Refused(f"{DOC}: its table is stale; run dev/bench/predict.py --write")
        return 0
    except Refused as why:
        print(f"predict.py: {why}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
