"""Shared by check_gpu.py and bench_gpu.py: sections with a time budget, runs of the trainer, its log, token shards,
facts about the machine, tables. Needs only Python.

A section is one row or one table of the report. It has a time limit of its own, at most the remainder of the whole
budget; when that is used up it is skipped and the report says so. The report is written again after every section, so
an interrupted run loses no measurement.
"""
import datetime
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import tool  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "dev" / "bench" / "results"


class Skipped(Exception):
    """A section that cannot be done here, with the reason."""


class Failed(Exception):
    """A section that found something wrong."""


def output_folder():
    """Where reports go unless --output says otherwise: $OUT, or next to the others."""
    return Path(os.environ.get("OUT") or RESULTS)


# ---------------------------------------------------------------------------------------------------------- processes


MAX_OUTPUT = 1 << 24  # bytes kept of what a program prints: the last ones


class Finished:
    def __init__(self, command, status, stdout, stderr, seconds):
        self.command, self.status = [str(part) for part in command], status
        self.stdout, self.stderr, self.seconds = stdout, stderr, seconds

    def last_words(self):
        lines = [line for line in (self.stdout + "\n" + self.stderr).splitlines() if line.strip()]
        return "".join(c if c.isprintable() else "?" for c in " / ".join(lines[-3:])[-400:])


def run(command, seconds, env=None):
    """Runs a command from the repository root; status None: it was ended, with all it started, when its time was up."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env=dict(os.environ, **(env or {})),
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        except OSError as error:
            return Finished(command, 127, "", str(error), 0.0)
        try:
            status = process.wait(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind, or itself
            except ProcessLookupError:
                pass
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_OUTPUT))
            texts.append(file.read().decode(errors="replace"))
    return Finished(command, status, *texts, time.monotonic() - began)


def reason(finished):
    if finished.status is None:
        return f"{finished.command[0]} ran out of time after {finished.seconds:.0f} s"
    return f"{finished.command[0]} ended with status {finished.status}: {finished.last_words()}"


def must(finished):
    """Raises Failed unless the command ended well."""
    if finished.status != 0:
        raise Failed(reason(finished))
    return finished


def output_of(*command):
    finished = run(command, 20)
    return finished.stdout.strip() if finished.status == 0 else ""


# ------------------------------------------------------------------------------------------------------------- budget


class Budget:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


class Sections:
    """Runs sections in turn and keeps the report on disk up to date."""

    def __init__(self, seconds, only, write):
        """only: a regular expression; sections whose names do not match are left out without a word."""
        self.budget, self.only, self.write = Budget(seconds), re.compile(only), write
        self.rows = []  # name, result, seconds, detail
        self.notes = []  # of the section that runs

    def note(self, text):
        """Makes the running section a failed one; it still runs to its end."""
        self.notes.append(text)

    def run(self, name, seconds, work, needs=5.0):
        """work(limit) returns a line of detail. needs: not begun with less time than this. Returns whether what builds
        on this section can go on."""
        if not self.only.search(name):
            return True
        limit = min(seconds, self.budget.left())
        began, self.notes = time.monotonic(), []
        if limit < needs:
            result, detail = "skipped", f"out of time ({max(limit, 0):.0f} s left)"
        else:
            try:
                result, detail = "passed", work(limit) or ""
            except Skipped as reason:
                result, detail = "skipped", str(reason)
            except Failed as reason:
                result, detail = "FAILED", str(reason)
            except Exception as error:  # a slip in one section must not cost the others
                result, detail = "FAILED", f"{type(error).__name__}: {error}"
        goes_on = result == "passed"
        if self.notes:
            result, detail = "FAILED", "; ".join([*self.notes, detail])
        self.rows.append({"name": name, "result": result, "seconds": round(time.monotonic() - began, 1),
                          "detail": " ".join(detail.split())})
        print(f"{self.rows[-1]['seconds']:7.1f} s  {result:7s}  {name}: {self.rows[-1]['detail']}", flush=True)
        self.write(self)
        return goes_on

    def count(self, result):
        return sum(row["result"] == result for row in self.rows)

    def line(self):
        skipped = f", {self.count('skipped')} skipped" if self.count("skipped") else ""
        return f"{self.count('passed')} passed, {self.count('FAILED')} failed{skipped}"


# --------------------------------------------------------------------------------------------------------------- data


def write_shard(path, tokens, vocab):
    """An llm.c shard that states its vocabulary."""
    header = [20240520, 1, len(tokens), vocab] + [0] * 252
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))
    return path


def write_words(directory, tokens, vocab):
    """train_0.bin: a stream of 200 made-up words of 2 to 6 tokens, so that there is something to learn; the same on
    every machine. Returns the pattern."""
    choose = random.Random(1)
    words = [[choose.randrange(vocab) for _ in range(choose.randint(2, 6))] for _ in range(200)]
    stream = []
    while len(stream) < tokens:
        stream += words[min(choose.randrange(200), choose.randrange(200))]
    write_shard(directory / "train_0.bin", stream[:tokens], vocab)
    return str(directory / "train_*.bin")


def write_random(directory, tokens, vocab):
    """Tokens without meaning, for timing; one block of them over and over, so that it takes no time."""
    choose = random.Random(2)
    block = [choose.randrange(vocab) for _ in range(1 << 16)]
    write_shard(directory / "train_0.bin", (block * (tokens // len(block) + 1))[:tokens], vocab)
    return str(directory / "train_*.bin")


# ------------------------------------------------------------------------------------------------------------- trainer


def events(directory, kind):
    """All objects of this kind in DIRECTORY/main.log."""
    log = Path(directory) / "main.log"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return [entry for entry in whole if entry["event"] == kind]


# Nothing of cuDNN's, no epilogue with GELU, no choice that another run left.
SAFE, SAFE_CACHE = ["--attention", "own", "-ge", 0], "off"
SAFE_TEXT = " ".join(map(str, SAFE))


class Trainer:
    """Runs a trainer. Where it breaks or hangs with what it chooses itself, it is run once more with SAFE, so that one bad
    library does not cost every measurement; if that helps, so are all runs after it, and `note` is told why."""

    def __init__(self, env):
        self.env, self.safe, self.note = env, False, print
        self.off = []  # options with values, of features that failed before; a run that names one itself decides
        self.proven = False  # that a run ends: until then each leaves time for a second one

    def run(self, command, more, limit):
        """more: the options of this run, which win over SAFE."""
        command = [*command, *(part for option in self.off if option[0] not in more for part in option)]
        budget, chosen = Budget(limit), any(option in more for option in ("--attention", "-ge", "-y"))
        if self.safe:
            return run([*command, *SAFE, *more], limit, dict(self.env, PRETRAIN_CACHE=SAFE_CACHE))
        finished = run([*command, *more], limit if self.proven or chosen else 0.6 * limit, self.env)
        self.proven = self.proven or finished.status == 0
        if chosen or finished.status in (0, 2, 127) or budget.left() < 1:  # 2: refused, 127: not there
            return finished
        if "-o" in command:
            fresh(command[command.index("-o") + 1])
        again = run([*command, *more, *SAFE], budget.left(), dict(self.env, PRETRAIN_CACHE=SAFE_CACHE))
        if again.status != 0:
            return finished
        self.safe = True
        self.note(f"{reason(finished)}; it works with {SAFE_TEXT}, which all later runs use")
        return again


def losses(directory):
    return [entry["loss"] for entry in events(directory, "step")]


def only(directory, kind):
    found = events(directory, kind)
    if not found:
        raise Failed(f"main.log has no '{kind}' event")
    return found[-1]


def fresh(directory):
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def median(values):
    values = list(values)
    if not values:
        raise Failed("nothing was measured")
    return statistics.median(values)


# ------------------------------------------------------------------------------------------------------------- machine


def gpu_facts():
    """Of the first GPU; {} where there is none that nvidia-smi knows."""
    keys = ["name", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "clocks.max.memory"]
    lines = output_of("nvidia-smi", "--query-gpu=" + ",".join(keys), "--format=csv,noheader").splitlines()
    return dict(zip(keys, (value.strip() for value in lines[0].split(",")))) if lines else {}


def machine():
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin:{ROOT}/.cuda/bin") or "nvcc"
    release = re.search(r"release [\d.]+", output_of(nvcc, "--version"))
    system = re.search(r'PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text())
    return {
        "gpu": gpu_facts(),
        "nvcc": release.group(0) if release else "none",
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{system.group(1) if system else 'unknown'}, Linux {platform.release()}",
        "commit": output_of("git", "describe", "--always", "--dirty") or "unknown",
    }


def describe(info):
    gpu = info["gpu"]
    shown = f"{gpu['name']} ({gpu['memory.total']}), driver {gpu['driver_version']}" if gpu else "no GPU"
    return (f"{shown}; nvcc {info['nvcc']}; {info['cores']} cores of {info['cpu']}; {info['system']}; "
            f"commit {info['commit']}")


def machine_name(info, trainer):
    """For file names: the GPU's, or the name of the backend that replaces one."""
    name = info["gpu"].get("name") or Path(trainer).name
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def today():
    return datetime.date.today().isoformat()


# ------------------------------------------------------------------------------------------------------------- reports


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]


def write_report(base, result, markdown):
    """BASE.json and BASE.md, each replaced as a whole."""
    base.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(result, indent=1) + "\n"), (".md", markdown)):
        unfinished = base.with_name(base.name + suffix + ".tmp")
        unfinished.write_text(text)
        unfinished.replace(base.with_name(base.name + suffix))
