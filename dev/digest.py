#!/usr/bin/env python3
"""One hash a row of everything that a refactoring must not change: weights, moments, log and printed lines (without
times) after some steps of a tiny model in every dtype x optimizer x gradient dtype x recompute set; checkpoint bytes,
exports, resume, generation; help, header, plan and error texts; the output of the data tools.

    dev/digest.py > before; (change, build); dev/digest.py | diff before -

TRAINER=./train_gpt2sim takes a short selection of the training rows. Digests depend on the processor and on libraries:
only digests of one machine compare."""
import argparse
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAINER = Path(os.environ.get("TRAINER", ROOT / "train_gpt2")).resolve()
TOOLS = ROOT / "data"
SIM = "sim" in TRAINER.name
MODEL = ["-e", "L=2,C=64,NH=2,T=32", "-t", "32", "-b", "2", "-d", "128", "--threads", "1"]
OPTIMIZERS = "adamw adamw8bit adamw-bf16 adamw-kahan lion adafactor sgd muon".split()

# Times, rates and what else a run measures; the JSON of logs and checkpoints names them.
MEASURED = re.compile(
    r'"(time|ms\w*|\w*seconds|\w*per_second\w*|[mh]fu\w*|measured|memory_peak|\w*_flops|\w*_bandwidth|libraries|name|date|'
    r'step_seconds|free|written)": ?("[^"]*"|[^,}\n]*)')
SPOKEN = [(re.compile(p, re.M), r) for p, r in [
    (r"^(limits|starting|summary|machine|memory      measured).*\n", ""),
    (r"\| +[\d.]+ m?s \|.*", ""),
    (r"\b\d[\d.]*[KMGT]? ?(ms|s|m|tokens?/s|tok/s|GB/s|MB/s|TFLOP/s|GiB free|MiB/s)\b", "#"),
]]


def plain(text):
    for pattern, replacement in SPOKEN:
        text = pattern.sub(replacement, text)
    return MEASURED.sub(r'"\1":#', text)


def digest(*parts):
    h = hashlib.sha256()
    for part in parts:
        h.update(part if isinstance(part, bytes) else part.encode())
    return h.hexdigest()[:16]


def row(name, *parts):
    print(f"{digest(*parts)}  {name}", flush=True)


def run(*command):
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace",
                       stdin=subprocess.DEVNULL)
    return plain(f"{r.returncode}\n{r.stdout}\n{r.stderr}")


def files(directory, pattern="*"):
    """Name and content of every file; JSON without what was measured."""
    found = sorted(p for p in Path(directory).rglob(pattern) if p.is_file() and "tfevents" not in p.name and p.name != ".lock")
    for p in found:
        data = p.read_bytes()
        yield str(p)
        # A checksum of a file whose times were taken out says nothing any more.
        text = re.sub(r'"(main.log|trainer.json)": \{[^}]*\}', "", data.decode()) if p.suffix in (".json", ".log") else ""
        yield plain(text) if text else data


def train(name, *options, parts=("weights", "moments", "log", "said")):
    shutil.rmtree("out", ignore_errors=True)
    said = run(TRAINER, "-i", "shards/train_*.bin", "-j", "shards/val_*.bin", "-o", "out", *MODEL, *options)
    content = {"weights": list(files("out", "model*.safetensors")), "moments": list(files("out", "optimizer.safetensors")),
               "log": list(files("out", "main.log")) + list(files("out", "*.json")), "said": [said]}
    print("  ".join(digest(*content[p]) for p in parts), "", name, flush=True)


def training():
    steps = ["-x", "20", "-v", "10", "-m", "4", "-s", "0", "-l", "1e-3"]
    if SIM:
        steps = ["-x", "3", "-v", "0", "-s", "0", "-l", "1e-3"]
        for dtype in "bf16", "fp16", "fp32":
            train(f"sim {dtype}", "--dtype", dtype, *steps)
        for optimizer in OPTIMIZERS[1:]:
            train(f"sim bf16 {optimizer} gradients in bf16, -r 3", "--dtype", "bf16", "--optimizer", optimizer,
                  "--grad-dtype", "compute", "-r", "3", *steps)
        return
    for dtype in "bf16", "fp32":
        for optimizer in OPTIMIZERS:
            for gradient in "fp32", "compute":
                for recompute in ["0", "3"] if dtype == "bf16" else ["0"]:
                    train(f"{dtype} {optimizer} gradients {gradient} -r {recompute}", "--dtype", dtype, "--optimizer",
                          optimizer, "--grad-dtype", gradient, "-r", recompute, *steps)
    for recompute in "1", "2", "3/2", "gelu+qkv", "3x1,2", "auto":
        train(f"bf16 adamw -r {recompute}", "-r", recompute, *steps)
    for options in (["--offload", "optimizer"], ["-w", "0"], ["--numerics-every", "5"], ["-ge", "1"], ["-a", "1"],
                    ["-k", "wsd", "-u", "3"], ["-sl", "3", "-sg", "3"], ["--schedule", "linear"]):
        train("bf16 " + " ".join(options), *steps, *options)


def runs():
    steps = ["-v", "5", "-m", "4", "-s", "6", "-g", "12", "-n", "4", "-nk", "0"]
    train("checkpoints, samples", *steps, "-x", "12")
    said = run(TRAINER, "-o", "out", "-y", "1", "-x", "16", *MODEL[-2:], "-i", "shards/train_*.bin", "-j", "shards/val_*.bin")
    row("resumed", said, *files("out"))
    for path in "model.bin", "hf":
        for dtype in "fp32", "bf16":
            said = run(TRAINER, "-e", "out/step_00000016", "-x", "0", "-v", "0", "-s", "0", "--threads", "1", "-j",
                       "shards/val_*.bin", "--export", f"{path}:{dtype}")
            row(f"export {path} {dtype}", said, *files(".", path + "*"), *(files(path) if path == "hf" else ()))
    row("from hf", run(TRAINER, "-e", "hf", "-x", "0", "--samples", "2", "-g", "16", "--prompt", "the of", "--threads",
                       "1", "-j", "shards/val_*.bin", "-m", "4", "-b", "1"))
    row("from .bin", run(TRAINER, "-e", "model.bin", "-x", "0", "-g", "16", "--tokenizer", "bytes", "--threads", "1",
                         "-j", "shards/val_*.bin", "-m", "4", "-b", "1", "--top-k", "3", "--top-p", "0.9"))


def texts():
    row("--help", run(TRAINER, "--help"))
    for options in (["-e", "d12", "-b", "auto", "-t", "1024", "-d", "524288", "-r", "auto"],
                    ["-e", "d48", "-b", "4", "--optimizer", "adamw8bit", "-w", "0", "--grad-dtype", "compute"],
                    ["-e", "d24", "-b", "64", "--fp8", "1", "-x", "1000", "-d", "524288"],
                    ["-e", "d48", "-b", "16", "--offload", "optimizer", "-x", "10"]):
        for form in "text", "json":
            gpus = ["--plan", form, "--gpu", "h200,a100,t4,rtx4090,24G", "-i", "shards/train_*.bin"]
            row(f"plan {form} {' '.join(options)}", run(TRAINER, *gpus, *options))
    for options in (["--btach-size", "4"], ["-b", "x"], ["-d", "100"], ["-i", "none_*.bin"], ["-e", "L=0"], ["-e", "nowhere"],
                    ["-y", "1"], ["-z", "1"], ["-pn", "2"], ["-pi", "mpi"], ["-ps", "a"], ["-pg", "8"], ["--dtype", "fp8"],
                    ["-t", "4096"], ["--export", "x.bin:fp16"], ["--tokenizer", "nowhere"], ["-z"],
                    ["--interactive"], ["--choices", "none"], ["-r", "9"], ["--gpu", "h2000", "--plan"]):
        row("refused " + " ".join(options), run(TRAINER, "-i", "shards/train_*.bin", "-j", "shards/val_*.bin", "-x", "1",
                                                *MODEL, "-s", "0", *options))


def tools():
    for tool in "prepare", "train_tokenizer", "shard", "whereis", "choices":
        row(f"{tool} --help", run(TOOLS / tool, "--help"))
    row("prepare", run(TOOLS / "prepare", "-o", "p1", "text"), *files("p1"))
    row("prepare, no validation", run(TOOLS / "prepare", "-o", "p2", "--val-fraction", "0", "text"), *files("p2"))
    row("prepare jsonl, split", run(TOOLS / "prepare", "-o", "p3", "--shard-tokens", "4096", "--threads", "2", "lines.jsonl"),
        *files("p3"))
    row("prepare, new vocabulary", run(TOOLS / "prepare", "-o", "p4", "--tokenizer", "train:400", "text"), *files("p4"))
    row("train_tokenizer", run(TOOLS / "train_tokenizer", "-o", "p5", "--vocab-size", "300", "text"), *files("p5"))
    row("prepare --tokenizer", run(TOOLS / "prepare", "-o", "p6", "--tokenizer", "p4", "text"), *files("p6"))
    for verb in "list", "show", "verify":
        row(f"shard {verb}", run(TOOLS / "shard", verb, "shards/train_000000.bin"))
    row("whereis", run(TOOLS / "whereis", "out", "5"), run(TOOLS / "whereis", "out", "7"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    # The same path each time: the log names it.
    place = Path(tempfile.gettempdir()) / f"pretrain-digest-{os.getuid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    os.chdir(place)
    choose = random.Random(1)
    words = "the of and to in that it was for on are with as his they at be this have or by one had not but".split()
    texts_made = [" ".join(choose.choice(words) for _ in range(300)) + ".\n" for _ in range(20)]
    Path("text").mkdir()
    for i, t in enumerate(texts_made):
        Path(f"text/{i:02d}.txt").write_text(t)
    Path("lines.jsonl").write_text("".join(f'{{"text": "{t.strip()}"}}\n' for t in texts_made))
    said = run(TOOLS / "prepare", "-o", "shards", "text")
    if not Path("shards/train_000000.bin").exists():
        sys.exit(said)
    training()
    if not SIM:
        runs()
        texts()
        tools()


main()
