#!/usr/bin/env python3
"""Measures the GPU trainer and, where it is installed, PyTorch on the same shapes, in less than ten minutes:
`make bench-gpu`. Writes gpu_NAME_DATE.{json,md} after every section, into DIR, $OUT or dev/bench/results.

    dev/bench/bench_gpu.py [--trainer ./train_gpt2cu] [--build TARGET ...] [--tiny] [--no-cudnn] [--seconds 570]
                           [--output DIR]

Every figure is the median over steps of one process of the trainer, taken from its main.log: `--profile N` makes N
plain steps and then N with every op timed; the first give the times, the others the tables. Sections are
in order of importance; sections that do not fit in the time are skipped and reported. A run that fails is repeated with
--attention own -ge 0, and so are those after it.
"""
import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import gpu_libraries
import gpu_tools as tools
import peer
from gpu_tools import Failed, Skipped, must

WARMUP_STEPS = 5  # of --profile
SMALLER = [96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1]


class Shape:
    """A model, the micro-batches to try (the first that fits counts) and how many steps to time."""

    def __init__(self, name, model, torch, B, T, steps):
        self.name, self.model, self.torch, self.B, self.T, self.steps = name, model, torch, B, T, steps


FULL = [
    Shape("124M", "d12,V=50257", "L=12,C=768,NH=12,V=50257", 64, 1024, 20),
    Shape("350M", "d24,V=50257", "L=24,C=1024,NH=16,V=50257", 128, 1024, 8),
    Shape("774M", "d36,V=50257", "L=36,C=1280,NH=20,V=50257", 64, 1024, 6),
    Shape("1558M", "d48,V=50257", "L=48,C=1600,NH=25,V=50257", 48, 1024, 5),
]
TINY = [
    Shape("tiny", "L=2,C=64,NH=1,V=257,T=32", "L=2,C=64,NH=1,V=257", 4, 32, 3),
    Shape("tiny, 3 blocks", "L=3,C=64,NH=1,V=257,T=32", "L=3,C=64,NH=1,V=257", 4, 32, 2),
]
# B and T swept at the first model; T beyond its context needs another descriptor.
FULL_SWEEP = [(4, 1024), (8, 1024), (16, 1024), (32, 1024), (128, 1024), (256, 256), (32, 2048)]
TINY_SWEEP = [(2, 32), (8, 16)]


def with_context(model, T):
    return f"L=12,C=768,NH=12,V=50257,T={T}" if T > 1024 else model


class DoesNotFit(Exception):
    pass


class Bench:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.shapes = TINY if options.tiny else FULL
        self.sweep_shapes = TINY_SWEEP if options.tiny else FULL_SWEEP
        self.env = {"PRETRAIN_CACHE": str(directory / "tuning")}  # empty at first, and nobody else's
        self.trainer = tools.Trainer(self.env)
        self.runs, self.torch, self.start, self.alone = [], [], [], []
        self.plans = {}  # of models by name, where predictions are made
        self.table = ""
        vocab = 257 if options.tiny else 50257
        self.shards = tools.write_random(directory, 1 << (16 if options.tiny else 23), vocab)

    # ------------------------------------------------------------------------------------------------------------ runs

    def command(self, model, B, T, *more):
        return [self.options.trainer, "-e", model, "-b", B, "-t", T, "-i", self.shards, "-v", 0, "-s", 0, *more]

    def measure(self, group, name, model, B, T, steps, limit, *more):
        """One row; DoesNotFit when memory is short."""
        output = tools.fresh(self.directory / "run")
        # Two looks at the sensors in the steps that count.
        command = self.command(model, B, T, "--profile", steps, "-lg", (WARMUP_STEPS + steps) // 2, "-o", output)
        finished = self.trainer.run(command, more, limit)
        if finished.status == 2 and "not enough memory" in finished.stderr:
            raise DoesNotFit(f"{name}: B={B} T={T} does not fit")
        if finished.status in (1, 2) and re.search("not available on|cudnn", finished.stderr, re.IGNORECASE):
            raise Skipped(finished.last_words())
        must(finished)
        row = self.read(output, steps)
        shown = " ".join(finished.command).replace(str(self.directory), "DIR")
        row.update(group=group, name=name, model=model, B=B, T=T, command=shown,
                   options=" ".join(map(str, [*(tools.SAFE if self.trainer.safe else []), *more])))
        match = re.search(r"first step done ([\d.]+) s after launch", finished.stdout)
        row["first_step_done_seconds"] = float(match.group(1)) if match else None
        row["table"] = profile_table(finished.stdout)
        self.runs.append(row)
        hidden = hidden_between_steps(row)
        if hidden and not self.options.tiny:
            self.trainer.note(f"{name}: {hidden}")
        return row

    @staticmethod
    def read(output, steps):
        header, end, memory = (tools.only(output, kind) for kind in ("run", "end", "memory"))
        plain = tools.events(output, "step")[WARMUP_STEPS:WARMUP_STEPS + steps]
        profile = json.loads((output / "profile.json").read_text())
        seconds = tools.median(step["ms"] for step in plain) / 1e3
        tokens = header["tokens_per_step"]
        return {
            "dtype": header["model"]["dtype"], "device": header["device"], "parameters": header["model"]["parameters"],
            "ms": 1e3 * seconds, "boundary_ms": profile["median_plain_step_ms"], "tokens_per_second": tokens / seconds,
            "mfu": tools.median(step["mfu"] or 0 for step in plain),
            "hfu": tools.median(step["hfu"] or 0 for step in plain),
            "of_matmul_rate": profile["flops"] / seconds / profile["matmul_flops"],
            "of_floor": profile["floor_ms"] / 1e3 / seconds,
            "memory_peak": end["memory_peak"], "memory_planned": end["memory_planned"],
            "memory_free": memory.get("free"),  # of the GPU after step 1: what is left beside all that was planned
            "loader_wait": end["wait_seconds"] / max(sum(s["ms"] for s in tools.events(output, "step")) / 1e3, 1e-9),
            "spread": (max(s["ms"] for s in plain) - min(s["ms"] for s in plain)) / (1e3 * seconds),
            "sensors": sensors(output, WARMUP_STEPS + steps),
            "profile": profile,
        }  # fmt: skip

    def largest(self, shape, limit, *more):
        """The row of the largest micro-batch that fits, from shape.B downwards."""
        budget = tools.Budget(limit)
        for B in [shape.B] + [B for B in SMALLER if B < shape.B]:
            if budget.left() < 5:
                raise Failed(f"out of time before a micro-batch below {B} was tried")
            try:
                return self.measure("models", shape.name, shape.model, B, shape.T, shape.steps, budget.left(), *more)
            except DoesNotFit:
                continue
        raise Skipped("does not fit even at B=1")

    # -------------------------------------------------------------------------------------------------------- sections

    def build(self, limit):
        jobs = os.cpu_count() or 1
        must(tools.run(["make", f"-j{jobs}", *self.options.build], limit))
        return "make " + " ".join(self.options.build)

    def first_model(self, limit):
        row = self.largest(self.shapes[0], limit)
        self.table = row["table"]
        return summary(row)

    def model(self, shape, limit):
        return summary(self.largest(shape, limit))

    def sweep(self, limit):
        return self.rows("sweep", limit, [(self.shapes[0], B, T, []) for B, T in self.sweep_shapes])

    def recompute(self, limit):
        shape = self.shapes[0]
        return self.rows("recompute", limit, [(shape, self.fitting(), shape.T, ["-r", level]) for level in (1, 2, 3)])

    def attention(self, limit):
        shape = self.shapes[0]
        return self.rows("attention", limit,
                         [(shape, self.fitting(), shape.T, ["--attention", kind]) for kind in ("own", "cudnn")])

    def gelu(self, limit):
        shape = self.shapes[0]
        return self.rows("gelu", limit, [(shape, self.fitting(), shape.T, ["-ge", level]) for level in (0, 1, 2)])

    def early_launch(self, limit):
        shape, budget = self.shapes[0], tools.Budget(limit)

        def measure(switch):
            self.trainer.env = {**self.env, "PRETRAIN_EARLY_LAUNCH": "1" if switch == "on" else "0"}
            return self.measure("early launches", shape.name, shape.model, self.fitting(), shape.T,
                                max(2, shape.steps // 2), budget.left())

        try:
            return in_turn("off", "on", measure)
        finally:
            self.trainer.env = self.env

    def dtypes(self, limit):
        shape, first = self.shapes[0], self.runs[0]
        others = [dtype for dtype in ("bf16", "fp16", "fp32") if dtype != first["dtype"]]
        options = [["--fp8", 1]] * (first["dtype"] == "bf16") + [["--dtype", dtype] for dtype in others]
        return self.rows("dtype", limit, [(shape, self.fitting(), shape.T, more) for more in options])

    def fitting(self):
        """The micro-batch that the first model ran with."""
        if not self.runs:
            raise Skipped("the first model was not measured")
        return self.runs[0]["B"]

    def rows(self, group, limit, wanted):
        """As many rows as the time allows; fewer steps than the main figures."""
        budget, done, left_out = tools.Budget(limit), [], []
        for shape, B, T, more in wanted:
            name = " ".join(map(str, more)) or f"B={B} T={T}"
            try:
                if budget.left() < 5:
                    raise Skipped("out of time")
                row = self.measure(group, shape.name, with_context(shape.model, T), B, T, max(2, shape.steps // 2),
                                   budget.left(), *more)
                done.append(f"{name}: {row['ms']:.2f} ms")
            except (Skipped, DoesNotFit) as reason:
                left_out.append(f"{name} skipped ({reason})")
            except Failed as reason:
                self.trainer.note(f"{name}: {reason}")
        if not done and left_out:
            raise Skipped("; ".join(left_out))
        return "; ".join(done + left_out)

    def cold_start(self, limit):
        """Seconds from launch to the end of the first step: with no tuning cache, then with the one that it left."""
        shape, budget = self.shapes[0], tools.Budget(limit)
        command = self.command(shape.model, self.fitting(), shape.T, "-x", 1, *(tools.SAFE if self.trainer.safe else []))
        cache = self.directory / "tuning_start"
        for name in ("without tuning cache", "with it", "again with it"):
            finished = must(tools.run(command, budget.left(), {"PRETRAIN_CACHE": str(cache)}))
            match = re.search(r"first step done ([\d.]+) s after launch", finished.stdout)
            if not match:
                raise Failed("the trainer did not report its first step")
            self.start.append({"name": name, "seconds": float(match.group(1)), "process_seconds": finished.seconds})
        return "; ".join(f"{row['name']}: {row['seconds']:.2f} s" for row in self.start)

    def ops_alone(self, limit):
        """Each op in a loop (bench_ops), with our attention, then with cuDNN's; its backward pass also in the form whose
        bits need not repeat."""
        budget, sizes = tools.Budget(limit), dict(part.split("=") for part in self.shapes[0].torch.split(","))
        B, T = self.fitting(), self.shapes[0].T
        for kind in ("own", "cudnn", "fast"):
            command = [self.options.program_of_ops, B, T, sizes["C"], sizes["NH"], sizes["V"], self.runs[0]["dtype"], kind,
                       0.01 if self.options.tiny else 0.15]
            finished = tools.run(command, budget.left(), self.env)
            for line in finished.stdout.splitlines():  # as far as it came
                row = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
                if "matmul_flops" in row:
                    rates = row
                elif "op" in row:
                    row.update(attention=kind, of_matmul_rate=ratio(row["flops"] / row["seconds"], rates["matmul_flops"]),
                               of_copy_rate=ratio(row["bytes"] / row["seconds"], rates["copy_bandwidth"]))
                    self.alone.append(row)
                elif "attention" in row:
                    if kind != "own" and "own kernels" in row["attention"]:
                        self.trainer.note(f"{kind}: attention {row['attention']}")
            if kind == "cudnn" and finished.status == 1 and "--attention cudnn: " in finished.stderr:
                break
            must(finished)
        if not self.alone:
            raise Failed(f"it printed no figures: {finished.last_words()}")
        return f"{len(self.alone)} rows; the slowest op takes {1e3 * max(row['seconds'] for row in self.alone):.3f} ms"

    def pytorch(self, shape, limit, sdpa="default"):
        python, device = find_torch(self.options.tiny)
        ours = [row for row in self.runs if row["group"] == "models" and row["name"] == shape.name]
        if not ours:
            raise Skipped("our trainer was not measured on it")
        budget, weights = tools.Budget(limit), self.directory / "start"
        shard = self.directory / "peer_000.bin"
        vocab = int(re.search(r"V=(\d+)", shape.model).group(1))
        tools.fresh(weights)
        export = [self.options.trainer, "-e", shape.model, "-x", 0, "-v", 0, "-s", 0,
                  "--export", weights]
        must(tools.run(export, budget.left(), self.env))
        peer.write_shard(shard, ours[0]["B"] * shape.T + 1, vocab)
        command = [python, "dev/bench/torch_gpu.py", weights, shard, ours[0]["B"], shape.T,
                   "--steps", shape.steps, "--device", device, "--sdpa", sdpa]
        finished = tools.run(command, budget.left())
        if finished.status == 1 and "cannot select" in finished.stderr:
            raise Skipped(finished.last_words())
        must(finished)
        row = json.loads(finished.stdout.strip().splitlines()[-1])
        shown = " ".join(map(str, command)).replace(str(self.directory), "DIR")
        row.update(name=shape.name, command=shown)
        row.update(self.compared(row, weights, vocab, budget.left()))
        refused = row["refused"]
        row["ratio"] = None if refused else ours[0]["tokens_per_second"] / row["tokens_per_second"]
        self.torch.append(row)
        fewer = "" if row["B"] == ours[0]["B"] else f" at B={row['B']}, where it fits"
        return (f"{row['tokens_per_second']:,.0f} tok/s{fewer} ({row['torch']}, "
                f"{'compiled' if row['compiled'] else 'eager'}, SDPA {sdpa}); "
                + (refused or f"ours is {row['ratio']:.2f} times that"))

    def compared(self, row, weights, vocab, limit):
        """Our losses of the first steps from the same weights, and how they differ from this row's.
        The trainer shuffles windows, so its shard has only those of a step."""
        B, T, output = row["B"], row["T"], tools.fresh(self.directory / "run")
        shard = peer.write_shard(self.directory / "peer_000.bin", B * T + 1, vocab)
        command = [self.options.trainer, "-e", weights, "-i", shard, "-b", B, "-t", T, "-d", B * T,
                   "--dtype", row["dtype"], "-x", peer.LOSSES, "-l", "6e-4", "-u", 0,
                   "-k", "constant", "-c", 0.1, "-v", 0, "-s", 0, "-o", output]
        must(self.trainer.run(command, [], limit))
        ours, allowed = tools.losses(output), peer.tolerances(weights, B, T, row["dtype"])
        refused = peer.difference(ours, row["losses"], allowed)
        return {"our_losses": ours, "tolerances": allowed, "refused": refused}


def in_turn(a, b, measure):
    """Two ways in the order ABBA: a clock that sinks meets both. measure(way) returns a row."""
    times = {a: [], b: []}
    for way in (a, b, b, a):
        times[way].append(measure(way)["ms"])
    return "; ".join(f"{way}: {first:.2f} and {second:.2f} ms" for way, (first, second) in times.items())


def ratio(rate, of):
    return rate / of if rate > 0 and of > 0 else None


def hidden_between_steps(row):
    """The steps' own times do not see what happens between two of them."""
    if row["boundary_ms"] <= 1.01 * row["ms"]:
        return None
    return f"{row['boundary_ms']:.2f} ms from step to step, but {row['ms']:.2f} ms in the steps"


def sensors(output, last_step):
    """What the GPU said of itself up to that step, the power as a mean where two readings of its energy allow it."""
    readings = [entry for entry in tools.events(output, "gpu") if entry["step"] <= last_step]
    if not readings:
        return {}
    first, last = readings[0], readings[-1]
    if last["time"] > first["time"] and last["energy_joules"] > first["energy_joules"]:
        last["power_watts"] = (last["energy_joules"] - first["energy_joules"]) / (last["time"] - first["time"])
    return {key: last[key] for key in ("sm_clock_mhz", "memory_clock_mhz", "power_watts", "temperature_c", "throttle")}


def state(found):
    if not found:
        return "-"
    return (f"{found['sm_clock_mhz']:.0f} MHz, {found['power_watts']:.0f} W, {found['temperature_c']:.0f} C"
            + (f", {found['throttle']}" if found["throttle"] else ""))


def find_torch(any_device):
    """A Python whose PyTorch sees a GPU; any_device: or none (--tiny)."""
    for python in dict.fromkeys(["python3", sys.executable, "/usr/bin/python3"]):
        check = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
        finished = tools.run([python, "-c", check], 60)
        device = finished.stdout.strip()
        if finished.status == 0 and (device == "cuda" or any_device):
            return python, device
    raise Skipped("no PyTorch with CUDA")


def profile_table(stdout):
    """What --profile printed: from its first line to its last."""
    lines = stdout.splitlines()
    marks = [i for i, line in enumerate(lines) if line.startswith("profile ")]
    return "\n".join(lines[marks[0]:marks[-1] + 1]) if len(marks) >= 2 else ""


def summary(row):
    return (f"B={row['B']} T={row['T']} {row['dtype']}: {row['ms']:.2f} ms, {row['tokens_per_second']:,.0f} tok/s, "
            f"mfu {row['mfu']:.1%}, hfu {row['hfu']:.1%}"
            + (f", {row['memory_free'] / 2**30:.2f} GiB free after step 1" if row["memory_free"] is not None else ""))


# -------------------------------------------------------------------------------------------------------------- report


def run_table(rows):
    columns = ["model", "B", "T", "dtype", "options", "ms/step", "step to step", "tok/s", "mfu", "hfu", "of matmul rate", "of floor",
               "memory GiB (planned)", "spread", "GPU"]  # fmt: skip
    return tools.table(columns, [
        (row["name"], row["B"], row["T"], row["dtype"], row["options"] or "-", f"{row['ms']:.2f}", f"{row['boundary_ms']:.2f}",
         f"{row['tokens_per_second']:,.0f}", f"{row['mfu']:.1%}", f"{row['hfu']:.1%}", f"{row['of_matmul_rate']:.1%}",
         f"{row['of_floor']:.1%}", f"{row['memory_peak'] / 2**30:.2f} ({row['memory_planned'] / 2**30:.2f})",
         f"{row['spread']:.1%}", state(row["sensors"]))
        for row in rows])  # fmt: skip


def matmul_table(profile):
    rows = [row for row in profile["ops"] if row["flops"] > 0 and row["ms"] > 0]
    return tools.table(["op", "shape (N, IC, OC)", "ms", "TFLOP/s", "of the measured matmul rate"], [
        (f"{row['op']} {row['tensor']}", " x ".join(map(str, row["shape"])), f"{row['ms'] / row['calls']:.4f}",
         f"{row['flops'] / row['ms'] / 1e9:.4g}", f"{row['flops'] / row['ms'] * 1e3 / profile['matmul_flops']:.1%}")
        for row in rows])  # fmt: skip


EXPLANATION = """\
Medians of whole training steps: loader, forward, backward, norm, AdamW; step to step: the same with what is between two
of them. mfu: (6 N + 6 L C T) FLOP a token; hfu: what
the machine computes (llmc/model/recompute.h). Of matmul rate: the same FLOP against the measured rate. Floor: the sum over
ops of the longer of FLOP and bytes at the measured rates. Spread: slowest less fastest step, as a fraction of the
median. GPU: clock, mean power and temperature during these steps."""


def markdown(bench, sections, info):
    lines = [f"# GPU trainer, {info['gpu'].get('name') or bench.options.trainer}, {tools.today()}", ""]
    lines += [tools.describe(info) + f". Command: `{command_line()}`.", ""]
    if bench.runs:
        first = bench.runs[0]
        device = first["device"]
        attention = f"; attention: {device['attention']}" if device.get("attention") else ""
        lines += [f"{device['name']}: {device['libraries']}{attention}. Measured when the first run began: matmul "
                  f"{device['matmul_flops'] / 1e12:.4g} TFLOP/s ({first['dtype']}), copy "
                  f"{device['copy_bandwidth'] / 1e9:.4g} GB/s (read + written); mfu and hfu are fractions of "
                  f"{device['peak_flops'] / 1e12:.4g} TFLOP/s.", ""]
    lines += [EXPLANATION, ""]
    titles = {"models": "Models", "sweep": "Micro-batch and context", "recompute": "Recomputation",
              "attention": "Attention kernels", "gelu": "GELU in epilogues", "dtype": "Precision"}  # fmt: skip
    for group, title in titles.items():
        rows = [row for row in bench.runs if row["group"] == group]
        if rows:
            lines += [f"## {title}", "", *run_table(rows), ""]
    if bench.torch:
        lines += ["## PyTorch", "",
                  "The same step, right after ours (dev/bench/torch_gpu.py): compile, SDPA,",
                  "bf16 autocast, fused AdamW, no dropout, the vocabulary padded as ours, from the",
                  "same exported weights on the same tokens. No ratio is printed where the losses",
                  "of the first steps differ.", ""]
        columns = ["model", "B", "T", "version", "SDPA", "ms/step", "tok/s", "ours / PyTorch",
                   "our losses", "its losses", "memory GiB", "first step s"]
        lines += tools.table(columns, [
            (row["name"], row["B"], row["T"], row["torch"] + ("" if row["compiled"] else " (eager)"), row["sdpa"],
             f"{1e3 * row['step_seconds']:.2f}", f"{row['tokens_per_second']:,.0f}",
             row["refused"] or f"{row['ratio']:.2f}",
             *(" ".join(f"{loss:.5f}" for loss in row[whose])
               for whose in ("our_losses", "losses")),
             f"{(row['memory_peak'] or 0) / 2**30:.2f}", f"{row['first_step_seconds']:.1f}")
            for row in bench.torch]) + [""]  # fmt: skip
    if bench.start:
        lines += ["## Launch to the end of the first step", ""]
        lines += tools.table(["run", "seconds"], [(row["name"], f"{row['seconds']:.2f}") for row in bench.start]) + [""]
    if bench.runs:
        first = bench.runs[0]
        lines += ["## Op by op", "", f"{summary(first)}; waiting for the loader: {first['loader_wait']:.3%}.", "",
                  "```", bench.table, "```", "", "## Matmuls and attention", "", *matmul_table(first["profile"]), ""]
    if bench.alone:
        lines += ["## Ops alone", "", "In a loop on random numbers (bench_ops); rates as measured in the same process.", ""]
        shown = [[f"{part:.1%}" if part else "-" for part in (row["of_matmul_rate"], row["of_copy_rate"])]
                 for row in bench.alone]
        lines += tools.table(["op", "attention", "ms", "TFLOP/s", "of matmul rate", "of copy rate"], [
            (row["op"], row["attention"], f"{1e3 * row['seconds']:.4f}", f"{row['flops'] / row['seconds'] / 1e12:.4g}", *parts)
            for row, parts in zip(bench.alone, shown)]) + [""]  # fmt: skip
    lines += ["## Sections", "", *tools.table(["section", "result", "seconds", "detail"],
              [(row["name"], row["result"], row["seconds"], row["detail"]) for row in sections.rows])]  # fmt: skip
    return "\n".join(lines) + "\n"


def command_line():
    return "dev/bench/bench_gpu.py " + " ".join(sys.argv[1:])


def writer(bench, info, base):
    def write(sections):
        result = {"date": tools.today(), "machine": info, "command": command_line(),
                  "runs": [{k: v for k, v in row.items() if k != "table"} for row in bench.runs], "torch": bench.torch,
                  "start": bench.start, "alone": bench.alone,
                  "plans": bench.plans, "sections": sections.rows}  # fmt: skip
        tools.write_report(base, result, markdown(bench, sections, info))

    return write


def run_all(bench, sections):
    first, others = bench.shapes[0], bench.shapes[1:]
    bench.trainer.note = sections.note
    if not bench.options.tiny:
        libraries = gpu_libraries.prepare()
        sections.run("libraries", 60, lambda limit: libraries.report(bench.options.no_cudnn))
    if bench.options.build:
        sections.run("build", 300, bench.build)
    sections.run(f"{first.name} and its ops", 90, bench.first_model)
    sections.run(f"PyTorch, {first.name}", 150, lambda limit: bench.pytorch(first, limit))
    sections.run("start", 60, bench.cold_start)
    sections.run("attention kernels", 40, bench.attention)
    sections.run("GELU in epilogues", 40, bench.gelu)
    sections.run(f"PyTorch, {first.name}, cuDNN's attention", 90, lambda limit: bench.pytorch(first, limit, "cudnn"))
    for shape in reversed(others):
        sections.run(shape.name, 80, lambda limit, s=shape: bench.model(s, limit), needs=20)
    sections.run("recomputation", 40, bench.recompute)
    sections.run("micro-batch and context", 70, bench.sweep)
    sections.run("precision", 40, bench.dtypes)
    for shape in reversed(others):
        sections.run(f"PyTorch, {shape.name}", 150, lambda limit, s=shape: bench.pytorch(s, limit), needs=60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="./train_gpt2cu")
    parser.add_argument("--build", nargs="*", default=[], metavar="TARGET", help="make targets to build first")
    parser.add_argument("--tiny", action="store_true", help="shapes for the CPU trainer and the simulator")
    parser.add_argument("--no-cudnn", action="store_true", help="a missing cuDNN is not a failure")
    parser.add_argument("--only", default="", metavar="REGEX", help="only sections whose names match")
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--output", type=Path, default=tools.output_folder())
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        bench, info = Bench(options, Path(directory)), tools.machine()
        base = options.output.absolute() / f"gpu_{tools.machine_name(info, options.trainer)}_{tools.today()}"
        print(tools.describe(info), flush=True)
        sections = tools.Sections(options.seconds, options.only, writer(bench, info, base))
        run_all(bench, sections)
    print(f"written: {base}.md and .json\n{sections.line()}")
    return 1 if sections.count("FAILED") or not bench.runs else 0


if __name__ == "__main__":
    tools.tool.run(main)
