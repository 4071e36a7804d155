"""What the tests of programs share, test/e2e and test/tools: commands and how they end, shards, and what a run leaves.

TRAINER names the trainer under test (default: ./train_gpt2), SIM_TRAINER the CUDA trainer on the simulator (default:
./train_gpt2sim).
"""
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

# Jobs in the background are born ignoring these, or those under nohup, and so would be all that the tests start and
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A start of the trainer measures the machine's speed: half of the processor time of most runs here.
os.environ.setdefault("PRETRAIN_SPEED", "off")

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))
from verify_checkpoint import verify  # noqa: E402

TRAINER = Path(os.environ.get("TRAINER", ROOT / "train_gpt2")).resolve()
SIMULATOR = Path(os.environ.get("SIM_TRAINER", ROOT / "train_gpt2sim")).resolve()


def why_no_mpi(trainer=TRAINER):
    """Why mpirun starts no processes of this trainer that know of each other; "": it does."""
    if not shutil.which("mpirun"):
        return "no mpirun: Debian's openmpi-bin"
    if trainer.exists() and b"MPI_Error_string" not in trainer.read_bytes():  # loaded by name
        return "the trainer was built without MPI: Debian's libopenmpi-dev"
    return ""


EXIT_RUN_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 75


def call(*command, expect=None, **options):
    """Runs a command to its end; its words are text. expect: the exit code."""
    options = {"capture_output": "stdout" not in options, "text": True, "timeout": 300, **options}
    if options["text"]:
        options.setdefault("errors", "replace")
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    result = subprocess.run([str(part) for part in command], **options)
    said = "\n".join(str(stream[-4000:]) for stream in (result.stdout, result.stderr) if stream)
    assert expect is None or result.returncode == expect, f"exit code {result.returncode}\n{said}"
    return result


def on_a_terminal(*command, variables={}, **options):
    """The exit code of a command, and what it writes to a terminal of its own, which is no CI job's unless variables say so."""
    master, slave = pty.openpty()
    options = {"stdin": subprocess.DEVNULL, "stdout": slave, "stderr": slave, "env": os.environ, **options}
    options["env"] = {**{name: value for name, value in options["env"].items() if name != "CI"}, "TERM": "xterm", **variables}
    process = subprocess.Popen([str(part) for part in command], **options)
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 65536):
            output += chunk
    except OSError:  # EIO: the other end is closed
        pass
    os.close(master)
    return process.wait(), output.decode()


def wait_for(condition, process=None, seconds=300):
    """Polls until condition() is true; False when the process ended before."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            return bool(condition())
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)
    return True


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


# Bodies of stand-ins for test programs: as cmocka prints it, a test that passes and one that fails.
PASSES = "echo '[ RUN      ] a'; echo '[       OK ] a'\n"
FAILS = "echo '[ RUN      ] b'; echo because; echo '[  FAILED  ] b'; exit 1"


def script(path, body):
    """An executable stand-in for a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def write_shard(path, tokens, vocab=0, eot=-1, magic=20240520, version=1, count=None):
    header = [magic, version, len(tokens) if count is None else count, vocab, 0, 0, eot + 1] + [0] * 249
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))
    return path


def log_entries(run):
    log = run / "main.log"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def events(run, kind):
    """All objects of this kind in RUN/main.log."""
    try:
        whole = log_entries(run)
    except json.JSONDecodeError:  # a resume cut the log while it was read
        time.sleep(0.2)
        whole = log_entries(run)
    return [entry for entry in whole if entry["event"] == kind]


def losses(run):
    """step -> training loss."""
    return {entry["step"]: entry["loss"] for entry in events(run, "step")}


def checkpoints(run):
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in run.glob("step_*") if (path / "trainer.json").exists())


def same_state(a, b):
    """Do two checkpoints, which a second reader finds valid, hold the same weights and moments, byte for byte?"""
    verify(a), verify(b)
    names = ("model.safetensors", "optimizer.safetensors")
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in names)


def same_run(a, b):
    """Do two runs have the same losses and end with the same state, bit by bit?"""
    return losses(a) == losses(b) and same_state(checkpoints(a)[-1], checkpoints(b)[-1])
