"""A process of a run is lost, or computes wrongly: who names it, how the others end, and what a resume gives."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import QUIET, SIMULATOR, TRAINER, checkpoints, events, losses, needs_simulator, wait_for
from test_processes import SHAPE, content, free_port, launched, needs_mpi, of_torchrun, simulated, start_each

# Seconds, PRETRAIN_COMM_TIMEOUT, of runs that must wait that long: more than a busy machine keeps a thread waiting.
# LOST_LIMIT: of a campaign at low priority.
LIMIT = int(os.environ.get("LOST_LIMIT", "15"))
LOST = ["-e", "L=1,C=32,NH=1,T=16", "-t", 16, "-b", 2, "-d", 8 * 16, "-u", 2, "-k", "constant", "--reduce-groups", 4, "-x", 24]
launchers = pytest.mark.parametrize("trainer, processes", [pytest.param(TRAINER, 3, marks=needs_mpi, id="mpirun"),
                                                           pytest.param(SIMULATOR, 2, marks=needs_simulator, id="gpus")])


def lost_command(trainer, processes, data, *flags):
    """Of 24 steps, with a checkpoint after each."""
    groups = ["--reduce-groups", processes] if trainer == TRAINER else ["--gpus", processes]
    flags = [*LOST, *groups, *QUIET, *data.flags, "-v", 0, "-o", "run", "-n", 1, *flags]
    return launched(processes if trainer == TRAINER else 1, *flags, trainer=trainer)


def lost_environment(directory, nccl=""):
    """The runs of a test session share the choices of matmuls."""
    net = directory / "net"
    net.mkdir(exist_ok=True)
    return {**os.environ, **simulated(lost_environment.shared, 2), "SIM_NCCL_DIR": str(net), "SIM_NCCL": nccl,
            "COMM_STOP_SECONDS": "2", "OMP_NUM_THREADS": "1"}


def rank_of(pid):
    try:
        variables = dict(v.split("=", 1) for v in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in v)
    except (OSError, UnicodeDecodeError):
        return None
    return variables.get("OMPI_COMM_WORLD_RANK", variables.get("RANK"))


def find_rank(process, rank):
    """The process id; None: it has ended, or is not there yet."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout.split()
    return next((int(pid) for pid in children if rank_of(pid) == str(rank)), None)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """Of each trainer, the checkpoint of a whole run."""
    found = {}
    lost_environment.shared = tmp_path_factory.mktemp("shared")

    def of(trainer, processes):
        if trainer not in found:
            directory = tmp_path_factory.mktemp("undisturbed")
            subprocess.run(lost_command(trainer, processes, data), cwd=directory, env=lost_environment(directory),
                           capture_output=True, timeout=600, check=True)
            found[trainer] = content(directory)
        return found[trainer]
    return of


def lose(trainer, processes, data, directory, number, rank, steps, delay, nccl=""):
    """Sends the signal to a process after so many steps and seconds; False: the run had ended before. Checks what the
    others say and how they end."""
    directory.mkdir()
    errors = directory / "stderr"
    environment = lost_environment(directory, nccl)
    if number == signal.SIGSTOP:
        environment["PRETRAIN_COMM_TIMEOUT"] = str(LIMIT)  # of what waits for the stopped process
    with errors.open("w") as f:
        process = subprocess.Popen(lost_command(trainer, processes, data), cwd=directory, env=environment,
                                   stdout=subprocess.DEVNULL, stderr=f, start_new_session=True)
    stopped = None
    try:
        assert wait_for(lambda: len(losses(directory / "run")) >= steps, process)
        assert wait_for(lambda: find_rank(process, rank) or process.poll() is not None, process)
        time.sleep(delay)
        stopped = find_rank(process, rank)
        if stopped is None:
            return False
        try:
            os.kill(stopped, number)
        except ProcessLookupError:
            return False
        # A process that was stopped when the run was over: mpirun waits for it.
        assert wait_for(lambda: process.poll() is not None or events(directory / "run", "end"), process)
        try:
            code = process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            assert events(directory / "run", "end"), "the others did not end"
            return False
    finally:
        process.kill()
        if stopped and rank_of(stopped) == str(rank):
            os.kill(stopped, signal.SIGKILL)
    said = errors.read_text()
    if code == 0:
        return False
    lines = re.findall(r"^\S+: process (\d+) \(\S+\) has ended \(.*\)$", said, re.M)
    if number == signal.SIGKILL:
        assert code in (1, 128 + signal.SIGKILL), said  # mpirun: that of the process it hears of first
        # The launcher may end the others before they say anything.
        named = re.search(rf"process rank {rank} with PID \d+ .*signal 9|process {rank} ended by SIGKILL", said)
        assert lines == [str(rank)] or (not lines and named), said
    else:
        assert code == 1 and not lines, said
        waited = re.findall(rf"^\S+: process (\d+) \(\S+\) has made no progress for {LIMIT} s \(.*\)$", said, re.M)
        assert waited and len(waited) == len(set(waited)) and str(rank) not in waited, said
    return True


def resume(trainer, processes, data, directory):
    result = subprocess.run(lost_command(trainer, processes, data, "-y"), cwd=directory, env=lost_environment(directory),
                            capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return content(directory)


@pytest.mark.parametrize("trainer, processes, number, rank", [
    *(pytest.param(TRAINER, 3, number, rank, marks=needs_mpi) for number in (signal.SIGKILL, signal.SIGSTOP) for rank in (0, 1)),
    pytest.param(SIMULATOR, 2, signal.SIGKILL, 0, marks=needs_simulator),
    pytest.param(SIMULATOR, 2, signal.SIGSTOP, 1, marks=needs_simulator)])
def test_a_process_that_is_lost_is_named_and_the_run_resumes_to_the_same_bytes(trainer, processes, number, rank, data,
                                                                              undisturbed, tmp_path):
    expected = undisturbed(trainer, processes)
    assert lose(trainer, processes, data, tmp_path / "lost", number, rank, 3, 0)
    assert resume(trainer, processes, data, tmp_path / "lost") == expected


def random_losses(tries, seed):
    """Where and when: mostly during the steps, each of which saves a checkpoint; some kills during the start. A process
    that is stopped before it has met the others, or when they have ended, is not the watch's: mpirun waits for it."""
    chance = random.Random(seed)
    for number, count in ((signal.SIGKILL, tries), (signal.SIGSTOP, tries // 2)):
        for _ in range(count):
            steps = chance.choice([0, *range(1, 16)]) if number == signal.SIGKILL else chance.randrange(1, 12)
            delay = chance.random() * (1.0 if steps == 0 else 0.04)
            yield number, chance.randrange(1000), steps, delay, chance.choice(["", "inprogress", "delay:1"])


@pytest.mark.slow
@launchers
def test_processes_that_are_lost_at_any_time(trainer, processes, data, undisturbed, tmp_path):
    """LOST_PROCESSES: so many are killed, half as many stopped (6, 3). Two runs at a time: they wait more than they compute."""
    seed = random.randrange(1 << 30)
    expected = undisturbed(trainer, processes)

    def is_lost(numbered):
        i, (number, rank, steps, delay, nccl) = numbered
        directory, rank = tmp_path / f"{i}", rank % processes
        words = f"seed {seed}, try {i}: {number.name} to {rank} after {steps} steps and {delay:.3f} s, {nccl} in {directory}"
        print(words, flush=True)
        lost = lose(trainer, processes, data, directory, number, rank, steps, delay, nccl)
        assert resume(trainer, processes, data, directory) == expected, words
        shutil.rmtree(directory)
        return lost

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(is_lost, enumerate(random_losses(int(os.environ.get("LOST_PROCESSES", "6")), seed))))
    assert any(results)
    print(f"{sum(results)} of {len(results)} runs were disturbed")


@needs_simulator
@pytest.mark.parametrize("net, code, words", [
    ("silent:11", 1, rf"has made no progress for {LIMIT} s \(.*\)"),
    ("silent:11,inprogress", 1, rf"has made no progress for {LIMIT} s \(.*\)"),
    ("fail:11", 1, r"process 1 \(\S+\) has ended \("),  # process 0 waits for its GPU, process 1 for a message of process 0
    ("fail:42,inprogress", 1, r"process 1 \(\S+\) has ended \("),
])
def test_a_collective_of_nccl_that_hangs_or_fails_ends_the_run(net, code, words, data, tmp_path):
    (tmp_path / "net").mkdir()
    port, limits = free_port(), {"SIM_NCCL_DIR": tmp_path / "net"}
    if net.startswith("silent"):  # what fails speaks for itself: no watch need speak first
        limits["PRETRAIN_COMM_TIMEOUT"] = LIMIT
    environments = [of_torchrun(rank, port, 7) | simulated(tmp_path, 2) | limits for rank in range(2)]
    environments[1]["SIM_NCCL"] = net
    results = start_each(environments, tmp_path / "2", data, *LOST[-4:], "-n", 1)
    assert [result[2] for result in results] == [code, code], results
    assert re.search(words, results[0][1] + results[1][1]), results
    assert ("NCCL" in results[1][1]) == net.startswith("fail"), results


@needs_mpi
def test_weights_that_differ_in_one_process_are_found(data, tmp_path):
    """One bit, which the test changes in the memory of process 1. With a learning rate of 0 nothing else does.
    With -z 1 the next gather would mend it: process 0 owns that weight."""
    flags = ["-z", 0, "-l", 0, "--dtype", "fp32", "-x", 1000000, "-n", 10, "-o", "run", "-v", 0]
    process = subprocess.Popen(launched(2, *SHAPE, *QUIET, *data.flags, *flags), cwd=tmp_path, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert wait_for(lambda: checkpoints(tmp_path / "run"), process)
    model = content(tmp_path)["model.safetensors"]
    header = int.from_bytes(model[:8], "little")
    begin = 8 + header + json.loads(model[8:8 + header])["transformer.wte.weight"]["data_offsets"][0]
    pattern = model[begin:begin + 64]
    pid, found = find_rank(process, 1), 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            if "rw" not in line.split()[1] or end - begin > 1 << 30:
                continue
            try:
                memory.seek(begin)
                mapped = memory.read(end - begin)
            except OSError:
                continue
            at = mapped.find(pattern)
            while at >= 0:  # a line may hold a buffer that the weights passed through, and the weights
                memory.seek(begin + at)
                memory.write(bytes([pattern[0] ^ 1]))
                found += 1
                at = mapped.find(pattern, at + 1)
    assert found > 0
    _, said = process.communicate(timeout=600)
    assert process.returncode == 1, said
    assert len(re.findall(r"process 1 on \S+ has after step \d+ weights with checksum \w+, process 0 on", said)) == 1, said
