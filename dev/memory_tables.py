#!/usr/bin/env python3
"""The table of doc/memory.md, from the planner: the largest GPT-2-style model for each size of GPU memory and for each
way to keep weights, gradients and the optimizer's state.

  dev/memory_tables.py            prints the table
  dev/memory_tables.py --write    puts it into doc/memory.md
  dev/memory_tables.py --check    fails if that table is stale: each model must fit, and the next larger must not

A model of the family has C channels in steps of 64, heads of 64 and C / 32 blocks, nearly as GPT-2 of 1558M (48 blocks
of 1600 channels); context 1024, GPT-2's vocabulary, bf16, one sequence at a time, -r auto, no samples. 1 GB of the
memory, at most 6%, stays free for the CUDA context. TRAINER names the trainer that plans; default: ./train_gpt2.
"""
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
import tool  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TRAINER = os.environ.get("TRAINER", ROOT / "train_gpt2")
DOC = ROOT / "doc" / "memory.md"
BEGIN, END = "<!-- made by dev/memory_tables.py -->", "<!-- end -->"

SIZES = (8, 16, 24, 40, 80, 141)
SCHEMES = (
    "--optimizer adamw",
    "--optimizer adamw --offload optimizer",
    "--optimizer muon",
    "--optimizer lion",
    "--optimizer adafactor",
    "--optimizer adamw8bit",
    "--optimizer adamw8bit -w 0",
    "--optimizer adamw8bit -w 0 --grad-dtype compute",
    "--optimizer adamw-bf16 --grad-dtype compute",
    "--optimizer adamw8bit --grad-dtype compute --offload optimizer",
    "--gpus 8 --optimizer adamw",
    "--gpus 8 --optimizer adamw8bit",
    "--gpus 8 --optimizer adamw-bf16 --grad-dtype compute",
    "--gpus 8 --optimizer adamw8bit -w 0 --grad-dtype compute",
)
STEP, SMALLEST, LARGEST = 64, 2, 200  # of C, in steps


def model(n):
    return f"L={max(1, n * STEP // 32)},C={n * STEP},NH={n},V=50257,T=1024"


@lru_cache(maxsize=None)
def plan(scheme, size, n):
    """The planner's output for the n-th model of the family on so many GB."""
    command = [TRAINER, "--plan", "json", "--gpu", f"{size}G", "-e", model(n), "-b", "1", "-r", "auto", "-s", "0",
               "-t", "1024", *scheme.split()]
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)
    if said.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {said.stderr.strip()}")
    return json.loads(said.stdout)


def fits(scheme, size, n):
    return plan(scheme, size, n)["devices"][0]["fits"]


def largest(scheme, size):
    """The last model of the family that fits; 0: none does."""
    low, high = SMALLEST - 1, LARGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(scheme, size, middle) else (low, middle)
    return low if low >= SMALLEST else 0


def cell(scheme, size, n):
    if n == 0:
        return "-"
    parameters = plan(scheme, size, n)["model"]["parameters"]
    count = f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
    return f"{count} (C={n * STEP})"


def bytes_a_parameter(scheme):
    """Bytes of weights, master, gradients and state on the device, for the 1558M model, without a GPU's limit."""
    return plan(scheme, 1000, 25)["devices"][0]["memory"]["bytes_per_parameter"]


def row(scheme):
    cells = [cell(scheme, size, largest(scheme, size)) for size in SIZES]
    return f"| `{scheme}` | {bytes_a_parameter(scheme):.2f} | " + " | ".join(cells) + " |"


def table():
    head = ["| | bytes a parameter | " + " | ".join(f"{size} GB" for size in SIZES) + " |",
            "| --- | --- |" + " --- |" * len(SIZES)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return "\n".join(head + list(pool.map(row, SCHEMES)))


def stale():
    """The errors in the table of the document, a line each."""
    text = DOC.read_text()
    rows = text[text.index(BEGIN):text.index(END)].splitlines()[3:]
    wrong = []
    if [line.split("`")[1] for line in rows] != list(SCHEMES):
        return [f"{DOC}: the rows are not {SCHEMES}"]

    def check(place):
        scheme, size, stated = place
        match = re.fullmatch(r"[0-9.]+[MB] \(C=([0-9]+)\)", stated)
        n = int(match[1]) // STEP if match else 0
        if stated != cell(scheme, size, n):
            return f"{scheme}, {size} GB: {stated}, but that is {cell(scheme, size, n)}"
        if n and not fits(scheme, size, n):
            return f"{scheme}, {size} GB: {stated} does not fit"
        if fits(scheme, size, n + 1 if n else SMALLEST):
            return f"{scheme}, {size} GB: more than {stated} fits"
        return ""

    places = [(scheme, size, stated.strip()) for scheme, line in zip(SCHEMES, rows)
              for size, stated in zip(SIZES, line.split("|")[3:-1])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong += filter(None, pool.map(check, places))
    for scheme, line in zip(SCHEMES, rows):
        if line.split("|")[2].strip() != f"{bytes_a_parameter(scheme):.2f}":
            wrong.append(f"{scheme}: {line.split('|')[2].strip()} bytes a parameter")
    return wrong


def main(arguments):
    if arguments == ["--check"]:
        wrong = stale()
        print("\n".join(wrong) or f"{DOC.name}: as planned")
        return bool(wrong)
    if arguments not in ([], ["--write"]):
        print(__doc__.strip())
        return arguments not in (["--help"], ["-h"])
    made = table()
    if not arguments:
        print(made)
        return 0
    text = DOC.read_text()
    DOC.write_text(text[:text.index(BEGIN)] + f"{BEGIN}\n{made}\n" + text[text.index(END):])
    return 0


if __name__ == "__main__":
    tool.run(main, sys.argv[1:])
