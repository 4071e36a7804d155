#!/usr/bin/env python3
"""Proves the CUDA backend on this machine's GPU, in less than ten minutes: `make check-gpu`.

    dev/bench/check_gpu.py --tests build/release-cuda-90/test [--trainer ./train_gpt2cu] [--reference ./train_gpt2]
                           [--build TARGET ...] [--tiny] [--no-cudnn] [--seconds 570] [--jobs N] [--output DIR]

Finds the libraries (gpu_libraries.py); builds, the trainer first; runs the op and golden tests in every dtype, the
attention tests with our kernels and with cuDNN's; trains a small GPT-2 and the 124M model and compares the losses
with the CPU trainer's (or, without one, with dev/bench/expected_losses.json); checks resume,
repetition and recomputation bit for bit, GELU in the epilogues of matmuls, fp16 with its loss scale, our attention
against cuDNN's, the profile; NCCL with one process, and where there are 2 to 8 GPUs with as many; and runs the op tests under compute-sanitizer if that is installed. Missing parts are
skipped and reported. A training run that fails is repeated with --attention own -ge 0, and so are later ones. Writes
check_GPU_DATE.{json,md} after every check, into DIR, $OUT or dev/bench/results. Exit code 1 if anything failed.

--tiny: sizes for the simulator (`make check-gpu BACKEND=sim`).
--write-expected: runs only the CPU trainer (--reference) and writes expected_losses.json anew.
"""
import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_libraries
import gpu_tools as tools
from gpu_tools import Failed, Skipped, must

sys.path.insert(0, str(tools.ROOT / "dev"))
import run_tests  # noqa: E402: how cmocka's output is counted

EXPECTED = tools.ROOT / "dev" / "bench" / "expected_losses.json"
STEPS = 20

# name -> model, B, T, vocabulary of the data, further options. 64 channels a head, as in GPT-2. The tiny one would
# learn nothing from 20 different batches, so it sees one of them again and again.
MODELS = {
    "tiny": ("L=2,C=64,NH=1,V=64,T=32", 2, 32, 64, ["-a", 1, "-l", "4e-3"]),
    "medium": ("L=4,C=256,NH=4,V=512,T=128", 8, 128, 512, []),
    "124M": ("d12,V=50257", 4, 256, 50257, []),
    "qwen3": ("qwen3:L=2,C=128,NH=2,NKV=1,V=64,T=32", 2, 32, 64, ["-a", 1, "-l", "1e-3"]),
}
# Largest difference of a loss (nats) over these steps. fp32: the vector and the plain build of the CPU trainer, which
# sum in different orders, differ by 5e-7. bf16: they differ by 0.2 to 0.6 of what bf16 differs from fp32 with one and
# the same trainer, so that distance, known from expected_losses.json, is the unit.
FP32_TOLERANCE = 1e-4
HALF_TOLERANCE = {"bf16": 5, "fp16": 3}

# Kernels of our own only: inside cuBLASLt and cuDNN the tools find what is not ours to mend (racecheck reports races in
# cuDNN 9.19's forward attention, on an H200).
SANITIZED = ["test_layernorm", "test_blocks", "test_embedding", "test_attention", "test_decode", "test_optimizer", "test_small"]
SANITIZERS = {"memcheck": 120, "racecheck": 60, "initcheck": 60, "synccheck": 60}  # and their seconds
SANITIZED_JOBS = 4
# Whose results depend on whose attention it is.
ATTENTION_PROGRAMS = {"ops": ["test_attention", "test_model"], "golden": None}


class Check:
    def __init__(self, options, directory):
        self.options, self.directory, self.data = options, directory, {}
        self.env = {"PRETRAIN_CACHE": str(directory / "tuning")}  # choices by timing: made once, kept for all runs
        self.trainer = tools.Trainer(self.env)
        self.main = "tiny" if options.tiny else "medium"

    # ------------------------------------------------------------------------------------------------------- training

    def shards(self, model):
        if model not in self.data:
            _, B, T, vocab, _ = MODELS[model]
            directory = self.directory / f"data_{model}"
            directory.mkdir()
            self.data[model] = tools.write_words(directory, STEPS * B * T + T + 1, vocab)
        return self.data[model]

    def train(self, run, model, dtype, limit, *more, trainer=None, **environment):
        """Trains into DIRECTORY/run; TF32 stays off, so that fp32 means fp32."""
        descriptor, B, T, _, options = MODELS[model]
        output = self.directory / run
        command = [trainer or self.options.trainer, "-e", descriptor, "-b", B, "-t", T, "-x", STEPS, "--dtype", dtype,
                   "-i", self.shards(model), "-v", 0, "-s", 0, "-f", 0, "-o", output, *options]
        if trainer or environment:
            finished = tools.run([*command, *more], limit, {**self.env, **environment})
        else:
            finished = self.trainer.run(command, more, limit)
        if finished.status == 2 and "not available on" in finished.stderr:
            raise Skipped(finished.last_words())
        must(finished)
        return output

    def same_state(self, a, b):
        """Are the weights and moments of two checkpoints the same, byte for byte?"""
        for name in ("model.safetensors", "optimizer.safetensors"):
            if (a / name).read_bytes() != (b / name).read_bytes():
                raise Failed(f"{name} differs between {a.parent.name} and {b.parent.name}")

    # --------------------------------------------------------------------------------------------------------- checks

    @staticmethod
    def build(limit, *targets):
        must(tools.run(["make", f"-j{os.cpu_count() or 1}", *targets], limit))
        return "make " + " ".join(targets)

    def build_reference(self, limit):
        finished = tools.run(["make", f"-j{os.cpu_count() or 1}", "train_gpt2"], limit)
        if finished.status != 0:
            raise Skipped("the CPU trainer cannot be built here; using expected_losses.json")
        return "make train_gpt2"

    def programs(self, group, names=None):
        folder = Path(self.options.tests) / group
        found = sorted(path for path in folder.glob("test_*") if not path.suffix and os.access(path, os.X_OK))
        found = [path for path in found if names is None or path.name in names]
        if not found:
            raise Failed(f"no test programs in {folder}")
        return found

    def run_programs(self, programs, limit, prefix=(), jobs=None, **more):
        """Runs them side by side; returns the counts and those that did not finish in time."""
        jobs, budget = jobs or self.options.jobs, tools.Budget(limit)
        threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))

        def one(program):
            return program, tools.run([*prefix, program], budget.left(), {"OMP_NUM_THREADS": threads, **self.env, **more})

        total, unfinished = run_tests.Counts(), []
        with ThreadPoolExecutor(jobs) as pool:
            for program, finished in pool.map(one, programs):
                if finished.status is None and prefix:
                    unfinished.append(program.name)
                    continue
                counts = run_tests.count_cmocka(program.name, finished.stdout + finished.stderr, finished.status)
                if counts.failed:
                    print(finished.stdout[-4000:], finished.stderr[-4000:])
                total.add(counts)
        return total, unfinished

    def test_programs(self, group, limit, names=None, **more):
        counts, _ = self.run_programs(self.programs(group, names), limit, **more)
        reasons = sorted({reason for reason, _ in counts.skips})
        detail = counts.line() + (f" ({'; '.join(reasons)})" if reasons else "")
        if counts.failed:
            said = ["\n".join(lines) for _, lines in counts.failures]
            if more.get("TEST_ATTENTION") == "cudnn" and all("--attention cudnn: " in text for text in said):
                raise Skipped(next(line for line in said[0].splitlines() if "--attention cudnn: " in line))
            raise Failed(detail + ": " + ", ".join(name for name, _ in counts.failures))
        return detail

    def attention_programs(self, kind, limit):
        """By one attention alone: left to itself the trainer takes for each shape the faster one."""
        budget, details = tools.Budget(limit), []
        for group, names in ATTENTION_PROGRAMS.items():
            details.append(self.test_programs(group, budget.left(), names, TEST_ATTENTION=kind))
        return "; ".join(details)

    def gelu(self, level, limit):
        """With GELU in the epilogue it is of sums that were not rounded: other bits, the same losses."""
        dtype = self.half(limit)
        plain = self.once(dtype, limit, "-ge", 0)
        run = self.train(f"gelu_{level}", self.main, dtype, limit, "-ge", level)
        return self.compare(tools.losses(run), tools.losses(plain), tolerance(self.main, dtype), f"{dtype}, from -ge 0")

    def reference_losses(self, model, dtype, limit):
        """The curve of the CPU trainer, or the committed one, and which it is."""
        if shutil.which(self.options.reference):
            try:
                run = self.train(f"reference_{model}_{dtype}", model, dtype, limit, "-n", 0,
                                 trainer=self.options.reference)
                return tools.losses(run), "the CPU trainer"
            except (Failed, Skipped) as reason:
                print(f"{self.options.reference}: {reason}; using expected_losses.json", flush=True)
        return expected(model, dtype), "expected_losses.json"

    def loss_curve(self, model, dtype, limit):
        run = self.train(f"curve_{model}_{dtype}", model, dtype, limit)
        mine, (theirs, name) = tools.losses(run), self.reference_losses(model, dtype, limit)
        tools.fresh(run)
        return self.compare(mine, theirs, tolerance(model, dtype), f"{mine[0]:.4f} -> {mine[-1]:.4f}, from {name}")

    @staticmethod
    def compare(a, b, limit, what):
        difference = largest_difference(a, b)
        detail = f"{what}: at most {difference:.2g} (allowed {limit:.2g})"
        if not difference <= limit:
            raise Failed(detail)
        return detail

    def fp16(self, limit):
        run = self.train("fp16", self.main, "fp16", limit)
        steps = tools.events(run, "step")
        taken = [step["loss"] for step in steps if "skip" not in step]
        scales = [step.get("loss_scale", 1) for step in steps]
        if max(scales) == 1:
            raise Failed("fp16 was trained without a loss scale")
        if len(taken) < STEPS:  # the scale was too high at first: the curve is that many steps behind
            if len(taken) < STEPS // 2 or not taken[-1] < taken[0]:
                raise Failed(f"{STEPS - len(taken)} of {STEPS} steps were skipped, loss {taken[:1]} -> {taken[-1:]}")
            learned = f"loss {taken[0]:.4f} -> {taken[-1]:.4f}, loss scale {scales[-1]:g}"
            return f"{learned}, {STEPS - len(taken)} steps skipped"
        what = f"loss scale {scales[-1]:g}, from fp32"
        return self.compare(taken, expected(self.main, "fp32"), tolerance(self.main, "fp16"), what)

    def once(self, dtype, limit, *more):
        """The run that others are held against, with a checkpoint halfway; made when it is first asked for."""
        run = self.directory / "_".join(["once", dtype, *map(str, more)])
        return run if run.exists() else self.train(run.name, self.main, dtype, limit, "-n", STEPS // 2, "-nk", 0, *more)

    def half(self, limit):
        """Where one dtype is enough: what one trains in on this device."""
        for dtype in ("bf16", "fp16"):
            try:
                self.once(dtype, limit)
                return dtype
            except Skipped:
                continue
        return "fp32"

    def repetition(self, dtype, limit):
        first = self.once(dtype, limit)
        again = self.train(f"again_{dtype}", self.main, dtype, limit, "-n", STEPS // 2, "-nk", 0)
        self.same_state(final(first), final(again))
        return f"weights and moments after {STEPS} steps are the same bits in two runs"

    def resume(self, dtype, limit):
        half, first, resumed = STEPS // 2, self.once(dtype, limit), self.directory / f"resumed_{dtype}"
        resumed.mkdir()
        shutil.copytree(final(first, half), final(resumed, half))
        self.train(resumed.name, self.main, dtype, limit, "-n", half, "-nk", 0, "-y", 1)
        self.same_state(final(first), final(resumed))
        return f"stopped after step {half} and resumed: the same bits as without the stop"

    def recompute(self, level, limit):
        """Without GELU in the epilogue of matmuls, which is not computed again bit for bit: with -r it is not used."""
        dtype, unfused = self.half(limit), ["-ge", 0]
        run = self.train(f"recompute_{level}", self.main, dtype, limit, "-r", level, *unfused)
        self.same_state(final(self.once(dtype, limit, *unfused)), final(run))
        return f"the same bits as without, in {dtype}"

    def attention(self, limit):
        curves, names, dtype = {}, {}, self.half(limit)
        for kind in ("own", "cudnn"):
            try:
                run = self.train(f"attention_{kind}", self.main, dtype, limit, "--attention", kind)
            except Failed as reason:
                if kind == "cudnn" and "cudnn" in str(reason).lower():
                    raise Skipped(str(reason)) from reason
                raise
            curves[kind], names[kind] = tools.losses(run), tools.only(run, "run")["device"].get("attention")
        if curves["own"] == curves["cudnn"]:
            raise Skipped("the same bits with --attention own and cudnn: here they are the same kernels")
        what = f"losses of {names['own']} from those of {names['cudnn']}"
        return self.compare(curves["own"], curves["cudnn"], tolerance(self.main, dtype), what)

    def nccl(self, limit):
        """The contract of the collectives, with the one rank that one GPU can show."""
        return self.test_programs("ops", limit, ["test_collectives"])

    def several_gpus(self, gpus, limit):
        """The contract between so many processes, and runs with the bits of one GPU."""
        budget, (program,) = tools.Budget(limit), self.programs("ops", ["test_collectives"])
        with ThreadPoolExecutor(gpus) as pool:
            port = 29000 + os.getpid() % 1000 + gpus  # below what the system gives to connections
            ranks = [{"RANK": str(r), "WORLD_SIZE": str(gpus), "LOCAL_RANK": str(r), "MASTER_ADDR": "127.0.0.1",
                      "MASTER_PORT": str(port), **self.env} for r in range(gpus)]
            for finished in pool.map(lambda rank: tools.run([program], budget.left(), rank), ranks):
                must(finished)
        dtype, groups = self.half(budget.left()), ["--reduce-groups", gpus]
        alone = self.once(dtype, budget.left(), *groups)
        shown = []
        waits = {"PRETRAIN_COMM_OVERLAP": "0"}
        for name, more, environment in (("divided", [], {}), ("waits", [], waits), ("whole", ["-z", 0], {})):
            run = self.train(f"gpus_{gpus}_{name}", self.main, dtype, budget.left(), *groups, "--gpus", gpus, *more,
                             **environment)
            self.same_state(final(alone), final(run))
            profiled = self.train(f"gpus_{gpus}_{name}_profile", self.main, dtype, budget.left(), *groups, "--gpus", gpus,
                                  *more, "--profile", 5, **environment)
            profile = json.loads((profiled / "profile.json").read_text())
            shown.append(f"{name}: step {profile['median_plain_step_ms']:.3f} ms, exchange {profile['exchange_ms']:.3f} ms, "
                         f"{profile['exposed_exchange_ms']:.3f} ms not hidden")
        return f"the same bits as on one, in {dtype}; " + "; ".join(shown)

    def profile(self, limit):
        run = self.train("profile", self.main, self.half(limit), limit, "--profile", 5)
        profile = json.loads((run / "profile.json").read_text())
        total = sum(row["ms"] for row in profile["ops"]) + profile["between_ops_ms"] + profile["exposed_exchange_ms"]
        if not math.isclose(total, profile["step_ms"], rel_tol=0.03):
            raise Failed(f"the rows add up to {total:.3f} ms, the step took {profile['step_ms']:.3f} ms")
        return (f"{len(profile['ops'])} rows, step {profile['median_step_ms']:.3f} ms, "
                f"{profile['median_plain_step_ms']:.3f} ms unprofiled")

    def sanitizer(self, tool, limit):
        command = find_sanitizer()
        prefix = [command, "--tool", tool, "--error-exitcode", "99", "--kernel-name", "kernel_substring=_kernel"]
        counts, unfinished = self.run_programs(self.programs("ops", SANITIZED), limit, prefix, SANITIZED_JOBS,
                                               TEST_FILTER="*_bf16", TEST_ATTENTION="own")
        detail = counts.line() + (f"; unfinished after {limit:.0f} s: {', '.join(unfinished)}" if unfinished else "")
        if counts.failed:
            raise Failed(detail + ": " + ", ".join(name for name, _ in counts.failures))
        if counts.passed == 0:
            raise Skipped(detail)
        return detail


def final(run, step=STEPS):
    return run / f"step_{step:08d}"


def largest_difference(a, b):
    """Infinite when a number is missing or none."""
    if len(a) != len(b) or not a or any(x is None or not math.isfinite(x) for x in a + b):
        return math.inf
    return max(abs(x - y) for x, y in zip(a, b))


def expected(model, dtype):
    return json.loads(EXPECTED.read_text())[model][dtype]


def tolerance(model, dtype):
    if dtype == "fp32":
        return FP32_TOLERANCE
    return HALF_TOLERANCE[dtype] * largest_difference(expected(model, "fp32"), expected(model, "bf16"))


def count_gpus():
    """Also of the simulator, which has SIM_GPUS of them."""
    return len(tools.output_of("nvidia-smi", "-L").splitlines()) or int(os.environ.get("SIM_GPUS", "1"))


def find_sanitizer():
    for name in ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"):
        if shutil.which(name):
            return shutil.which(name)
    raise Skipped("compute-sanitizer is not installed")


def run_all(check, sections):
    options = check.options
    check.trainer.note = sections.note
    if not options.tiny:
        libraries = gpu_libraries.prepare()
        sections.run("libraries", 60, lambda limit: libraries.report(options.no_cudnn))
    # What is there is checked, whatever of it could not be built: a test program, say, for want of cmocka.
    trainer, *others = options.build or [None]
    if trainer:
        sections.run("build", 300, lambda limit: check.build(limit, trainer))
    if others:
        sections.run("build the tests", 300, lambda limit: check.build(limit, "-k", *others))
    if trainer and not shutil.which(options.reference):
        sections.run("build the CPU trainer", 90, check.build_reference)
    sections.run("op tests", 300 if options.tiny else 180, lambda limit: check.test_programs("ops", limit))
    sections.run("golden test", 60, lambda limit: check.test_programs("golden", limit))
    for dtype in ("fp32", "bf16"):
        sections.run(f"losses of 20 steps, {dtype}", 60, lambda limit, d=dtype: check.loss_curve(check.main, d, limit))
    for dtype in ("fp32", "bf16"):
        sections.run(f"losses of 20 steps, qwen3, {dtype}", 60, lambda limit, d=dtype: check.loss_curve("qwen3", d, limit))
    for kind in ("own", "cudnn"):
        sections.run(f"attention tests, {kind}", 90, lambda limit, k=kind: check.attention_programs(k, limit))
    for dtype in ("fp32", "fp16", "bf16"):
        repeated = sections.run(f"two runs, {dtype}", 60, lambda limit, d=dtype: check.repetition(d, limit))
        if repeated:
            sections.run(f"resume, {dtype}", 60, lambda limit, d=dtype: check.resume(d, limit))
    for level in (1, 2):
        sections.run(f"GELU in epilogues, -ge {level}", 60, lambda limit, g=level: check.gelu(g, limit))
    sections.run("fp16 with loss scale", 60, check.fp16)
    for level in (1, 2, 3):
        sections.run(f"recompute level {level}", 60, lambda limit, r=level: check.recompute(r, limit))
    sections.run("attention, ours and cuDNN's", 60, check.attention)
    sections.run("profile", 60, check.profile)
    sections.run("NCCL, one GPU", 60, check.nccl)
    for gpus in (2, 4, 8):
        if gpus <= count_gpus():
            sections.run(f"{gpus} GPUs", 90, lambda limit, n=gpus: check.several_gpus(n, limit))
    if not options.tiny:
        for dtype in ("fp32", "bf16"):
            sections.run(f"losses of 20 steps, 124M, {dtype}", 60,
                         lambda limit, d=dtype: check.loss_curve("124M", d, limit))
    for tool, seconds in SANITIZERS.items():
        sections.run(f"compute-sanitizer {tool}", seconds, lambda limit, t=tool: check.sanitizer(t, limit))


def writer(base, info, options):
    def write(sections):
        command = "dev/bench/check_gpu.py " + " ".join(sys.argv[1:])
        result = {"date": tools.today(), "machine": info, "command": command, "checks": sections.rows,
                  "result": sections.line()}
        lines = [f"# GPU checks, {info['gpu'].get('name') or options.trainer}, {tools.today()}", "",
                 tools.describe(info) + ".", f"Command: `{command}`. {sections.line()}.", ""]
        lines += tools.table(["check", "result", "seconds", "detail"],
                             [(row["name"], row["result"], row["seconds"], row["detail"]) for row in sections.rows])
        tools.write_report(base, result, "\n".join(lines) + "\n")

    return write


def write_expected(check):
    curves = {}
    for model in MODELS:
        curves[model] = {}
        for dtype in ("fp32", "bf16"):
            run = check.train(f"{model}_{dtype}", model, dtype, 300, "-n", 0, trainer=check.options.reference)
            curves[model][dtype] = tools.losses(run)
    EXPECTED.write_text(json.dumps(curves, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="./train_gpt2cu")
    parser.add_argument("--reference", default="./train_gpt2")
    parser.add_argument("--tests", default="build/release-cuda/test", help="folder of the test programs")
    parser.add_argument("--build", nargs="*", default=[], metavar="TARGET", help="make targets to build first")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-cudnn", action="store_true", help="a missing cuDNN is not a failure")
    parser.add_argument("--write-expected", action="store_true")
    parser.add_argument("--only", default="", metavar="REGEX", help="only sections whose names match")
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--output", type=Path, default=tools.output_folder())
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        check = Check(options, Path(directory))
        if options.write_expected:
            return write_expected(check)
        info = tools.machine()
        base = options.output.absolute() / f"check_{tools.machine_name(info, options.trainer)}_{tools.today()}"
        sections = tools.Sections(options.seconds, options.only, writer(base, info, options))
        print(tools.describe(info), flush=True)
        run_all(check, sections)
    print(f"written: {base}.md and .json\n{sections.line()}")
    return 1 if sections.count("FAILED") or not sections.count("passed") else 0


if __name__ == "__main__":
    tools.tool.run(main)
