#!/usr/bin/env python3
"""Measures the CPU trainer and writes dev/bench/results/cpu_NAME_DATE.{json,md}.

    dev/bench/bench_cpu.py [--build build/release] [--seconds 8] [--rounds 3] [--only REGEX] [--dry-run]

A configuration is ROUNDS processes of bench_step: whole training steps with the rate of a plain library matmul measured
between them; and in turn with them the same step in PyTorch (torch_step.py), where it is installed: Debian's, or that of
PEER_PYTHON=path/to/python. Of each the median process and the range. On a shared machine tokens/s moves with the
neighbours; the ratio to the matmul rate is steady. avx2: both are held to AVX2, which is what most machines have;
avx512bf16: on a machine with AMX, to what a Zen 4 or 5 has.
"""
import argparse
import datetime
import json
import os
import platform
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import tool  # noqa: E402

# name, model, B, T, dtype, vector code, targets for tokens/s and for the ratio to the matmul rate (a 2-core AVX512-BF16
# machine; None: there is none)
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
HELD = {"": {},
        "avx512bf16": {"PRETRAIN_CPU": "avx512bf16", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
        "avx2": {"PRETRAIN_CPU": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
                 "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
PEER_PYTHON = os.environ.get("PEER_PYTHON", "/usr/bin/python3")
LOADER_TARGET = 200e6  # tokens/s of one thread, files in the page cache
START_TARGET = 3.0  # seconds from launch to the first step, 124M
PLAN_TARGET = 1.0  # seconds of --plan with -b auto and -r auto, 1558M


def output_of(command, **environment):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment).stdout
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
        "commit": output_of(["git", "describe", "--always", "--dirty"]).strip(),
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


def bench_torch(shape, B, T, dtype, held):
    """The same step in PyTorch; None where there is no PyTorch."""
    printed = output_of([PEER_PYTHON, "dev/bench/torch_step.py", shape, str(B), str(T), dtype], **held)
    return json.loads(printed) if printed else None


def middle(results):
    """The median by tokens/s, with the range of all; None where there is none."""
    ordered = sorted((r for r in results if r), key=lambda r: r["tokens_per_second"])
    if not ordered:
        return None
    return ordered[len(ordered) // 2] | {"range": [ordered[i]["tokens_per_second"] for i in (0, -1)]}


def speed_of(result):
    """Median and range, such as "412 (398-420)"."""
    if not result:
        return "-"
    low, high = result["range"]
    return f"{result['tokens_per_second']:.0f} ({low:.0f}-{high:.0f})"


def times_torch(row):
    return f"{row['tokens_per_second'] / row['torch']['tokens_per_second']:.2f}x" if row["torch"] else "-"


def title(configuration):
    name, _, B, T, dtype, code, *_ = configuration
    return f"{name} B={B} T={T} {dtype} {code}".rstrip()


def bench_configuration(configuration, build, seconds, rounds):
    name, model, B, T, dtype, code, target, target_ratio = configuration
    command = [f"{build}/dev/bench/bench_step", model, str(B), str(T), dtype, "0", str(seconds)]
    ours, peer = [], []
    for _ in range(rounds if code != "avx512bf16" or T < 1024 else 1):  # a minute each
        ours.append(json.loads(output_of(command, **HELD[code])))
        peer.append(bench_torch(model.replace("d12", "L=12,C=768,NH=12"), B, T, dtype, HELD[code]))
    row = middle(ours) | {"torch": middle(peer), "name": name, "target": target, "target_ratio": target_ratio,
                          "code": code, "command": " ".join([f"PRETRAIN_CPU={code}"] * bool(code) + command)}
    print(f"{title(configuration)}: {speed_of(row)} tok/s, {row['ratio']:.1%} of matmul, "
          f"PyTorch {speed_of(row['torch'])}, {times_torch(row)}", flush=True)
    return row


def bench_steps(build, seconds, rounds, only):
    rows = []
    for configuration in CONFIGURATIONS:
        if only and not only.search(title(configuration)):
            continue
        reason = reason_to_leave_out(configuration)
        if reason:
            print(f"{reason}: {configuration} left out", flush=True)
            continue
        rows.append(bench_configuration(configuration, build, seconds, rounds))
    return rows


def write_random_shard(path, tokens, vocab):
    header = struct.pack("<256i", *([20240520, 1, tokens, vocab] + [0] * 252))
    with open(path, "wb") as file:
        file.write(header)
        block = b"".join(struct.pack("<H", (i * 40503 + i // 7) % vocab) for i in range(65536))
        for first in range(0, tokens, 65536):
            file.write(block[: 2 * min(65536, tokens - first)])


def bench_start(directory, runs=3):
    """Seconds from launch to the start of the first step of a 124M run: the time its line appears less its own time."""
    shard, times = os.path.join(directory, "train_000.bin"), []
    write_random_shard(shard, 1 << 20, 50257)
    command = ["./train_gpt2", "-e", "d12", "-i", shard, "-b", "4", "-t", "256", "-x", "1", "-v", "0", "-s", "0"]
    for _ in range(runs):
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            match = re.search(r"^step +1/1 .* ([\d.]+) ms \|", line)
            if match:
                times.append(time.monotonic() - began - float(match.group(1)) / 1e3)
        process.wait()
    return {"command": " ".join(command).replace(directory, "DIR"), "seconds": statistics.median(times), "runs": times}


def bench_plan(runs=5):
    """Seconds of a search for -b and -r, from launch to end: what stands between a user and the first line of a run."""
    command, times = ["./train_gpt2", "--plan", "json", "-e", "d48", "-b", "auto", "-r", "auto", "--gpu", "80G"], []
    for _ in range(runs):
        began = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.monotonic() - began)
    return {"command": " ".join(command), "seconds": statistics.median(times), "runs": times}


def torch_version(rows):
    versions = [row["torch"]["torch"] for row in rows if row["torch"]]
    return f"version {versions[0]}" if versions else "not installed"


def markdown(result):
    info = result["machine"]
    lines = [f"# CPU trainer, {info['cpu']}, {result['date']}", ""]
    peer = "PEER_PYTHON=path/to/python " if "PEER_PYTHON" in os.environ else ""
    lines += [f"{info['cores']} cores, {info['memory_gib']} GiB, {info['system']}, {info['compiler']}, "
              f"{result['steps'][0]['libraries']}; commit {info['commit']}. Command: `{peer}make bench`.", ""]
    lines += [
        "Medians of whole training steps, and the range of the processes' medians. FLOP per token: 72 L C^2 + 6 Vp C + "
        "6 L C (T+1), with SwiGLU 24 L C^2 + 18 L C d_ff for the first. The matmul rate is a plain",
        "library matmul (1024 x 3072 x 768) measured between the steps, in the same process. PyTorch: the same step, "
        "eager,",
        f"{torch_version(result['steps'])}, bf16 by autocast (dev/bench/torch_step.py), in turn with ours. avx2, avx512bf16: both "
        "held to these instructions.",
        "",
        "| model | B | T | dtype | ms/step | tok/s (range) | target | step GFLOP/s | matmul GFLOP/s | ratio (target) | "
        "PyTorch tok/s (range) | ours / PyTorch | resident GiB (planned) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["steps"]:
        ratio_target = f" ({row['target_ratio']:.0%})" if row["target_ratio"] else ""
        lines.append(
            f"| {row['name']} | {row['B']} | {row['T']} | {row['dtype']} {row['code']} | {row['step_seconds'] * 1e3:.0f} | "
            f"{speed_of(row)} | {row['target'] or '-'} | {row['step_flops'] / 1e9:.0f} | "
            f"{row['matmul_flops'] / 1e9:.0f} | {row['ratio']:.1%}{ratio_target} | {speed_of(row['torch'])} | "
            f"{times_torch(row)} | "
            f"{row['memory_peak'] / 2**30:.2f} ({row['memory_planned'] / 2**30:.2f}) |"
        )
    lines += ["", "| what | measured | target |", "| --- | --- | --- |"]
    for name, value, target in result["other"]:
        lines.append(f"| {name} | {value} | {target} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--seconds", type=float, default=8.0, help="timed steps of each process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each configuration")
    parser.add_argument("--only", metavar="REGEX", type=re.compile,
                        help="only the configurations whose line it matches, and nothing else; writes no files")
    parser.add_argument("--dry-run", action="store_true", help="print the table, write no files")
    options = parser.parse_args()
    for program in ("bench_step", "bench_loader"):
        if not os.access(f"{options.build}/dev/bench/{program}", os.X_OK):
            sys.exit(f"bench_cpu.py: no {options.build}/dev/bench/{program}; `make bench` builds it, as does "
                     f"`make all {options.build}/dev/bench/bench_{{step,loader}}`")

    steps = bench_steps(options.build, options.seconds, options.rounds, options.only)
    if options.only:
        return
    with tempfile.TemporaryDirectory() as directory:
        start = bench_start(directory)
    plan = bench_plan()
    loader = json.loads(output_of([f"{options.build}/dev/bench/bench_loader"]))
    loader_speed = f"{loader['tokens_per_second'] / 1e6:.0f}M tok/s"
    other = [
        ("loader, one thread, page cache", loader_speed, f">= {LOADER_TARGET / 1e6:.0f}M tok/s"),
        ("launch to first step, 124M", f"{start['seconds']:.2f} s", f"<= {START_TARGET:.0f} s"),
        ("a plan for -b auto -r auto, 1558M", f"{plan['seconds']:.2f} s", f"<= {PLAN_TARGET:.0f} s"),
    ]
    date = datetime.date.today().isoformat()
    result = {"date": date, "machine": machine(), "steps": steps, "start": start, "plan": plan, "loader": loader,
              "other": other}
    print("\n" + markdown(result))
    if not options.dry_run:
        base = f"dev/bench/results/cpu_{slug(result['machine']['cpu'])}_{date}"
        with open(base + ".json", "w") as file:
            json.dump(result, file, indent=1)
        with open(base + ".md", "w") as file:
            file.write(markdown(result))
        print(f"written: {base}.md and .json")


if __name__ == "__main__":
    tool.run(main)
