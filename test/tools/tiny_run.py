"""What the tests of recipes, batch scripts and measuring scripts share: a directory that looks like the repository to
them (its scripts, the trainer, tiny shards under data/), stand-ins for programs, the options of a quick run, and readers
for what it leaves.

Owns no test. The rest: test/runs.py.
"""
import json
import os
import random
import shutil

import runs
from runs import (EXIT_BAD_INPUT, EXIT_INTERRUPTED, ROOT, SIMULATOR, TRAINER, checkpoints, events, script,  # noqa: F401
                  wait_for)

# A fraction of a millisecond a step, one thread: the same bits on every machine with this vector code.
TINY = ["-e", "L=1,C=64,NH=1,T=32,V=257", "-t", 32, "-b", 4, "-d", 128, "-v", 0, "-s", 0, "-k", "constant", "-u", 2,
        "-n", 1000000, "--threads", 1]


def write_shard(path, tokens, seed):
    draw = random.Random(seed)
    runs.write_shard(path, [draw.randrange(20) for _ in range(tokens)], vocab=257, eot=256)


def make_root(directory):
    """scripts/ copied, so that recipes find everything beside it in this directory and nowhere else."""
    shutil.copytree(ROOT / "scripts", directory / "scripts")
    (directory / "train_gpt2").symlink_to(TRAINER)
    for corpus, prefix in (("fineweb-10B-gpt2", "fineweb"), ("fineweb-100B-gpt2", "fineweb"),
                           ("fineweb-edu-10B-gpt2", "edu_fineweb"), ("fineweb-edu-100B-gpt2", "edu_fineweb")):
        data = directory / "data" / corpus
        data.mkdir(parents=True)
        write_shard(data / f"{prefix}_train_000001.bin", 4000, 1)
        write_shard(data / f"{prefix}_val_000000.bin", 500, 2)
    return directory


def bench_program(name, backend=""):
    """This program of dev/bench of the newest build for a CPU, or of that for the simulator ("-sim");
    None: not built."""
    found = sorted(ROOT.glob(f"build/release*/dev/bench/{name}"), key=lambda path: path.stat().st_mtime)
    names = [(path.parents[2].name, path) for path in found]
    return next((path for name, path in names[::-1] if name.endswith("-sim") == bool(backend) and "-cuda" not in name), None)


def bench_ops(backend=""):
    return bench_program("bench_ops", backend)


def clean_environment(**more):
    """The environment without what recipes and Slurm read from it."""
    ours = {"TRAINER", "DATA", "OUT", "B", "DTYPE", "RECIPE", "LRS", "SWEEP"}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("SLURM_")}
    return kept | {name: str(value) for name, value in more.items()}


def call(root, *command, environment=None, **options):
    """Runs a command in root; relative names are those of root."""
    return runs.call(*command, cwd=root, env=environment or clean_environment(), **options)


def last_step(run, since=0.0):
    """The last step that the log holds, 0 if none; since: of a process that was started at this time."""
    try:
        with open(run / "main.log", "rb") as log:  # its end only: it is long, and polled
            log.seek(max(0, os.fstat(log.fileno()).st_size - 8192))
            lines = [line for line in log.read().splitlines(keepends=True)[-20:] if line.endswith(b"\n")]
    except FileNotFoundError:  # also for a moment when a run begins anew
        return 0
    entries = [json.loads(line) for line in lines if line.startswith(b'{"event":"step"')]
    steps = [entry["step"] for entry in entries if entry["time"] >= since]
    return steps[-1] if steps else 0


def same_weights(a, b):
    return runs.same_state(checkpoints(a)[-1], checkpoints(b)[-1])


def wait_until(condition, process):
    assert wait_for(condition, process), f"ended with {process.returncode} before"
