#!/usr/bin/env python3
"""Trains a small model on tinyshakespeare with every optimizer and precision, each at a learning rate tuned for it, and
writes dev/bench/results/loss_parity_NAME_DATE.{json,md}: final validation losses over seeds, against AdamW in fp32.

    dev/bench/loss_parity.py [--output runs/loss_parity] [--only adamw-fp32,muon] [--jobs 2] [--report]

Each configuration begins at a rate of its own and doubles or halves it until the best one, by the worse validation loss
of two tuning seeds, is between two worse ones; other seeds then run at that rate. Everything else is the same for
all: model, data, order of data, warm-up, cosine decay, weight decay. A run is one process of one thread. Finished runs
are recorded in OUTPUT/runs.json under their options, so the script can be stopped and called again, also with other
configurations; known runs are not repeated. --report runs nothing and writes the tables of the known runs.
"""
import argparse
import concurrent.futures
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench_cpu import machine, slug, tool

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PRETRAIN_DATA", ROOT / "../shared/data"))

# 0.65M parameters, 1,024 tokens a step; 400 steps see 40% of the text once, so that nothing is learnt by heart. A step
# takes 18 ms in bf16 and 32 ms in fp32 on one core of an EPYC with AVX512-BF16, a run 10 to 15 s.
MODEL = ["-e", "L=3,C=128,NH=4,T=64", "-t", "64", "-b", "16"]
# And a warm-up over a quarter of the steps: with a tenth, AdamW's best rate was one at which one seed in three failed.
SCHEDULE = ["-q", "0.1", "-c", "0.1"]
VALIDATIONS = 20
BASELINE = "adamw-fp32"

BF16 = ["--dtype", "bf16"]
NO_MASTER, COMPUTE = [*BF16, "-w", "0"], ["--grad-dtype", "compute"]


def configuration(name, what, rate, flags, steps=1.0):
    return {"name": name, "what": what, "rate": rate, "flags": flags, "steps": steps}


CONFIGURATIONS = [
    configuration(BASELINE, "AdamW, fp32", 8e-3, ["--dtype", "fp32"]),
    configuration("adamw-bf16-master", "AdamW, bf16, master weights", 8e-3, BF16),
    configuration("adamw-bf16-sr", "AdamW, bf16, no master: stochastic rounding", 8e-3, NO_MASTER),
    configuration("adamw8bit", "8-bit AdamW, bf16, master weights", 8e-3, [*BF16, "--optimizer", "adamw8bit"]),
    configuration("adamw8bit-lean", "8-bit AdamW, bf16, no master, bf16 gradients", 8e-3,
                  [*NO_MASTER, *COMPUTE, "--optimizer", "adamw8bit"]),
    configuration("adamw-bf16", "AdamW, bf16 states, stochastic rounding, bf16 gradients", 8e-3,
                  [*BF16, *COMPUTE, "--optimizer", "adamw-bf16"]),
    configuration("adamw-kahan", "AdamW, bf16 states, Kahan's compensation", 8e-3,
                  [*BF16, "--optimizer", "adamw-kahan"]),
    configuration("muon", "Muon + AdamW, bf16, master weights", 8e-3, [*BF16, "--optimizer", "muon"]),
    configuration("muon-75", "the same in 75% of the steps", 8e-3, [*BF16, "--optimizer", "muon"], steps=0.75),
    configuration("lion", "Lion, bf16, master weights", 8e-4, [*BF16, "--optimizer", "lion"]),
    configuration("adafactor", "Adafactor, bf16, master weights", 1.6e-2, [*BF16, "--optimizer", "adafactor"]),
    configuration("sgd", "SGD with momentum 0.95, bf16, master weights", 1e-1, [*BF16, "--optimizer", "sgd"]),
    configuration("adamw-grad-bf16", "AdamW, bf16, master weights, bf16 gradients", 8e-3, [*BF16, *COMPUTE]),
    configuration("adamw-fp8", "AdamW, fp8, master weights", 8e-3, [*BF16, "--fp8", "1"]),
    configuration("adamw-offload", "AdamW, bf16, master weights, offloaded", 8e-3,
                  [*BF16, "--offload", "optimizer"]),
]


class Runs:
    """The runs that are known, in a file; makes those that are not."""

    def __init__(self, options):
        self.options, self.path = options, options.output / "runs.json"
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.lock, self.made, self.began, self.left = threading.Lock(), 0, time.monotonic(), 0
        self.shards = options.output / "shards"

    def command(self, config, rate, seed):
        steps = max(round(self.options.steps * config["steps"]), 1)
        every = max(round(self.options.steps / VALIDATIONS), 1)
        return [*self.options.model, *SCHEDULE, "-u", str(max(steps // 4, 1)), *config["flags"],
                "-l", f"{rate:.6g}", "-x", str(steps), "--seed", str(seed), "-v", str(every),
                "-m", str(self.options.val_sequences)]

    def get(self, config, rate, seed):
        """The validation losses [[step, loss], ...] of a run; a loss of inf where it was not finite."""
        command = self.command(config, rate, seed)
        key = " ".join(command)
        if key not in self.known and not self.options.report:
            found = self.make(command)
            with self.lock:
                self.known[key] = found
                self.save()
                self.made += 1
                self.left -= 1
                self.say(config, rate, seed, found)
        if key not in self.known:
            raise LookupError("some of its runs are not done yet")
        losses = self.known[key]["validation"]
        return [[step, math.inf if loss is None else loss] for step, loss in losses]

    def make(self, command):
        with tempfile.TemporaryDirectory() as out:
            data = ["-i", f"{self.shards}/train_*.bin", "-j", f"{self.shards}/val_*.bin"]
            whole = [str(self.options.trainer), *data, *command, "-s", "0", "-n", "0", "--threads", "1",
                     "-o", out]
            began = time.monotonic()
            result = subprocess.run(whole, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
            if result.returncode != 0:
                said = (result.stderr or result.stdout).strip().splitlines() or ["no word"]
                raise RuntimeError(f"exit code {result.returncode}: {said[-1]}")
            entries = [json.loads(line) for line in open(f"{out}/main.log")]
        losses = [[entry["step"], entry["loss"]] for entry in entries if entry["event"] == "validation"]
        return {"validation": losses, "seconds": round(time.monotonic() - began, 1)}

    def save(self):
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.known, indent=0))
        part.replace(self.path)

    def say(self, config, rate, seed, found):
        each = (time.monotonic() - self.began) / self.made
        loss = found["validation"][-1][1]
        loss = "not finite" if loss is None else f"{loss:.4f}"
        left = max(self.left, 0)
        print(f"{config['name']:<18} -l {rate:<9.4g} seed {seed:<5} loss {loss} | {found['seconds']:.0f} s | "
              f"{self.made} runs made, about {left} left, eta {each * left / 60:.0f} min", flush=True)


def tune(config, final):
    """The rate whose neighbours (half, double) are both worse; final(rate) is a loss. -> rate, {rate: loss}"""
    losses = {}

    def loss_at(power):
        if power not in losses:
            losses[power] = final(config["rate"] * 2.0 ** power)
        return losses[power]

    best = 0
    while True:
        better = [power for power in (best + 1, best - 1) if loss_at(power) < loss_at(best)]
        if not better or abs(best) > 8:
            return config["rate"] * 2.0 ** best, {config["rate"] * 2.0 ** p: losses[p] for p in sorted(losses)}
        best = min(better, key=loss_at)


def study(config, runs, options):
    """Everything about one configuration."""
    rate, tuning = tune(config, lambda rate: max(runs.get(config, rate, seed)[-1][1] for seed in options.tuning_seeds))
    curves = {seed: runs.get(config, rate, seed) for seed in options.seeds}
    return {**config, "rate": rate, "tuning": tuning, "curves": curves,
            "final": {seed: curve[-1][1] for seed, curve in curves.items()},
            "command": " ".join(runs.command(config, rate, options.seeds[0]))}


def first_step_below(curve, loss):
    """Where the straight lines between validations first reach the loss; None: never."""
    for (step0, loss0), (step1, loss1) in zip(curve, curve[1:]):
        if loss1 <= loss:
            return step1 if loss0 <= loss1 else step0 + (step1 - step0) * min(1, (loss0 - loss) / (loss0 - loss1))
    return None


def deviation(losses):
    """Their standard deviation; nan of a single one."""
    return statistics.stdev(losses) if len(losses) > 1 else math.nan


def compare(result, base, steps):
    """The figures of a row; base is the result of AdamW in fp32. Seeds are compared with the same seeds."""
    finals, seeds = list(result["final"].values()), list(result["final"])
    spread = deviation(base["final"].values())
    differences = [result["final"][seed] - base["final"][seed] for seed in seeds]
    reached = [first_step_below(result["curves"][seed], base["final"][seed]) for seed in seeds]
    there = [step for step in reached if step is not None]
    return {"mean": statistics.fmean(finals), "min": min(finals), "max": max(finals),
            "deviation": deviation(finals),
            "difference": statistics.fmean(differences), "in_spreads": statistics.fmean(differences) / spread,
            "reached": len(there), "share": statistics.fmean(there) / steps if len(there) == len(seeds) else None}


def row(result, base, steps):
    c = compare(result, base, steps)
    reached = (f"{c['share']:.0%}" if c["share"] is not None else
               "not reached" if c["reached"] == 0 else f"in {c['reached']} of {len(result['final'])} seeds")
    return (f"| {result['what']} | {result['rate']:.3g} | {c['mean']:.4f} | {c['min']:.4f} .. {c['max']:.4f} | "
            f"{c['deviation']:.4f} | {c['difference']:+.4f} | {c['in_spreads']:+.1f} | {reached} |")


def verdicts(results, base, steps):
    """What the figures say, in sentences."""
    finals = base["final"].values()
    spread = max(finals) - min(finals)
    groups = {"within": [], "below": [], "above": []}
    for result in results:
        difference = compare(result, base, steps)["difference"]
        if result is not base:
            groups["within" if abs(difference) <= spread else "below" if difference < 0 else "above"].append(
                f"{result['name']} ({difference:+.4f})")
    lines = [f"AdamW fp32 itself varies by {spread:.4f} over seeds (largest less smallest final loss)."]
    said = {"within": "As good, within that", "below": "Better by more than that", "above": "Worse by more than that"}
    lines += [f"{said[group]}: {', '.join(names)}." for group, names in groups.items() if names]
    for result in (result for result in results if result["name"] == "muon"):
        share = compare(result, base, steps)["share"]
        lines.append("Muon does not reach AdamW's final loss in every seed." if share is None else
                     f"Muon reaches AdamW's final loss in {share:.0%} of the steps, while its own decay still goes on.")
    for result in (result for result in results if result["name"] == "muon-75"):
        c = compare(result, base, steps)
        lines.append(f"Made for 75% of the steps, Muon ends at {c['difference']:+.4f} against AdamW fp32 with all of "
                     f"them, and reaches its loss in {c['reached']} of {len(result['final'])} seeds.")
    return lines


def markdown(report):
    info, results = report["machine"], {result["name"]: result for result in report["results"]}
    base = results[BASELINE]
    spread = deviation(base["final"].values())
    lines = [f"# Loss parity, {info['cpu']}, {report['date']}", "",
             f"{info['cores']} cores, {info['memory_gib']} GiB, {info['system']}, {info['compiler']}; commit "
             f"{info['commit'] or 'unknown'}. Command: `{report['command']}`.", "",
             f"{report['text']}, bytes; model `{' '.join(report['model'])}`, {report['steps']} steps, warm-up over a "
             f"quarter of them, cosine decay to a tenth, weight decay 0.1, one thread. Validation on "
             f"{report['val_sequences']} sequences. Rates: the best of a grid of factor 2, by the worse of the losses "
             f"at seeds {' and '.join(map(str, report['tuning_seeds']))}, with a worse rate on both sides. Losses: "
             f"seeds {', '.join(map(str, report['seeds']))}, which were not used for that.", "",
             "Difference: mean over seeds of the loss less that of AdamW fp32 at the same seed (same initial weights, "
             f"same data); s.d.: in standard deviations of AdamW fp32 over seeds, {spread:.4f}. Reaches: the step at "
             "which the validation loss reaches the final one of AdamW fp32 at the same seed, as a share of its steps; "
             "every run is at the end of its own decay when it ends.", "",
             "| configuration | -l | final loss | smallest .. largest | s.d. | difference | in s.d. | reaches AdamW |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    lines += [row(result, base, report["steps"]) for result in report["results"]]
    lines += ["", *(f"- {line}" for line in verdicts(report["results"], base, report["steps"]))]
    lines += ["", "Tuning, the worse loss at each rate:", "", "| configuration | rates |", "| --- | --- |"]
    for result in report["results"]:
        rates = ", ".join(f"{rate:.3g}: {loss:.4f}" for rate, loss in result["tuning"].items())
        lines.append(f"| {result['what']} | {rates} |")
    for name, why in report["missing"].items():
        lines += ["", f"No figures for {name}: {why}"]
    return "\n".join(lines) + "\n"


def finite(value):
    """JSON has no inf and nan."""
    if isinstance(value, dict):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(report, directory):
    base = directory / f"loss_parity_{slug(report['machine']['cpu'])}_{report['date']}"
    base.with_suffix(".json").write_text(json.dumps(finite(report), indent=1) + "\n")
    base.with_suffix(".md").write_text(markdown(report))
    return base.with_suffix(".md")


def prepare(options):
    shards = options.output / "shards"
    if not shards.exists() and not options.report:
        options.output.mkdir(parents=True, exist_ok=True)
        subprocess.run([options.prepare, "-o", shards, options.text], check=True, stdout=subprocess.DEVNULL)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "runs/loss_parity", help="directory of the runs [%(default)s]")
    parser.add_argument("--results", type=Path, default=ROOT / "dev/bench/results", help="directory of the tables")
    parser.add_argument("--only", help="configurations, by commas: " + ", ".join(c["name"] for c in CONFIGURATIONS))
    parser.add_argument("--jobs", type=int, default=2, help="configurations at the same time [%(default)s]")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tuning-seeds", type=int, nargs="+", default=[1337, 4711])
    parser.add_argument("--val-sequences", type=int, default=256)
    parser.add_argument("--model", type=str.split, default=MODEL, help="options of model, context and batch")
    parser.add_argument("--text", type=Path, default=DATA / "tinyshakespeare/input.txt")
    parser.add_argument("--trainer", type=Path, default=ROOT / "train_gpt2")
    parser.add_argument("--prepare", type=Path, default=ROOT / "data/prepare")
    return parser.parse_args()


def chosen(options):
    names = options.only.split(",") if options.only else [config["name"] for config in CONFIGURATIONS]
    unknown = set(names) - {config["name"] for config in CONFIGURATIONS}
    if unknown:
        sys.exit(f"--only: unknown {', '.join(sorted(unknown))}; see --help")
    return [config for config in CONFIGURATIONS if config["name"] in {*names, BASELINE}]


def main():
    options = arguments()
    configurations, results, missing = chosen(options), {}, {}
    prepare(options)
    runs = Runs(options)
    runs.left = len(configurations) * (3 * len(options.tuning_seeds) + len(options.seeds))  # three rates or more
    command = ["dev/bench/loss_parity.py", *(part for part in sys.argv[1:] if part != "--report")]
    report = {"date": datetime.date.today().isoformat(), "machine": machine(), "command": " ".join(command),
              "text": options.text.parent.name, "model": options.model, "steps": options.steps, "seeds": options.seeds,
              "tuning_seeds": options.tuning_seeds, "val_sequences": options.val_sequences}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        studies = {pool.submit(study, config, runs, options): config["name"] for config in configurations}
        for done in concurrent.futures.as_completed(studies):
            try:
                results[studies[done]] = done.result()
            except (LookupError, RuntimeError) as error:
                missing[studies[done]] = str(error)
                print(f"{studies[done]}: {error}", flush=True)
            if BASELINE in results:
                known = [results[c["name"]] for c in configurations if c["name"] in results]
                path = write({**report, "results": known, "missing": missing}, options.results)
    if BASELINE not in results:
        sys.exit(f"no tables without {BASELINE}, which all others are compared with")
    print(f"written: {path} and .json")
    return 1 if missing else 0


if __name__ == "__main__":
    tool.run(main)
