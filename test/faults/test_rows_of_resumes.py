"""A run that is stopped by a signal again and again, and resumed each time, ends with the bits of one that never was.

    python test/faults/test_rows_of_resumes.py [RESUMES]     30 in each row by default
"""
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for this file as a program; else pytest.ini
from faults.shim import (ENVIRONMENT, EXIT_BAD_INPUT, PREPARE, SMALL, TRAINER, checkpoints, data, losses, make_text,  # noqa: E402, F401
                         state_of)
from faults.test_half_steps import OPTIONS, control_of  # noqa: E402
from runs import call, wait_for, why_no_mpi  # noqa: E402

# Rows of several processes: how many, and the options.
PROCESSES = {
    "2 processes": (2, []),
    "3 processes, ZeRO": (3, ["-z", "1"]),
    "2 processes, muon": (2, ["--optimizer", "muon", "-z", "1"]),
    "2 processes, adafactor": (2, ["--optimizer", "adafactor"]),
    "2 processes, 8 bit": (2, ["--optimizer", "adamw8bit", "-z", "1"]),
    "3 processes, groups": (3, ["--dtype", "bf16", "--grad-dtype", "compute", "--reduce-groups", "3"]),
}
ROWS = {**{name: (1, options) for name, options in OPTIONS.items()}, **PROCESSES}
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n"]


def row(name, resumes, place, shards):
    """Runs it to its end, and once more with a signal after the first step of each start, at most so many. Returns the number
    of resumes, None: not here."""
    processes, options = ROWS[name]
    start = [*MPIRUN, str(processes)] if processes > 1 else []
    if start and why_no_mpi():
        return None
    steps = 40 * resumes  # on a busy machine a signal comes tens of steps late
    command = [*start, TRAINER, *SMALL, "-d", "192", "-x", steps, "-n", "0", "-s", "0", "-v", "7", "-m", "1", *shards, *options]
    command = [str(word) for word in command]
    whole, stopped = place / "whole", place / "stopped"
    result = call(*command, "-o", whole, env=ENVIRONMENT)
    if result.returncode == EXIT_BAD_INPUT and "not available" in result.stderr:
        return None
    assert result.returncode == 0, result.stderr
    count = 0
    while True:
        before = max((path.name for path in checkpoints(stopped)), default="")
        done = max(losses(stopped), default=0)
        with subprocess.Popen([*command, "-o", str(stopped), "-y", str(int(count > 0))], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            if count < resumes:
                wait_for(lambda: max(losses(stopped), default=0) > done, process)
                process.send_signal(signal.SIGUSR1)  # mpirun passes it on; a second after SIGTERM it kills
            said = process.communicate()[1]
        last = checkpoints(stopped)[-1].name
        assert last > before, f"{name}: nothing was saved behind {before}: {said}"
        if last == checkpoints(whole)[-1].name:
            break
        count += 1
    for read in (state_of, control_of):
        assert read(checkpoints(stopped)[-1]) == read(checkpoints(whole)[-1]), f"{name}, {count} resumes"
    assert losses(stopped) == losses(whole), f"{name}, {count} resumes"
    return count


@pytest.mark.parametrize("name", ["stochastic", "muon", "3 processes, ZeRO"])
def test_a_row_of_resumes_ends_with_the_bits_of_one_run(name, data, tmp_path):  # noqa: F811
    count = row(name, 5, tmp_path, data.flags)
    if count is None:
        pytest.skip("not available here")
    assert count >= 2


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        call(PREPARE, "-o", place / "shards", make_text(place / "text"), expect=0)
        shards = ["-i", str(place / "shards" / "train_*.bin"), "-j", str(place / "shards" / "val_*.bin")]
        for name in ROWS:
            (place / name).mkdir()
            count = row(name, int((sys.argv[1:] or ["30"])[0]), place / name, shards)
            print(f"{name}: " + ("not available here" if count is None else f"{count} resumes, the same bytes"), flush=True)
            shutil.rmtree(place / name)
