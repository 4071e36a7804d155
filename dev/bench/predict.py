#!/usr/bin/env python3
"""The predicted time of a training step on a GPU, op by op, as the trainer computes it from the FLOP and bytes of its
ops and the rates that it assumes (llmc/plan/plan_predict.c, --plan json); and, next to it, a measured profile.

    dev/bench/predict.py [-e d12] [-b 64] [-t 1024] [--gpu "H200,A100 40GB"] [--trainer ./train_gpt2]
    dev/bench/predict.py ... --measured FILE    FILE: the profile.json of --profile, or the output of bench_ops
    dev/bench/predict.py --write | --check      the table of dev/bench/README.md: write it, or fail if it is stale

Nothing here was measured with this code.
"""
import argparse
import json
import os
import re
import sys
from pathlib import Path

import gpu_tools as tools

DOC = tools.ROOT / "dev" / "bench" / "README.md"
BEGIN, END = "<!-- made by dev/bench/predict.py -->", "<!-- end -->"

GPUS = ("H200", "A100 40GB")  # of the page; the first counts
# Words of a driver's name -> the name in the trainer's table, of all GPUs whose rates plan_predict.c assumes.
NAMED = {("h200",): "H200", ("h100", "80gb", "hbm3"): "H100 SXM", ("a100", "40gb"): "A100 40GB", ("a100", "80gb"): "A100 80GB"}

# 124M at B=64, T=1024: likely, worst, best. PyTorch: compiled, bf16 autocast, fused AdamW; SDPA as it chooses, or cuDNN's.
STATED = {"H200": {"PyTorch, tokens/s": (450e3, 400e3, 520e3), "PyTorch with cuDNN's attention, tokens/s": (481e3, 428e3, 556e3),
                   "start without tuning file, s": (5.5, 6, 5), "start with it, s": (2.8, 3, 2.5)}}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- prediction


class Refused(Exception):
    """With the one line that is said."""


def plan_of(trainer, gpus, model, B, T, seconds=60, options=()):
    """--plan json of these GPUs (names of the trainer's table, with commas between them)."""
    command = [trainer, "--plan", "json", "--gpu", gpus, "-e", model, "-b", B, "-t", T, "-s", 0, *options]
    finished = tools.run(command, seconds)
    if finished.status != 0:
        raise Refused(f"no plan to predict from: {tools.reason(finished)}")
    try:
        plan = json.loads(finished.stdout)
        for device in plan["devices"]:
            rows_of(device), device["memory"]["total"], [plan["model"][name] for name in ("L", "C", "V", "parameters")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused(f"no plan to predict from: {trainer} --plan json printed no plan") from None
    return plan


def gpu_named(text):
    """The GPU that a driver calls so, such as "NVIDIA A100-SXM4-40GB"; None: no rates are assumed for it."""
    words = set(re.split(r"[^a-z0-9]+", text.lower()))
    return next((name for said, name in NAMED.items() if set(said) <= words), None)


class Row:
    """The calls of one op on one weight in a step; parts: (rate, milliseconds: likely, worst, best; None without rates)."""

    def __init__(self, op):
        self.op, self.tensor, self.calls, self.flops, self.bytes = (op[key] for key in ("op", "tensor", "calls", "flop", "bytes"))
        self.parts = [(part["rate"], milliseconds(part["seconds"])) for part in op["parts"]]


def milliseconds(seconds):
    return seconds and [1e3 * s for s in seconds]


def rows_of(device):
    return [Row(op) for op in device["predicted"]["ops"]]


def ranges(parts):
    """Of all together, each at its likely, worst and best rate."""
    return [sum(ms[which] for _, ms in parts) for which in range(3)]


class Predicted:
    """A step on one device of a plan."""

    def __init__(self, plan, device):
        self.name, self.device, self.plan = device["name"], device, plan
        said = device["predicted"]
        if not said["step_seconds"]:
            raise Refused(f"no rates are assumed for {device['name']} in {device['dtype']}")
        self.rows = rows_of(device)
        self.ms, self.gaps, self.launch = (milliseconds(said[f"{what}_seconds"]) for what in ("step", "between_ops", "launch"))
        copies = (part for op in said["ops"] for part in op["parts"] if part["rate"] == "copy")
        self.copy = next([ms / part["amount"] for ms in milliseconds(part["seconds"])] for part in copies)  # of a byte

    def gelu_bytes(self):
        """What the kernel moves: 4 C numbers of a token in and out, 16 bits each."""
        return 16 * self.plan["run"]["batch_size"] * self.plan["run"]["T"] * self.plan["model"]["C"]

    def stated(self):
        """What is not computed, of the run that it is stated for."""
        model, run = self.plan["model"], self.plan["run"]
        shape = (model["L"], model["C"], run["batch_size"], run["T"])
        return STATED.get(self.name, {}) if shape == (12, 768, 64, 1024) else {}

    def tokens_per_second(self):
        """Likely, worst, best."""
        return self.device["predicted"]["tokens_per_second"]


def grouped(rows):
    """[(name, rows)]: matmuls by op and weight, the rest by op, what takes next to nothing together."""
    groups = {}
    for row in rows:
        small = row.flops == 0 and row.op not in ("layernorm_forward", "layernorm_backward", "optimizer_update",
                                                  "gradient_sumsq", "embedding_forward", "embedding_backward")  # fmt: skip
        name = "other ops" if small else f"{row.op} {row.tensor}" if "matmul" in row.op else row.op
        groups.setdefault(name, []).append(row)
    return sorted(groups.items(), key=lambda group: group[0] == "other ops")


def of_rows(rows):
    return ranges([part for row in rows for part in row.parts])


def op_table(predicted):
    """What the page shows: the first device with range and share, the others with their time."""
    first = predicted[0]
    columns = ["op", "calls", "GB", "TFLOP", f"{first.name}, ms", "range", "share", *(f"{p.name}, ms" for p in predicted[1:])]
    lines = []

    def add(name, calls, moved, flops, ms, others):
        lines.append((name, calls, f"{moved / 1e9:.1f}" if moved else "", f"{flops / 1e12:.2f}" if flops else "",
                      f"{ms[0]:.2f}", f"{ms[2]:.2f} to {ms[1]:.2f}", f"{ms[0] / first.ms[0]:.1%}",
                      *(f"{ms:.2f}" for ms in others)))  # fmt: skip

    for (name, rows), *others in zip(*(grouped(p.rows) for p in predicted)):
        add(f"`{name}`" if name != "other ops" else name, sum(row.calls for row in rows), sum(row.bytes for row in rows),
            sum(row.flops for row in rows), of_rows(rows), [of_rows(there)[0] for _, there in others])  # fmt: skip
    add("between ops", "", 0, 0, first.gaps, [p.gaps[0] for p in predicted[1:]])
    add("**step**", "", sum(row.bytes for row in first.rows), sum(row.flops for row in first.rows), first.ms,
        [p.ms[0] for p in predicted[1:]])  # fmt: skip
    return tools.table(columns, lines)


def said(plan, predicted):
    """The words before the table."""
    run = plan["run"]
    rates = "; ".join(f"{p.name}: {p.tokens_per_second()[0] / 1e3:.0f}K tokens/s ({p.tokens_per_second()[1] / 1e3:.0f}K to "
                      f"{p.tokens_per_second()[2] / 1e3:.0f}K)" for p in predicted)
    return (f"{plan['model']['parameters'] / 1e6:.1f}M parameters, B={run['batch_size']}, T={run['T']}, {predicted[0].device['dtype']}, "
            f"predicted, not measured.\n{rates}.")


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
        keys = {(row.op, row.tensor) for row in group}
        there = [measured[key] for key in keys if key in measured]
        flops, done = sum(row.flops for row in group), sum(flops for _, flops in there)
        if there and abs(done - flops) > 1e-6 * flops:
            raise Refused(f"the profile is of another shape: {name} computes {done:.4g} FLOP in it and {flops:.4g} in the "
                          "prediction; -e, -b and -t say of what")
        rows.append((name, of_rows(group), sum(ms for ms, _ in there) if there else None))
        known |= keys
    rest = {key: ms for key, (ms, _) in measured.items() if key not in known}
    rows += [(printable(f"{op} {tensor}"), None, ms) for (op, tensor), ms in sorted(rest.items())]
    rows.append(("between ops", predicted and predicted.gaps,
                 None if step_ms is None else max(0.0, step_ms - all_ops)))
    return rows + [("step", predicted and predicted.ms, step_ms)]


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
            return [("launch", [200 * ms for ms in predicted.launch])], 1, 0
        elif name == "GELU forward":
            return [("copy", [predicted.gelu_bytes() * ms for ms in predicted.copy])], 1, 0
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
        result.append((printable(name), parts and [ms / calls for ms in ranges(parts)], 1e3 * seconds))
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


def ratio(measured, likely):
    return f"{measured / likely[0]:.2f}" if measured is not None and likely else "-"


def comparison(predicted, measured):
    rows = alone(predicted, measured) if isinstance(measured, list) else beside(predicted, measured)
    cells = [(name, f"{there[0]:.3f}" if there else "-", f"{there[2]:.3f} to {there[1]:.3f}" if there else "-",
              "-" if ms is None else f"{ms:.3f}", ratio(ms, there)) for name, there, ms in rows]  # fmt: skip
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
    parser.add_argument("--gpu", default=",".join(GPUS), help="names of the trainer's table; the first counts")
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
    tools.tool.run(main)
