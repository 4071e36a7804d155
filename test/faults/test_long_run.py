"""A long run of a tiny model that is killed again and again and whose disk fills up in between: memory, descriptors,
directory and log stay bounded, and it ends with the bytes of a run that nothing disturbed.

    python test/faults/test_long_run.py [STEPS [SEED]]     200000 steps, a checkpoint every 500
"""
import errno
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for this file as a program; else pytest.ini
from faults.shim import (ENVIRONMENT, EXIT_RUN_FAILED, PREPARE, ROOT, SMALL, TRAINER, build, checkpoints, data, losses,  # noqa: E402, F401
                         make_text, shim, state_of)

ENDLESS = 3600
# kB: 54000 to 73000 while the speed of the machine is measured (two buffers of 16 MiB, matrices of 14 MiB that malloc may
# keep), less than half of it afterwards.
MOST_MEMORY = 96 * 1024


class Watched:
    """A trainer whose memory and descriptors are looked at while it runs."""

    def __init__(self, command, **settings):
        env = {**ENVIRONMENT, "GOMP_SPINCOUNT": "1000", **{key: str(value) for key, value in settings.items()}}
        self.resident, self.files = [], []
        self.process = subprocess.Popen([str(word) for word in command], env=env, stdin=subprocess.DEVNULL, cwd=ROOT,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def look(self):
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            files = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        except OSError:
            return
        if "VmRSS:" in status:
            self.resident.append(int(status.split("VmRSS:")[1].split()[0]))
            self.files.append(files)

    def end(self, kill_after=ENDLESS):
        """The exit code; it is killed after so many seconds."""
        until = time.monotonic() + kill_after
        while self.process.poll() is None:
            if time.monotonic() > until:
                self.process.kill()
                self.process.wait()
                break
            time.sleep(min(0.05, kill_after / 10))
            self.look()
        self.said = self.process.stderr.read()
        return self.process.returncode


def command(run, shards, steps, every):
    return [TRAINER, *SMALL, "-v", "0", "-s", "0", "-n", every, "-nk", "2", *shards, "-o", run, "-x", steps, "-y", "1"]


def disturb(shim, place, shards, steps, every, seed, longest):
    """Returns a line of figures."""
    choose = random.Random(seed)
    whole, run = place / "whole", place / "run"
    began = time.monotonic()
    undisturbed = Watched(command(whole, shards, steps, every))
    assert undisturbed.end() == 0, undisturbed.said
    seconds = time.monotonic() - began
    # Memory after half of the run, and from there on: before, the speed of the machine is measured.
    early, *later = undisturbed.resident[len(undisturbed.resident) // 2:]
    assert max(later) < early + 2048, f"{early} kB, later {max(later)} kB"
    codes, most_files, most_memory, names = {}, 0, 0, 0
    for leg in range(100000):
        if leg % 3 == 2:  # the disk is full from some write on
            watched = Watched(command(run, shards, steps, every), LD_PRELOAD=shim.library, FAULT_CLASS="write",
                              FAULT_ERROR=errno.ENOSPC, FAULT_AT=choose.randint(20, 2 * every), FAULT_ON=1)
            code = watched.end()
            assert code in (0, EXIT_RUN_FAILED), f"exit code {code}: {watched.said}"
            code = "full disk" if code else code
        else:
            watched = Watched(command(run, shards, steps, every))
            code = watched.end(choose.uniform(0, longest))
            assert code in (0, -9), f"exit code {code}: {watched.said}"
            code = "killed" if code else code
        codes[code] = codes.get(code, 0) + 1
        most_files = max([most_files, *watched.files])
        most_memory = max([most_memory, *watched.resident])
        # Each start has events of its own; one before the first checkpoint moves the log aside.
        lasting = [path for path in (run.iterdir() if run.exists() else ())
                   if "tfevents" not in path.name and not path.name.startswith("main.log.")]
        names = max(names, len(lasting))
        if code == 0:
            break
    assert state_of(checkpoints(run)[-1]) == state_of(checkpoints(whole)[-1])
    assert losses(run) == losses(whole) and sorted(losses(run)) == list(range(1, steps + 1))
    assert most_files <= max(undisturbed.files) + 2 and most_memory < MOST_MEMORY
    assert names <= 4 + 3 + 1, f"{names} names beside the events"  # .lock, options, log, DONE; two checkpoints, one in the making
    logs = [(path / "main.log").stat().st_size for path in (run, whole)]
    assert logs[0] < 1.1 * logs[1] + 2048 * sum(codes.values()), f"the log has {logs[0]} bytes, undisturbed {logs[1]}"
    return (f"{steps} steps, a checkpoint every {every}, seed {seed}: {codes}; the same bytes and losses as undisturbed "
            f"({seconds:.0f} s)\n  memory: {early} kB after half of the run, at most {max(later)} kB afterwards; with "
            f"disturbances, and at starts, {most_memory} kB\n  descriptors: at most {max(undisturbed.files)}, disturbed {most_files}; "
            f"names in the directory: at most {names}, and {len(list(run.glob('*tfevents*')))} of events\n"
            f"  main.log: {logs[0]} bytes, undisturbed {logs[1]}")


@pytest.mark.slow
def test_a_run_that_is_killed_and_runs_out_of_disk_ends_with_the_same_bytes(shim, data, tmp_path):
    disturb(shim, tmp_path, data.flags, 2000, 200, 1, 0.6)


if __name__ == "__main__":
    import tempfile
    steps, seed = [int(word) for word in sys.argv[1:3]] + [200000, 1][len(sys.argv[1:3]):]
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        library = build(place)
        library.run([PREPARE, "-o", place / "shards", make_text(place / "text")])
        shards = ["-i", str(place / "shards" / "train_*.bin"), "-j", str(place / "shards" / "val_*.bin")]
        print(disturb(library, place, shards, steps, 500, seed, 4), flush=True)
