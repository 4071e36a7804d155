#!/usr/bin/env python3
"""Measures the CPU trainer and writes dev/bench/results/cpu_NAME_DATE.{json,md}.

    dev/bench/bench_cpu.py [--build build/release] [--seconds 40] [--only REGEX]
                           [--update FILE.json] [--dry-run]

Of each configuration bench_step and PyTorch (torch_step.py, eager and compiled) make the same steps
in turn, one step each: from the same exported weights, on the same tokens, with the rate of a plain
library matmul measured after each of ours. The losses of the first steps must be equal within what
rounding explains (peer.py); if not, no ratio is printed. On a shared machine tokens/s moves with
the neighbours; the ratios to the matmul rate and to PyTorch, medians over the turns, are steady.
PEER_PYTHON names another Python than Debian's, PEER_ALLOCATOR the library of an allocator for it.
avx2: all are held to AVX2, which is what most machines have; avx512bf16: on a machine with AMX, to
what a Zen 4 or 5 has. --update replaces the rows that --only matches in an earlier
result, or begins one.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peer

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import tool  # noqa: E402

# name, model, B, T, dtype, vector code, targets for tokens/s and for the ratio to the matmul rate
# (a 2-core AVX512-BF16 machine; None: there is none)
CONFIGURATIONS = [
    ("124M", "d12,V=50257", 4, 256, "bf16", "", 950, 0.78),
    ("124M", "d12,V=50257", 4, 1024, "bf16", "", 940, 0.80),
    ("124M", "d12,V=50257", 4, 64, "bf16", "", 780, None),
    ("6 layers C=384", "L=6,C=384,NH=6,V=50257", 8, 256, "bf16", "", 4000, None),
    ("124M", "d12,V=50257", 4, 256, "fp32", "", 480, 0.85),
    ("124M", "d12,V=50257", 4, 1024, "fp32", "", 480, 0.85),
    ("124M", "d12,V=50257", 4, 256, "fp32", "avx2", 240, 0.85),
    ("124M", "d12,V=50257", 4, 1024, "fp32", "avx2", 240, 0.85),
    ("qwen3:d12", "qwen3:d12,V=50257", 4, 256, "bf16", "", None, 0.90),
    ("qwen3:d12", "qwen3:d12,V=50257", 4, 1024, "bf16", "", None, 0.90),
    ("qwen3:d12", "qwen3:d12,V=50257", 4, 256, "bf16", "avx512bf16", None, 0.90),
    ("qwen3:d12", "qwen3:d12,V=50257", 4, 1024, "bf16", "avx512bf16", None, 0.90),
    ("qwen3:d12", "qwen3:d12,V=50257", 4, 256, "fp32", "", None, None),
    ("qwen3:d12", "qwen3:d12,V=50257", 4, 1024, "fp32", "", None, None),
]
# What holds a process to a vector code: ours, and PyTorch with its libraries.
HELD = {
    "": {},
    "avx512bf16": {"PRETRAIN_CPU": "avx512bf16", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "avx2": {
        "PRETRAIN_CPU": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_avx2",
    },
}
PEER_PYTHON = os.environ.get("PEER_PYTHON", "/usr/bin/python3")
# The first step warms up: that of PyTorch compiles.
WARMUP_TURNS, MIN_TURNS = 1, 3
SHARD_TOKENS = 200_000  # more than a configuration reads before it reads a window again
LOADER_TARGET = 200e6  # tokens/s of one thread, files in the page cache
START_TARGET = 3.0  # seconds from launch to the first step, 124M
PLAN_TARGET = 1.0  # seconds of --plan with -b auto and -r auto, 1558M


def output_of(command, **environment):
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | environment
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine():
    cpu = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())
    memory = re.search(r"MemTotal:\s+(\d+) kB", open("/proc/meminfo").read())
    compiler = output_of(["gcc", "--version"]).splitlines()
    release = re.search(r'PRETTY_NAME="(.*)"', open("/etc/os-release").read())
    return {
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / 2**20, 1) if memory else None,
        "system": f"{release.group(1) if release else 'unknown'}, Linux {platform.release()}",
        "compiler": compiler[0] if compiler else "unknown",
        "commit": commit(),
    }


def slug(text):
    """As a part of file names: lower case, hyphens for all that is no letter or digit."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def reason_to_leave_out(configuration):
    """None, or why this processor has no such row."""
    _, _, _, _, dtype, code, *_ = configuration
    flags = open("/proc/cpuinfo").read()
    if dtype == "bf16" and "avx512_bf16" not in flags and "amx_bf16" not in flags:
        return "no bf16 matrix instructions on this machine"
    if code == "avx512bf16" and "amx_bf16" not in flags:
        return "no AMX on this machine, so the row is the one without a vector code"
    return None


def contenders(configuration, build, weights, shard):
    """The processes of a configuration by name."""
    _, model, B, T, dtype, code, *_ = configuration
    settings = HELD[code] | peer.allocator()[1]
    torch = [PEER_PYTHON, "dev/bench/torch_step.py", weights, shard, B, T, dtype]
    ours = [f"{build}/dev/bench/bench_step", model, B, T, dtype, 0, weights, shard]
    return {
        "ours": peer.Contender(ours, **HELD[code]),
        "eager": peer.Contender(torch, **settings),
        "compiled": peer.Contender([*torch, "--compile"], **settings),
    }


def in_turn(running, seconds):
    """{name: steps}, {name: facts} and {name: why it ended early}: each steps once in a turn."""
    steps, facts, ended, began = {name: [] for name in running}, {}, {}, None
    turn = 0
    while turn < WARMUP_TURNS + MIN_TURNS or time.monotonic() - began < seconds:
        if turn == WARMUP_TURNS:
            began = time.monotonic()
        for name, contender in running.items():
            if name not in ended:
                try:
                    steps[name].append(contender.step())
                except peer.Ended as error:
                    ended[name] = str(error)
        turn += 1
    for name, contender in running.items():
        if name not in ended:
            facts[name] = contender.finish()
    if "ours" in ended:
        sys.exit(f"bench_cpu.py: bench_step: {ended['ours']}")
    return steps, facts, ended


def quartiles(values):
    low, _, high = statistics.quantiles(values, n=4)
    return [low, high]


def of_peer(name, steps, facts, allowed, tokens):
    """The figures of a form of PyTorch; unless its losses differ, also the ratio of its time."""
    times, ours = (
        [step["step_seconds"] for step in steps[who]][WARMUP_TURNS:] for who in (name, "ours")
    )
    losses = {who: [step["loss"] for step in steps[who]][: peer.LOSSES] for who in (name, "ours")}
    ratios = [a / b for a, b in zip(times, ours)]
    result = facts[name] | {
        "losses": losses[name],
        "tokens_per_second": tokens / statistics.median(times),
        "range": [tokens / seconds for seconds in reversed(quartiles(times))],
        "refused": peer.difference(losses["ours"], losses[name], allowed),
    }
    if not result["refused"]:
        result |= {"ratio": statistics.median(ratios), "ratio_range": quartiles(ratios)}
    return result


def speed_of(result):
    """Median and quartiles, such as "412 (398-420)"."""
    if not result:
        return "-"
    low, high = result["range"]
    return f"{result['tokens_per_second']:.0f} ({low:.0f}-{high:.0f})"


def losses_of(result):
    return " ".join(f"{loss:.5f}" for loss in result["losses"])


def best_peer(row):
    """The faster form of PyTorch of those with our losses; None where there is none."""
    return min(
        (one for one in row["torch"].values() if "ratio" in one),
        key=lambda one: one["ratio"],
        default=None,
    )


def times_torch(row):
    best = best_peer(row)
    if best:
        low, high = best["ratio_range"]
        return f"{best['ratio']:.2f}x ({low:.2f}-{high:.2f})"
    return next((one["refused"] for one in row["torch"].values() if "refused" in one), "-")


def title(configuration):
    name, _, B, T, dtype, code, *_ = configuration
    return f"{name} B={B} T={T} {dtype} {code}".rstrip()


def bench_configuration(configuration, build, seconds, weights, shard):
    name, model, B, T, dtype, code, target, target_ratio = configuration
    running = contenders(configuration, build, weights, shard)
    try:
        steps, facts, ended = in_turn(running, seconds)
    finally:
        for contender in running.values():
            contender.kill()
    allowed, tokens = peer.tolerances(weights, B, T, dtype), B * T
    times = [step["step_seconds"] for step in steps["ours"]][WARMUP_TURNS:]
    row = facts["ours"] | {
        "losses": [step["loss"] for step in steps["ours"]][: peer.LOSSES],
        "range": [tokens / second for second in reversed(quartiles(times))],
        "tolerances": allowed,
        "allocator": peer.allocator()[0],
        "name": name,
        "target": target,
        "target_ratio": target_ratio,
        "code": code,
        "commit": commit(),
        "torch": {},
    }
    for form in ("eager", "compiled"):
        row["torch"][form] = (
            {"ended": ended[form]}
            if form in ended
            else of_peer(form, steps, facts, allowed, tokens)
        )
    print(
        f"{title(configuration)}: {speed_of(row)} tok/s, {row['ratio']:.1%} of matmul, "
        f"losses {losses_of(row)}"
    )
    for form, one in row["torch"].items():
        words = one.get("ended") or f"{speed_of(one)} tok/s, losses {losses_of(one)}, " + (
            one["refused"] or f"ours is {one['ratio']:.2f} times as fast"
        )
        print(f"    PyTorch {one.get('torch', '')} {form}: {words}", flush=True)
    return row


def commit():
    return output_of(["git", "describe", "--always", "--dirty"]).strip()


def bench_steps(build, seconds, only, directory):
    rows, shard = [], peer.write_shard(f"{directory}/steps_000.bin", SHARD_TOKENS, 50257)
    for configuration in CONFIGURATIONS:
        if only and not only.search(title(configuration)):
            continue
        reason = reason_to_leave_out(configuration)
        if reason:
            print(f"{reason}: {configuration} left out", flush=True)
            continue
        weights = Path(directory) / slug(configuration[1])
        if not weights.exists():
            peer.export_weights("./train_gpt2", configuration[1], weights)
        rows.append(bench_configuration(configuration, build, seconds, weights, shard))
    return rows


def bench_start(directory, runs=3):
    """Seconds from launch to the start of the first step of a 124M run: when its line appears, less
    its own time."""
    shard, times = os.path.join(directory, "train_000.bin"), []
    peer.write_shard(shard, 1 << 20, 50257)
    command = [
        "./train_gpt2",
        "-e",
        "d12",
        "-i",
        shard,
        "-b",
        "4",
        "-t",
        "256",
        "-x",
        "1",
        "-v",
        "0",
        "-s",
        "0",
    ]
    for _ in range(runs):
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            match = re.search(r"^step +1/1 .* ([\d.]+) ms \|", line)
            if match:
                times.append(time.monotonic() - began - float(match.group(1)) / 1e3)
        process.wait()
    return {
        "command": " ".join(command).replace(directory, "DIR"),
        "seconds": statistics.median(times),
        "runs": times,
    }


def bench_plan(runs=5):
    """Seconds of a search for -b and -r, from launch to end: they precede a run's first line."""
    command, times = [
        "./train_gpt2",
        "--plan",
        "json",
        "-e",
        "d48",
        "-b",
        "auto",
        "-r",
        "auto",
        "--gpu",
        "80G",
    ], []
    for _ in range(runs):
        began = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.monotonic() - began)
    return {"command": " ".join(command), "seconds": statistics.median(times), "runs": times}


def of_torch(one):
    """A cell of the table."""
    return speed_of(one) if "losses" in one else one["ended"]


def settings_of(steps):
    """How PyTorch was set up, as it said itself."""
    facts = next((one for row in steps for one in row["torch"].values() if "losses" in one), None)
    if not facts:
        return "PyTorch: not installed."
    flush = "flushed to zero" if facts["flush_denormal"] else "not flushed"
    return (
        f"PyTorch {facts['torch']} (dev/bench/torch_step.py): subnormal numbers {flush}, "
        f"{facts['threads']} threads, {steps[0]['allocator']}, attention {facts['attention']}, "
        f"{facts['optimizer']}, bf16 by autocast over fp32 weights, vocabulary padded as ours; "
        f"eager, and compiled by torch.compile. The ratio is to the faster of the two."
    )


EXPLANATION = """All programs take one step each in turn, from the same exported weights on the same
tokens; tokens/s are medians of steps, with quartiles, ratios medians over the turns of the quotient
of two neighbouring steps. The matmul rate is that of a plain library matmul (1024 x 3072 x 768),
measured after each of our steps. FLOP per token: 72 L C^2 + 6 Vp C + 6 L C (T+1), with SwiGLU
24 L C^2 + 18 L C d_ff for the first. avx2, avx512bf16: all are held to these instructions."""


WITHDRAWN = """Withdrawn: up to 2026-11-27 the embedding of PyTorch's model began as N(0, 1), so
that its gradients were full of subnormal numbers, which PyTorch computes slowly, and its memory
went back to the system in every step; the ratios 2.95, 2.89, 2.90, 3.03, 2.73, 3.22, 1.58 and
1.76 (GPT-2) and 1.54, 1.63, 3.80 and 4.31 (qwen3) were too high by an unknown part."""


def markdown(result):
    info = result["machine"]
    lines = [f"# CPU trainer, {info['cpu']}, {result['date']}", ""]
    peer_python = "PEER_PYTHON=path/to/python " if "PEER_PYTHON" in os.environ else ""
    commits = ", ".join(dict.fromkeys(row["commit"] for row in result["steps"]))
    lines += [
        f"{info['cores']} cores, {info['memory_gib']} GiB, {info['system']}, {info['compiler']}, "
        f"{result['steps'][0]['libraries']}; commit {commits}. Command: `{peer_python}make bench`.",
        "",
    ]
    lines += [
        EXPLANATION.replace("\n", " "),
        "",
        settings_of(result["steps"]),
        "",
        WITHDRAWN.replace("\n", " "),
        "",
        "| model | B | T | dtype | ms/step | tok/s | target | step GFLOP/s | matmul GFLOP/s | "
        "ratio (target) | PyTorch eager, tok/s | compiled, tok/s | ours / PyTorch | "
        "resident GiB (planned) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["steps"]:
        ratio_target = f" ({row['target_ratio']:.0%})" if row["target_ratio"] else ""
        lines.append(
            f"| {row['name']} | {row['B']} | {row['T']} | {row['dtype']} {row['code']} | "
            f"{row['step_seconds'] * 1e3:.0f} | "
            f"{speed_of(row)} | {row['target'] or '-'} | {row['step_flops'] / 1e9:.0f} | "
            f"{row['matmul_flops'] / 1e9:.0f} | {row['ratio']:.1%}{ratio_target} | "
            f"{of_torch(row['torch']['eager'])} | "
            f"{of_torch(row['torch']['compiled'])} | {times_torch(row)} | "
            f"{row['memory_peak'] / 2**30:.2f} ({row['memory_planned'] / 2**30:.2f}) |"
        )
    lines += [
        "",
        "Losses of the first steps:",
        "",
        "| model | T | dtype | ours | eager | compiled | allowed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["steps"]:
        cells = [
            losses_of(one) + (", refused" if one["refused"] else "") if "losses" in one else "-"
            for one in row["torch"].values()
        ]
        allowed = " ".join(f"{tolerance:.1e}" for tolerance in row["tolerances"])
        lines.append(
            f"| {row['name']} | {row['T']} | {row['dtype']} {row['code']} | {losses_of(row)} | "
            f"{' | '.join(cells)} | {allowed} |"
        )
    if result["other"]:
        lines += ["", "| what | measured | target |", "| --- | --- | --- |"]
    for name, value, target in result["other"]:
        lines.append(f"| {name} | {value} | {target} |")
    return "\n".join(lines) + "\n"


def bench_others(build):
    with tempfile.TemporaryDirectory() as directory:
        start = bench_start(directory)
    plan = bench_plan()
    loader = json.loads(output_of([f"{build}/dev/bench/bench_loader"]))
    loader_speed = f"{loader['tokens_per_second'] / 1e6:.0f}M tok/s"
    other = [
        ("loader, one thread, page cache", loader_speed, f">= {LOADER_TARGET / 1e6:.0f}M tok/s"),
        ("launch to first step, 124M", f"{start['seconds']:.2f} s", f"<= {START_TARGET:.0f} s"),
        (
            "a plan for -b auto -r auto, 1558M",
            f"{plan['seconds']:.2f} s",
            f"<= {PLAN_TARGET:.0f} s",
        ),
    ]
    return {"start": start, "plan": plan, "loader": loader, "other": other}


def updated(path, rows):
    """The result in this file with these rows in place of its own; sorted as CONFIGURATIONS."""

    def key(row):
        return row["name"], row["B"], row["T"], row["dtype"], row["code"]

    today = datetime.date.today().isoformat()
    new = {"date": today, "machine": machine(), "steps": [], "other": []}
    result = json.loads(path.read_text()) if path.exists() else new
    known = {key(row): row for row in [*result["steps"], *rows]}
    order = [(name, B, T, dtype, code) for name, _, B, T, dtype, code, *_ in CONFIGURATIONS]
    return result | {"steps": [known[one] for one in order if one in known]}


def write(result, base):
    base.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    base.with_suffix(".md").write_text(markdown(result))
    print(f"written: {base}.md and .json")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", default="build/release")
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="of turns of a configuration, at least 3 turns"
    )
    parser.add_argument(
        "--only",
        metavar="REGEX",
        type=re.compile,
        help="only the configurations whose line it matches, and nothing else; writes no files",
    )
    parser.add_argument(
        "--update",
        metavar="FILE",
        type=Path,
        help="write these rows into this result (.json), or begin it",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the table, write no files")
    options = parser.parse_args()
    for program in ("bench_step", "bench_loader"):
        if not os.access(f"{options.build}/dev/bench/{program}", os.X_OK):
            sys.exit(
                f"bench_cpu.py: no {options.build}/dev/bench/{program}; `make bench` builds it, "
                "as does "
                f"`make all {options.build}/dev/bench/bench_{{step,loader}}`"
            )

    with tempfile.TemporaryDirectory() as directory:
        steps = bench_steps(options.build, options.seconds, options.only, directory)
    if options.update:
        return write(updated(options.update, steps), options.update.with_suffix(""))
    if options.only:
        return
    date = datetime.date.today().isoformat()
    result = {"date": date, "machine": machine(), "steps": steps, **bench_others(options.build)}
    print("\n" + markdown(result))
    if not options.dry_run:
        write(result, Path(f"dev/bench/results/cpu_{slug(result['machine']['cpu'])}_{date}"))


if __name__ == "__main__":
    tool.run(main)
