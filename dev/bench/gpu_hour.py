#!/usr/bin/env python3
"""The first half hour on a GPU that this code has not seen: does it run, is it right, and where does the time go?

    dev/bench/gpu_hour.sh PART [--output DIR] [--seconds 570] [--no-cudnn] [--only REGEX] [--tiny --trainer PATH]

run      tools and libraries; the build; a ladder of features; losses of 20 steps; the 124M model in every form; PyTorch
check    all of check_gpu.py
why      each op alone, start, kernels under ncu, our attention against cuDNN's in the order ABBA, GELU, the large models
verdict  only the page, from the parts whose files are in DIR

Each part fits one command of 9.5 minutes and needs nothing from another: a machine may be fresh each time, without a
network, with the output of dev/pack_deps.sh (gpu_hour.sh finds it). A failure does not end a part. A part writes
PART.json and PART.md into DIR ($OUT, or dev/bench/results/hour), and verdict.md, one page on all parts found there, after
every section; it is printed at the end. --tiny: sizes for the CPU trainer and the simulator, to try it out.
"""
import argparse
import csv
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import bench_gpu
import check_gpu
import gpu_libraries
import gpu_tools as tools
import predict
from bench_gpu import Bench
from gpu_tools import Failed, Skipped, must

PARTS = ["run", "check", "why"]

# What the build takes besides the CUDA toolkit: a program, or a header that the compiler must find.
PROGRAMS = ["gcc", "g++", "make", "nvidia-smi", "compute-sanitizer", "ncu", "python3"]
HEADERS = ["cjson/cJSON.h", "xxhash.h", "pcre2.h", "zlib.h", "zstd.h", "cmocka.h"]

KERNELS = ["layernorm_forward_kernel", "layernorm_backward_kernel", "shared_memory_kernel", "registers_kernel",
           "activation_kernel", "flash_forward_kernel", "flash_backward_queries_kernel",
           "flash_backward_keys_kernel", "bias_backward_kernel", "flash_bias_kernel", "adamw_kernel",
           "embedding_forward_kernel"]  # fmt: skip
NCU_METRICS = {"gpu__time_duration.sum": "us", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "% of memory",
               "sm__throughput.avg.pct_of_peak_sustained_elapsed": "% of SMs"}  # fmt: skip
NCU_LAUNCHES = 60  # a step of two blocks has some 30 of these

# What a driver or a library may break, in the order of the ladder, each with what switches it off. An option that the
# trainer does not have is left out.
FEATURES = {
    "CUDA graphs": ([], {"PRETRAIN_GRAPHS": "0"}),
    "early launches": ([], {"PRETRAIN_EARLY_LAUNCH": "0"}),
    "choices by measurement": ([], {"PRETRAIN_TUNE": "0"}),
    "GELU in epilogues": (["-ge", 0], {}),
    "cuDNN": (["--attention", "own"], {}),
}
ASKED = {"GELU in epilogues": ["-ge", 2], "cuDNN": ["--attention", "cudnn"]}  # by choice they might not be met
LADDER_STEPS = 5
# Of losses from one rung to the next, in nats: bf16 differs from fp32 by up to 2.5e-3 in the first steps of
# expected_losses.json, two kernels that round differently by less than that; wrong results by tenths.
LADDER_TOLERANCE = 5e-3
FIRST_LOSS_TOLERANCE = 0.3  # from ln V, with new weights


# ---------------------------------------------------------------------------------------------- predicted and measured


def first(rows, **wanted):
    return next((row for row in rows if all(row.get(key) == value for key, value in wanted.items())), None)


def main_row(report):
    """The name of the model that the parts begin with: 124M, or its replacement with --tiny."""
    return first(report.get("runs", []), group="models")


def of_main(key, factor=1.0):
    def find(report):
        row = main_row(report)
        return row and row[key] * factor

    return find


def of_model(name, key):
    def find(report):
        row = first(report.get("runs", []), group="models", name=name)
        return row and row[key]

    return find


def of_torch(sdpa, key):
    def find(report):
        row = first(report.get("torch", []), sdpa=sdpa)
        return row and row[key]

    return find


def of_option(options):
    def find(report):
        row = first(report.get("runs", []), group="attention", options=options)
        return row and row["ms"]

    return find


def of_start(name):
    def find(report):
        row = first(report.get("start", []), name=name)
        return row and row["seconds"]

    return find


def plans_of(bench, limit):
    """The plans that predictions are made from: of the first model and of the largest, at a micro-batch that fits."""
    budget, gpu = tools.Budget(limit), tools.gpu_facts().get("name", "no GPU")
    name = predict.gpu_named(gpu)
    if not name:
        raise Skipped(f"no rates are assumed for this machine ({gpu}), only for {', '.join(predict.NAMED.values())}")
    said = []
    for shape in (bench.shapes[0], bench.shapes[-1]):
        try:
            plan = predict.plan_of(bench.options.trainer, name, shape.model, shape.B, shape.T, budget.left())
            fits = plan["devices"][0]["largest_batch"]["0"]
            if fits < shape.B:
                smaller = next((B for B in bench_gpu.SMALLER if B <= fits), 1)
                plan = predict.plan_of(bench.options.trainer, name, shape.model, smaller, shape.T, budget.left())
            run = plan["run"]
            plan["safe"] = predict.plan_of(bench.options.trainer, name, shape.model, run["batch_size"], run["T"], budget.left(),
                                           tools.SAFE)
            bench.plans[shape.name] = plan
            said.append(f"{shape.name}: {predict.Predicted(plan, plan['devices'][0]).ms[0]:.4g} ms")
        except predict.Refused as why:
            raise Failed(str(why)) from None
    return "; ".join(said)


def predictions(plans):
    """What the page says of whole steps, {what: (likely, worst, best)}, and the first model's step, op by op."""
    (name, plan), (last, large) = list(plans.items())[0], list(plans.items())[-1]
    step, safe = (predict.Predicted(shape, shape["devices"][0]) for shape in (plan, plan["safe"]))
    memory, rate = step.device["memory"]["total"] / 2**30, step.tokens_per_second()
    found = {
        f"{name}, tokens/s": rate, f"{name}, ms a step": step.ms,
        OWN: safe.ms, "memory, GiB": [memory, 1.05 * memory, 0.96 * memory],
        f"{last}, tokens/s": predict.Predicted(large, large["devices"][0]).tokens_per_second(),
        **step.stated(),
    }  # fmt: skip
    for what in ("PyTorch", "PyTorch with cuDNN's attention"):
        other = found.get(f"{what}, tokens/s")
        if other:
            found[f"ours / {what}"] = [rate[0] / other[0], rate[1] / other[2], rate[2] / other[1]]
    return found, step


OWN = f"the same with {tools.SAFE_TEXT}"


def whole(name, last):
    """What the page says of whole steps of these models and of what is around them: (what, where it is measured)."""
    return [
        (f"{name}, tokens/s", of_main("tokens_per_second")), (f"{name}, ms a step", of_main("ms")),
        (OWN, of_option(tools.SAFE_TEXT)), ("memory, GiB", of_main("memory_peak", 2.0**-30)),
        ("PyTorch, tokens/s", of_torch("default", "tokens_per_second")),
        ("PyTorch with cuDNN's attention, tokens/s", of_torch("cudnn", "tokens_per_second")),
        ("ours / PyTorch", of_torch("default", "ratio")),
        ("ours / PyTorch with cuDNN's attention", of_torch("cudnn", "ratio")),
        (f"{last}, tokens/s", of_model(last, "tokens_per_second")),
        ("start without tuning file, s", of_start("without tuning cache")),
        ("start with it, s", of_start("again with it")),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- verdict


def load(folder, part):
    """What a part found, {} when it did not run; its file may be of an older checkout, or damaged."""
    try:
        report = json.loads((folder / f"{part}.json").read_text())
        return report if isinstance(report, dict) else {}
    except (OSError, ValueError):
        return {}


def shown(value):
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def judged(what, ranges, measured):
    """A row: what, predicted, range, measured, measured / predicted, judgement."""
    likely, worst, best = ranges or (None, None, None)
    judgement = "not measured" if measured is None else ""
    if measured is not None and ranges:
        low, high = min(worst, best), max(worst, best)
        judgement = "as predicted" if low <= measured <= high else "above" if measured > high else "below"
    there = (shown(likely), f"{shown(min(worst, best))} to {shown(max(worst, best))}") if ranges else ("-", "-")
    return (what, *there, shown(measured), predict.ratio(measured, ranges), judgement)


def compared(reports):
    """Rows of the page: whole steps, then the first model's ops in ms."""
    plans = next((report["plans"] for report in reports if report.get("plans")), {})
    try:
        found, step = predictions(plans)
    except (predict.Refused, KeyError, TypeError, ValueError, IndexError, AttributeError):
        plans, found, step = {}, {}, None  # none were made, or by another checkout
    main = next(filter(None, map(main_row, reports)), None)
    name = next(iter(plans), main["name"] if main else bench_gpu.FULL[0].name)
    last = list(plans)[-1] if plans else bench_gpu.FULL[-1].name
    rows = []
    for what, find in whole(name, last):
        measured = next((value for value in map(find, reports) if value is not None), None)
        rows.append(judged(what, found.get(what), measured))
    try:
        ops = predict.beside(step, main and main["profile"])
    except predict.Refused as why:  # the micro-batch did not fit
        return rows + [(short(str(why)), "-", "-", "-", "-", "")]
    return rows + [judged(f"ms: {what}", ranges, measured) for what, ranges, measured in ops if what != "step"]


def short(text, length=220):
    return text if len(text) <= length else text[: length // 2 - 2] + " ... " + text[-(length // 2 - 2):]


def verdict(folder):
    """One page: what ran, what differed, predicted and measured."""
    reports = {part: load(folder, part) for part in PARTS}
    sections = {part: report.get("sections") or report.get("checks") or [] for part, report in reports.items()}
    machine = next((report["machine"] for report in reports.values() if report.get("machine")), None)
    lines = ["# The first half hour on a GPU", "", tools.describe(machine) + "." if machine else "No part has run.", ""]
    wrong = [row["detail"] for rows in sections.values() for row in rows if row["detail"].startswith("WRONG RESULTS")]
    lines[2:2] = [f"**{short(text)}**" for text in wrong]
    counts = []
    for part, rows in sections.items():
        results = [row["result"] for row in rows]
        numbers = [results.count(result) for result in ("passed", "FAILED", "skipped")] if rows else ["-", "-", "-"]
        counts.append((part, *numbers, f"{sum(row['seconds'] for row in rows):.0f}" if rows else "did not run"))
    lines += ["## What ran", "", *tools.table(["part", "passed", "failed", "skipped", "seconds"], counts), ""]
    lines += ["## What differed", ""]
    failed = [(part, row) for part, rows in sections.items() for row in rows if row["result"] == "FAILED"]
    lines += [f"- {part}, {row['name']}: {short(row['detail'])}" for part, row in failed] or ["Nothing."]
    left = [f"{row['name']} ({short(row['detail'], 60)})" for rows in sections.values() for row in rows
            if row["result"] == "skipped"]
    lines += ["", "Left out: " + ("; ".join(left) or "nothing") + ".", "", "## Predicted and measured", ""]
    lines += tools.table(["what", "predicted", "range", "measured", "ratio", ""], compared(list(reports.values())))
    return "\n".join(lines) + "\n"


def write_verdict(folder):
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "verdict.md.tmp"
    unfinished.write_text(verdict(folder))
    unfinished.replace(folder / "verdict.md")


# --------------------------------------------------------------------------------------------------------------- parts


def inventory(_limit):
    """What is installed. Fails for what the trainer cannot be built without."""
    missing = [f"{name} not found" for name in PROGRAMS if not shutil.which(name) and name in ("gcc", "g++", "make")]
    lines = [f"{name}: {shutil.which(name) or 'not found'}" for name in PROGRAMS]
    for header in HEADERS:
        with tempfile.NamedTemporaryFile("w", suffix=".c") as source:
            source.write(f"#define PCRE2_CODE_UNIT_WIDTH 8\n#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n"
                         f"#include <setjmp.h>\n#include <{header}>\n")
            source.flush()
            if tools.run(["gcc", "-fsyntax-only", source.name], 20).status != 0:
                missing.append(f"{header} not found (dev/pack_deps.sh)")
    clocks = tools.output_of("nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu",
                             "--format=csv,noheader")
    try:
        python, device = bench_gpu.find_torch(True)
        code = "import torch; print(torch.__version__, 'cuDNN', torch.backends.cudnn.version())"
        lines.append(f"PyTorch: {tools.output_of(python, '-c', code)} on {device}, {python}")
    except Skipped:
        lines.append("PyTorch: not found")
    text = "; ".join([f"clocks, power, temperature: {clocks}" if clocks else "nvidia-smi shows no GPU", *lines])
    if missing:
        raise Failed("; ".join(missing) + "; " + text)
    return text


class Ladder:
    """A model of two blocks, some steps for each feature: with all features off, then with one more at a time, each held
    against the rung before. What fails is off from then on, in all later runs, and nothing else is."""

    def __init__(self, bench):
        self.bench, self.losses = bench, None
        self.off, self.failed = dict(FEATURES), {}  # off: not reached yet, or failed
        self.options = set(re.split(r"[^a-z0-9-]+", tools.run([bench.options.trainer, "--help"], 20).stdout))

    def command(self, *more, family=""):
        bench = self.bench
        self.output = tools.fresh(bench.directory / "ladder")
        model = bench.shapes[0].model if bench.options.tiny else "L=2,C=64,NH=1,V=50257,T=32"
        return bench.command(family + model, 2, 32, "-x", LADDER_STEPS, "-n", 0, "-o", self.output, *more)

    def switched_off(self, features):
        """Options and environment that switch these off."""
        options, environment = [], {}
        for option, variables in features.values():
            if option and option[0] in self.options:
                options.append(option)
            environment.update(variables)
        return options, environment

    def run(self, limit, prefix=(), more=(), off=None, family=""):
        """Losses of the steps, all of them finite and the first near ln V."""
        options, environment = self.switched_off(self.off if off is None else off)
        command = self.command(*sum(options, []), *more, family=family)
        finished = tools.run([*prefix, *command], limit, {**self.bench.env, **environment})
        if finished.status == 1 and "--attention cudnn: " in finished.stderr:
            raise Skipped(finished.last_words())
        must(finished)
        losses, (header,) = tools.losses(self.output), tools.events(self.output, "run")[-1:] or [None]
        if header is None or len(losses) != LADDER_STEPS:
            raise Failed(f"it succeeded but logged {len(losses)} losses: {finished.last_words()}")
        if any(loss is None or not math.isfinite(loss) for loss in losses):
            raise Failed(f"losses are not finite: {losses}")
        expected = math.log(header["model"]["V"])
        if abs(losses[0] - expected) > FIRST_LOSS_TOLERANCE:
            raise Failed(f"the first loss is {losses[0]:.4f}; with new weights it should be near ln V = {expected:.4f}")
        return losses

    def first(self, limit):
        self.losses = self.run(limit)
        return f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}"

    @staticmethod
    def compare(losses, without):
        difference = check_gpu.largest_difference(losses, without)
        if not difference <= LADDER_TOLERANCE:
            raise Failed(f"losses differ by {difference:.2g} from those without it (allowed {LADDER_TOLERANCE:.2g})")
        return f"losses differ by {difference:.2g} from those without it"

    def blocks(self, family, limit):
        """Another kind of block: with what is left of the features, and with none."""
        return self.compare(self.run(limit / 2, family=family), self.run(limit / 2, off=FEATURES, family=family))

    def rung(self, feature, limit):
        off = self.off.pop(feature)
        try:
            losses = self.run(limit, more=ASKED.get(feature, ()))
            detail = self.compare(losses, self.losses or losses)
        except Failed as reason:
            self.off[feature] = self.failed[feature] = off
            raise Failed(f"{reason}; off in all later runs") from None
        self.losses = losses
        return detail

    def climb(self, sections):
        sections.run("first steps, everything off", 40, self.first)
        for feature in FEATURES:
            sections.run(f"first steps, {feature}", 30, lambda limit, f=feature: self.rung(f, limit))
        sections.run("first steps, blocks of qwen3", 30, lambda limit: self.blocks("qwen3:", limit))
        self.bench.trainer.off, environment = self.switched_off(self.failed)
        self.bench.env.update(environment)


def memcheck(bench, limit):
    """Our kernels alone: inside cuBLASLt the tool would find what is not ours to mend, and take the whole time."""
    prefix = [check_gpu.find_sanitizer(), "--tool", "memcheck", "--error-exitcode", "99",
              "--kernel-name", "kernel_substring=_kernel"]  # fmt: skip
    losses = Ladder(bench).run(limit, prefix)
    return f"no error; loss {losses[-1]:.4f}"


def right_numbers(bench, limit):
    """The losses of 20 steps, fp32 and bf16, against expected_losses.json."""
    check, budget = check_gpu.Check(bench.options, bench.directory), tools.Budget(limit)
    check.env, check.trainer = bench.env, bench.trainer
    check.options.reference = ""
    details = []
    for dtype in ("fp32", "bf16"):
        try:
            details.append(check.loss_curve(check.main, dtype, budget.left()))
        except Skipped as reason:
            details.append(str(reason))
        except Failed as reason:
            raise Failed(f"WRONG RESULTS, {dtype}: {reason}") from None
    return "; ".join(details)


def speed(bench, limit):
    """The limits that all else is judged by, as the trainer measures them when it starts, of a short run."""
    finished = must(tools.run(bench.command(bench.shapes[0].model, 1, 32, "-x", 1, *tools.SAFE), limit,
                              {**bench.env, "PRETRAIN_SPEED": "on"}))
    lines = [line for line in finished.stdout.splitlines() if "TFLOP/s" in line or "GB/s" in line]
    if not lines:
        raise Failed(f"it printed no limits: {finished.last_words()}")
    return " ".join(lines[0].split())


def prepare(bench, sections):
    options, libraries = bench.options, gpu_libraries.prepare()
    sections.run("tools", 60, inventory)
    sections.run("libraries", 60, lambda limit: libraries.report(options.no_cudnn or options.tiny))
    if options.build:
        sections.run("build", 300, lambda limit: check_gpu.Check.build(limit, options.build[0]))
    sections.run("prediction", 15, lambda limit: plans_of(bench, limit))


def run_part(bench, sections):
    options, model = bench.options, bench.shapes[0]
    name = model.name
    prepare(bench, sections)
    sections.run("speed of the machine", 20, lambda limit: speed(bench, limit))
    Ladder(bench).climb(sections)
    sections.run("losses of 20 steps", 40, lambda limit: right_numbers(bench, limit))
    sections.run(f"{name} and its ops", 120, bench.first_model)
    sections.run(f"{name}, own kernels and cuDNN", 60, lambda limit: bench.rows("attention", limit, [
        (model, bench.fitting(), model.T, more) for more in (tools.SAFE, ["--attention", "cudnn"])]))
    sections.run(f"PyTorch, {name}", 150, lambda limit: bench.pytorch(model, limit))
    sections.run("GELU in epilogues", 40, bench.gelu)
    sections.run("early launches", 40, bench.early_launch)
    sections.run("first steps under memcheck", 60, lambda limit: memcheck(bench, limit))
    sections.run(f"PyTorch, {name}, cuDNN's attention", 120, lambda limit: bench.pytorch(model, limit, "cudnn"))
    for target in options.build[1:]:
        sections.run(f"build {target}", 200, lambda limit, t=target: check_gpu.Check.build(limit, "-k", t))


def abba(bench, limit):
    """Our attention and cuDNN's."""
    shape, budget = bench.shapes[0], tools.Budget(limit)
    return bench_gpu.in_turn("own", "cudnn", lambda kind: bench.measure(
        "abba", shape.name, shape.model, bench.fitting(), shape.T, shape.steps, budget.left(), "--attention", kind))


def ncu_rows(text):
    """Kernel -> metric -> [values] of ncu --csv, whatever stands around it."""
    lines, found = text.splitlines(), {}
    start = next((i for i, line in enumerate(lines) if '"Kernel Name"' in line), len(lines))
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        try:
            value = float((row.get("Metric Value") or "").replace(",", ""))
        except ValueError:
            continue
        if row.get("Metric Unit") in ("nsecond", "ns"):
            value /= 1e3
        name = (row.get("Kernel Name") or "").split("(")[0].split("<")[0].split()[-1:]
        found.setdefault("".join(name), {}).setdefault(row.get("Metric Name"), []).append(value)
    return found


def ncu(bench, limit):
    """The first step launches its kernels one by one; later ones replay a recording."""
    program = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if not program:
        raise Skipped("ncu is not installed")
    shape = bench.shapes[0]
    model = shape.model if bench.options.tiny else f"L=2,{shape.torch.split(',', 1)[1]}"  # backward passes, too, come soon
    finished = must(tools.run(
        [program, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(NCU_METRICS), "--launch-count", NCU_LAUNCHES,
         "-k", "regex:" + "|".join(KERNELS),
         *bench.command(model, min(16, bench.fitting()), shape.T, "-x", 1, *tools.SAFE)], limit, bench.env))
    rows = ncu_rows(finished.stdout)
    if not rows:
        raise Failed(f"ncu printed no figures: {finished.last_words()}")
    return "; ".join(f"{kernel} " + ", ".join(f"{tools.median(values[metric]):.4g} {unit}"
                                              for metric, unit in NCU_METRICS.items() if metric in values)
                     for kernel, values in rows.items())


def why_part(bench, sections):
    shape, others = bench.shapes[0], bench.shapes[1:]
    prepare(bench, sections)
    sections.run(f"{shape.name} and its ops", 120, bench.first_model)
    if bench.options.build:
        sections.run("build bench_ops", 100, lambda limit: check_gpu.Check.build(limit, "build/bench_ops_cu"))
    sections.run("ops alone", 80, bench.ops_alone)
    sections.run("start", 60, bench.cold_start)
    sections.run("attention, ours and cuDNN's, ABBA", 80, lambda limit: abba(bench, limit))
    sections.run("kernels under ncu", 90, lambda limit: ncu(bench, limit))
    if others:
        sections.run(others[-1].name, 80, lambda limit: bench.model(others[-1], limit), needs=20)
    sections.run("recomputation", 40, bench.recompute)
    sections.run("micro-batch and context", 70, bench.sweep)
    sections.run("precision", 40, bench.dtypes)
    for other in others[-2::-1]:
        sections.run(other.name, 60, lambda limit, s=other: bench.model(s, limit), needs=20)


class NewestTests(os.PathLike):
    """The folder of test programs, looked for when it is asked for: it is named after the GPU that was built for."""

    def __fspath__(self):
        found = sorted(tools.ROOT.glob("build/release-cuda-*/test"), key=lambda path: path.stat().st_mtime)
        return str(found[-1] if found else tools.ROOT / "build/release-cuda/test")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "verdict"])
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT") or tools.RESULTS / "hour"))
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--only", default="", metavar="REGEX", help="only sections whose names match")
    parser.add_argument("--no-cudnn", action="store_true", help="a missing cuDNN is not a failure")
    parser.add_argument("--tiny", action="store_true", help="shapes for the CPU trainer and the simulator")
    parser.add_argument("--trainer", default="./train_gpt2cu")
    parser.add_argument("--reference", default="./train_gpt2")
    parser.add_argument("--tests", default=NewestTests(), help="folder of the test programs")
    parser.add_argument("--build", nargs="*", default=["train_gpt2cu", "cuda-test-programs"], metavar="TARGET",
                        help="what make builds: the trainer, then the tests")
    parser.add_argument("--program-of-ops", default="build/bench_ops_cu", help="bench_ops for this device")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    options = parser.parse_args()
    folder = options.output = options.output.absolute()

    began, failed = time.monotonic(), False
    if options.part != "verdict":
        info = tools.machine()
        print(tools.describe(info), flush=True)
        with tempfile.TemporaryDirectory() as directory:
            if options.part == "check":
                work, run = check_gpu.Check(options, Path(directory)), check_gpu.run_all
                write_part = check_gpu.writer(folder / "check", info, options)
            else:
                work, run = Bench(options, Path(directory)), {"run": run_part, "why": why_part}[options.part]
                write_part = bench_gpu.writer(work, info, folder / options.part)

            def write_all(sections):
                write_part(sections)
                write_verdict(folder)

            sections = tools.Sections(options.seconds - (time.monotonic() - began), options.only, write_all)
            if options.part != "check":
                work.trainer.note = sections.note
            run(work, sections)
            failed = sections.count("FAILED") > 0 or not sections.count("passed")
    write_verdict(folder)
    print("\n" + (folder / "verdict.md").read_text() + f"\nwritten: {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    tools.tool.run(main)
