"""Several processes train one model: the same bytes for any number of them, under MPI on the CPU and over NCCL on the
simulated GPU."""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess

import pytest
from test_evaluation import choice_file
from conftest import (EXIT_BAD_INPUT, EXIT_INTERRUPTED, QUIET, ROOT, SIMULATOR, TRAINER, checkpoints, events, losses,
                      needs_mpi, needs_simulator, wait_for, write_shard)

MPIRUN = shutil.which("mpirun")
WAITS = {"PRETRAIN_COMM_OVERLAP": "0"}
# 19 sequences a step: 8 groups of 2 or 3, 6 of 3 or 4, in micro-batches of 2, the last one of a group often smaller.
SHAPE = ["-e", "L=2,C=64,NH=2,T=32", "-t", "32", "-b", "2", "-d", 19 * 32, "-u", 2, "-k", "constant"]


def launched(processes, *arguments, trainer=TRAINER):
    mpi = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(processes)]
    # One process runs without MPI: what a user without it has.
    return [*(mpi if processes > 1 else []), str(trainer), *map(str, arguments)]


def run(processes, directory, data, *arguments, expect=0, trainer=TRAINER, **environment):
    """A run in its own directory, so that its options, which checkpoints keep, do not tell runs apart."""
    directory.mkdir(exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if processes > 1:  # Open MPI leaks; our own leaks show in one process and over TCP
        env["ASAN_OPTIONS"] = ":".join(filter(None, [env.get("ASAN_OPTIONS"), "detect_leaks=0"]))
    result = subprocess.run(launched(processes, *SHAPE, *QUIET, *data.flags, "-o", "run", *arguments, trainer=trainer),
                            cwd=directory, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == expect, result.stdout[-2000:] + result.stderr[-4000:]
    return result


def content(directory):
    """The bytes of the newest checkpoint, by file."""
    return {f.name: f.read_bytes() for f in sorted(checkpoints(directory / "run")[-1].iterdir())}


def assert_same(a, b):
    one, other = content(a), content(b)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


# ------------------------------------------------------------------------------------------------------- the same bytes

@needs_mpi
@pytest.mark.sanitize
@pytest.mark.parametrize("optimizer, dtype", [("adamw8bit", "bf16"), ("muon", "fp32")])
def test_mpirun_gives_the_checkpoint_of_one_process(optimizer, dtype, data, tmp_path):
    """The table of test/invariants has all else, with processes that share memory."""
    flags = ["--optimizer", optimizer, "--dtype", dtype, "--reduce-groups", 8, "-x", 3]
    run(1, tmp_path / "1", data, *flags)
    for name, more, environment in (("divided", [], {}), ("waits", [], WAITS)):
        run(4, tmp_path / name, data, *flags, *more, **environment)
        assert_same(tmp_path / "1", tmp_path / name)


def told(directory, kind):
    """The events of this kind, without what the clock says."""
    return [{k: v for k, v in e.items() if k not in ("seconds", "time")} for e in events(directory / "run", kind)]


@needs_mpi
def test_validation_and_multiple_choice_give_the_same_numbers(data, tmp_path):
    choices = choice_file(tmp_path / "set.bin", [([256, 10 + i % 50], [[20 + i % 7] * 3, [30, 31], [40] * (1 + i % 5)], i % 3)
                                                 for i in range(11)])
    for n in (1, 3):
        run(n, tmp_path / f"{n}", data, "--reduce-groups", 3, "-x", 4, "-v", 2, "-m", 11, "--choices", choices)
    for kind in ("validation", "choices"):
        assert len(told(tmp_path / "1", kind)) == 3
        assert told(tmp_path / "1", kind) == told(tmp_path / "3", kind)


@needs_mpi
def test_the_statistics_of_tensors_are_those_of_all_processes(data, tmp_path):
    for n in (1, 3):
        run(n, tmp_path / f"{n}", data, "--reduce-groups", 3, "-x", 2, "--numerics-every", 2, "--dtype", "bf16")
    (one,), (three,) = told(tmp_path / "1", "numerics"), told(tmp_path / "3", "numerics")
    assert one == pytest.approx(three)


@needs_mpi
def test_several_groups_in_one_process_are_one_sum(data, tmp_path):
    """The sums differ from those of one group by rounding only: the same curve."""
    for groups in (1, 4):
        run(1, tmp_path / f"{groups}", data, "--reduce-groups", groups, "-x", 10, "--dtype", "fp32")
    one, four = losses(tmp_path / "1" / "run"), losses(tmp_path / "4" / "run")
    # fp32 sums of 4 terms in another order differ by a few 2^-24; ten steps of AdamW make no more than 1e-4 of that.
    assert all(abs(a - b) < 1e-4 for a, b in zip(one, four, strict=True))


# ----------------------------------------------------------------------------------------------------------- what is told

@needs_mpi
def test_only_process_0_prints_and_counts_all_tokens(data, tmp_path):
    said = run(2, tmp_path / "2", data, "-x", 2, PRETRAIN_PROGRESS="0", PRETRAIN_SPEED="on").stdout  # mpirun gives it a terminal
    assert len(re.findall(r"^step 1/2 ", said, re.M)) == 1
    assert re.search(r"^processes +2 on 1 machine \(mpirun\), connected by Open MPI", said, re.M)
    assert "19 windows of 32" in said
    (header,), last = events(tmp_path / "2" / "run", "run"), events(tmp_path / "2" / "run", "step")[-1]
    assert header["processes"] == 2 and header["tokens_per_step"] == 19 * 32
    # MFU is that of one device. The peak, which is measured, is only ever raised.
    flops = last["tokens_per_second"] * header["flops_per_token"]
    assert flops / (last["mfu"] * header["device"]["peak_flops"]) > 1.99
    assert not list(tmp_path.glob("2/run/*.1"))


@needs_mpi
@pytest.mark.parametrize("other, words", [(["--learning-rate", "0.001"], ["process 1 on ", "--learning-rate 0.001", "0.002"]),
                                          (["--seed", "5"], ["process 1 on ", "--seed 5", "1337"])])
def test_a_process_with_other_options_is_refused_by_name(other, words, data, tmp_path):
    first = [str(TRAINER), *map(str, SHAPE), *QUIET, *data.flags, "-x", "2", "--learning-rate", "0.002"]
    second = [*first, *other]
    result = subprocess.run([MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "1", *first, ":", "-n", "1", *second],
                            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == EXIT_BAD_INPUT
    line = [text for text in result.stderr.splitlines() if "all processes must have the same" in text]
    assert len(line) == 1, result.stderr
    assert all(word in line[0] for word in words), line[0]


@needs_mpi
def test_a_process_with_other_data_is_refused_by_name(data, tmp_path):
    for i, seed in enumerate((1, 2)):
        (tmp_path / str(i)).mkdir()
        write_shard(tmp_path / str(i) / "train_000000.bin", [(seed * k * k) % 250 for k in range(4000)])
    each = ["sh", "-c", f'cd {tmp_path}/$OMPI_COMM_WORLD_RANK && exec "$@"', "sh", str(TRAINER), *map(str, SHAPE), *QUIET,
            "-v", "0", "-i", "train_*.bin", "-x", "1"]
    result = subprocess.run([MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "2", *each], capture_output=True,
                            text=True, timeout=300, check=False)
    assert result.returncode == EXIT_BAD_INPUT
    assert re.search(r"process 1 on \S+ has -i 4000 tokens \(checksum \w+\), process 0 on", result.stderr), result.stderr


@needs_mpi
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_processes_that_could_have_other_numbers_of_threads_take_the_least(data, tmp_path):
    """On a CPU bits depend on it. Alone, a process has as many as it may use processors."""
    one = min(os.sched_getaffinity(0))
    script = tmp_path / "trainer"
    script.write_text(f'#!/bin/sh\n[ $OMPI_COMM_WORLD_RANK = 1 ] || exec taskset -c {one} "{TRAINER}" "$@"\n'
                      f'exec "{TRAINER}" "$@"\n')
    script.chmod(0o755)
    run(2, tmp_path / "least", data, "-x", 2, trainer=script, PRETRAIN_NUMA="0")
    assert re.search(r", 1 thread$", json.loads(content(tmp_path / "least")["trainer.json"])["tuning"].strip())


@needs_mpi
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_processes_with_as_many_threads_as_one_alone_have_its_bits(dtype, data, tmp_path):
    """At a size at which the matmul library splits sums among its threads."""
    flags = ["-e", "L=2,C=64,NH=2,T=64,V=257", "-t", 64, "-b", 32, "-d", 4096, "-x", 2, "--reduce-groups", 2,
             "--dtype", dtype, "--threads", 2]
    for n in (1, 2):
        run(n, tmp_path / f"{n}", data, *flags)
    assert_same(tmp_path / "1", tmp_path / "2")


@needs_mpi
@pytest.mark.parametrize("arguments, words", [
    (["--reduce-groups", 3], ["--reduce-groups 3", "2 processes", "1, 3"]),
    (["--reduce-groups", 12], ["--reduce-groups 12", "possible numbers of processes: 1, 3, 6, 12"]),
    (["--reduce-groups", 32], ["19 sequences", "32 groups"]),
    (["-e", "nowhere/at/all"], ["-e", "nowhere/at/all"]),
])
def test_what_cannot_be_is_refused_once_by_all(arguments, words, data, tmp_path):
    result = run(2, tmp_path / "2", data, *arguments, "-x", 1, expect=EXIT_BAD_INPUT)
    lines = [line for line in result.stderr.splitlines() if line.startswith(str(TRAINER))]
    assert len(lines) == 1, result.stderr
    assert all(word in lines[0] for word in words), lines[0]


@needs_mpi
@pytest.mark.parametrize("name, value", [("PRETRAIN_COMM_TIMEOUT", 7), ("PRETRAIN_GRAPHS", 0), ("PRETRAIN_TUNE", 0)])
def test_variables_that_differ_are_refused(name, value, data, tmp_path):
    one = [str(TRAINER), *map(str, [*SHAPE, *QUIET, *data.flags, "-x", 1])]
    command = [*launched(2)[:-2], "1", "env", f"{name}={value}", *one, ":", "-n", "1", *one]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == EXIT_BAD_INPUT, result.stderr
    assert "process 1 on " in result.stderr and f" has {name} " in result.stderr and "process 0 on " in result.stderr
    assert f"has {value}: all processes must have the same" in result.stderr, result.stderr


def hidden(trace):
    """How many ops ran, wholly, while a request was under way, by the name of its collective."""
    ops = [(e["ts"], e["ts"] + e["dur"]) for e in trace if e["ph"] == "X" and e["tid"] == 2 and "floor_us" in e["args"]]
    begun, ended = ({e["id"]: e for e in trace if e["ph"] == phase} for phase in "be")
    assert begun.keys() == ended.keys()
    counts = {}
    for i, b in begun.items():
        inside = sum(b["ts"] <= start and end <= ended[i]["ts"] for start, end in ops)
        counts[b["name"]] = counts.get(b["name"], 0) + inside
    return counts


def profiled(processes, directory, data, *flags, **options):
    run(processes, directory, data, *flags, "--profile", 3, **options)
    profile, trace = (json.loads((directory / "run" / name).read_text()) for name in ("profile.json", "profile_trace.json"))
    total = sum(op["ms"] for op in profile["ops"]) + profile["between_ops_ms"] + profile["exposed_exchange_ms"]
    assert total == pytest.approx(profile["step_ms"])
    return profile, hidden(trace["traceEvents"])


@needs_mpi
def test_gradients_and_weights_are_exchanged_while_ops_run(data, tmp_path):
    """By construction, not by chance: a request begins before ops that do not need it, and is found ended after them."""
    flags = ["--reduce-groups", 2, "-e", "L=4,C=64,NH=2,T=32", "-b", 10]
    profile, during = profiled(2, tmp_path / "2", data, *flags)
    assert profile["exchange_ms"] > profile["exposed_exchange_ms"] > 0
    assert during["sum of gradients"] > 3 * 4 and during["new weights"] > 3 * 4  # in each step: of four blocks
    assert during["losses of all"] == during["gradient norm"] == 0
    _, during = profiled(2, tmp_path / "waits", data, *flags, **WAITS)
    assert set(during.values()) == {0}
    profile, during = profiled(1, tmp_path / "1", data, *flags)
    assert during == {} and profile["exchange_ms"] == profile["exposed_exchange_ms"] == 0


def ops_before_waits(trace):
    """How many ops lie between each request for a sum of gradients and the wait for it, on the compute stream."""
    ops = [e["ts"] for e in trace if e["ph"] == "X" and e["tid"] == 2 and "floor_us" in e["args"]]
    waits = [e["ts"] for e in trace if e.get("args", {}).get("of") == "sum of gradients"]
    begun = [e["ts"] for e in trace if e["ph"] == "b" and e["name"] == "sum of gradients"]
    return [sum(b <= op < w for op in ops) for b, w in zip(begun, waits, strict=True)]


@needs_simulator
def test_simulated_gpus_exchange_between_ops_of_the_backward_pass(data, tmp_path):
    """The simulator runs one stream at a time, so its timeline shows the order only."""
    flags = ["--gpus", 2, "--reduce-groups", 2, "-e", "L=3,C=64,NH=2,T=32", "-b", 10, "--profile", 2]
    for name, environment in (("overlap", {}), ("waits", WAITS)):
        run(1, tmp_path / name, data, *flags, trainer=SIMULATOR, **simulated(tmp_path, 2), **environment)
        trace = json.loads((tmp_path / name / "run" / "profile_trace.json").read_text())["traceEvents"]
        counts = ops_before_waits(trace)
        assert len(counts) == 2 * 4  # of three blocks and the embeddings; few ops follow the first block's
        assert all((count > 3) == (name == "overlap" and i % 4 < 2) for i, count in enumerate(counts)), counts


# ------------------------------------------------------------------------------------------------------------- the end

@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_any_process_stops_all_after_the_same_step(number, data, tmp_path):
    flags = ["--reduce-groups", 2, "-n", 0]
    process = subprocess.Popen(launched(2, *SHAPE, *QUIET, *data.flags, "-o", "run", *flags, "-x", 1000000), cwd=tmp_path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: len(losses(tmp_path / "run")) >= 3, process)
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(ranks[-1]), number)
    assert process.wait(timeout=600) == EXIT_INTERRUPTED
    step = int(checkpoints(tmp_path / "run")[-1].name[5:])
    (tmp_path / "alone").mkdir()
    run(1, tmp_path / "alone", data, *flags, "-x", step)
    assert json.loads(content(tmp_path)["trainer.json"])["step"] == step
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert content(tmp_path)[name] == content(tmp_path / "alone")[name]


# ------------------------------------------------------------------------------------------------------------ GPUs

SIM_SHAPE = ["--reduce-groups", 4, "-x", 2]


def simulated(tmp_path, gpus):
    """A cache of its own, so that the processes of a run begin alike."""
    return {"PRETRAIN_CACHE": str(tmp_path / "tuning"), "SIM_GPUS": str(gpus)}


@needs_simulator
def test_a_batch_that_fills_the_gpu_leaves_what_its_libraries_take(data, tmp_path):
    """NCCL takes more than a plan reserves, when the GPUs first exchange something; the others take less, in the first
    step."""
    taken = {"SIM_NCCL_MB": "12", "SIM_CUDNN_MB": "2", "SIM_CUBLASLT_KB": "256", "SIM_KERNEL_KB": "32"}
    memory = {"SIM_MEMORY_MB": "120", "SIM_CONTEXT_MB": "80", "SIM_CUDNN": "1", "SIM_NCCL_TIMEOUT": "600"}
    result = run(1, tmp_path / "full", data, "--gpus", 2, "-b", "auto", "-d", 0, "-x", 1, trainer=SIMULATOR,
                 **simulated(tmp_path, 2), **memory, **taken)
    (planned,), (memory,) = re.findall(r"total planned ([\d.]+) MiB", result.stdout), events(tmp_path / "full" / "run", "memory")
    assert 15 < float(planned) <= 40 - 12 - 7.2 and 0 < memory["free"] < 7.2 * (1 << 20), result.stdout
    assert " MiB of the GPU still free\n" in result.stdout


@needs_simulator
@pytest.mark.sanitize
def test_simulated_gpus_connected_by_nccl_give_the_same_checkpoint(data, tmp_path):
    flags, environment = ["--dtype", "bf16", *SIM_SHAPE], simulated(tmp_path, 4)
    run(1, tmp_path / "1", data, *flags, trainer=SIMULATOR, **environment)
    for n, net in ((2, "delay:1"), (4, "inprogress")):
        result = run(1, tmp_path / f"{n}", data, *flags, "--gpus", n, trainer=SIMULATOR, SIM_NCCL=net,
                     SIM_CUBLASLT_CROWDED="refused", **environment)
        assert f"{n} on 1 machine (--gpus), connected by NCCL" in result.stdout
        assert_same(tmp_path / "1", tmp_path / f"{n}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def of_torchrun(rank, port, job):
    return {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": job}


def of_srun(rank, port, job):
    del port
    return {"SLURM_STEP_NUM_TASKS": 2, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NODELIST": "localhost",
            "SLURM_JOB_ID": job, "SLURM_STEP_ID": 0}


def start_each(environments, directory, data, *flags, programs=(SIMULATOR, SIMULATOR)):
    """The results of processes that were started one by one."""
    directory.mkdir(exist_ok=True)
    command = [*map(str, SHAPE), *QUIET, *data.flags, "-o", "run", *map(str, flags)]
    processes = [subprocess.Popen([str(program), *command], cwd=directory, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE,
                                  env={**os.environ, **{k: str(v) for k, v in environment.items()}})
                 for program, environment in zip(programs, environments, strict=True)]
    return [(*p.communicate(timeout=600), p.returncode) for p in processes]


@needs_simulator
@pytest.mark.parametrize("launcher, name", [(of_torchrun, "torchrun"), (of_srun, "srun")])
def test_processes_that_a_launcher_started_find_each_other(launcher, name, data, tmp_path):
    port, job = free_port(), random.randrange(1 << 20)
    environments = [launcher(rank, port, job) | simulated(tmp_path, 2) for rank in range(2)]
    (said, complaint, code), (nothing, other, other_code) = start_each(environments, tmp_path / "2", data, *SIM_SHAPE)
    assert (code, other_code) == (0, 0), complaint + other
    assert f"2 on 1 machine ({name})" in said
    assert nothing == ""
    run(1, tmp_path / "1", data, *SIM_SHAPE, trainer=SIMULATOR, **simulated(tmp_path, 2))
    assert_same(tmp_path / "1", tmp_path / "2")


@needs_simulator
def test_another_build_is_refused(data, tmp_path):
    other = tmp_path / "train_gpt2sim"
    shutil.copy(SIMULATOR, other)
    with other.open("ab") as f:
        f.write(b"x")  # after the end of what is loaded
    environments = [of_torchrun(rank, port, 7) | simulated(tmp_path, 2) for port in (free_port(),) for rank in range(2)]
    results = start_each(environments, tmp_path / "2", data, *SIM_SHAPE, programs=(SIMULATOR, other))
    assert [code for _, _, code in results] == [EXIT_BAD_INPUT] * 2
    assert re.search(r"process 1 on \S+ has the program file with checksum \w+, process 0 on", results[0][1]), results
    assert results[1][1] == ""


@needs_simulator
def test_processes_on_one_gpu_are_refused(data, tmp_path):
    result = run(1, tmp_path / "2", data, "--gpus", 2, *SIM_SHAPE, trainer=SIMULATOR, expect=EXIT_BAD_INPUT,
                 **simulated(tmp_path, 1))
    assert re.fullmatch(r".*: processes 0 and 1 on \S+ have the same GPU \(\S+\); start one process for each GPU\n",
                        result.stderr), result.stderr


@needs_simulator
def test_without_nccl_it_is_said_what_to_install(data, tmp_path):
    result = run(1, tmp_path / "2", data, "--gpus", 2, *SIM_SHAPE, trainer=SIMULATOR, expect=EXIT_BAD_INPUT,
                 SIM_NCCL="none", **simulated(tmp_path, 2))
    assert result.stderr.count("\n") == 1 and "NCCL not found" in result.stderr


# ------------------------------------------------------------------------------------------------------- the contract

def contract(trainer):
    """The program of test/ops/test_collectives.c that was built like this trainer; None: it is not built."""
    for directory in sorted((ROOT / "build").glob("*"), reverse=True):
        built, program = directory / trainer.name, directory / "test" / "ops" / "test_collectives"
        if built.exists() and program.exists() and built.read_bytes() == trainer.read_bytes():
            return program
    return None


@needs_mpi
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_mpi_keeps_the_contract(processes, tmp_path):
    program = contract(TRAINER) or pytest.skip("test_collectives is not built")
    result = subprocess.run(launched(processes, trainer=program), capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(re.findall(r"PASSED +\] 10 test", result.stdout + result.stderr)) == processes


@needs_simulator
@pytest.mark.parametrize("processes, net", [(1, ""), (2, "delay:5"), (3, "inprogress"), (4, "delay:6,inprogress")])
def test_nccl_and_tcp_keep_the_contract(processes, net, tmp_path):
    program = contract(SIMULATOR) or pytest.skip("test_collectives is not built for the simulator")
    port = free_port()
    running = [subprocess.Popen([program], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
                                     "MASTER_PORT": str(port), "SIM_GPUS": str(processes), "SIM_NCCL": net})
               for r in range(processes)]
    for process in running:
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0 and re.search(r"PASSED +\] 10 test", said), said


# ------------------------------------------------------------------------------------------------------------ placement

CPUS = sorted(os.sched_getaffinity(0))
several_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one processor")


def placement(text):
    found = re.search(r"^placement +(.*\n(?: {12}process .*\n)*)", text, re.M)
    return [line.strip() for line in found[1].splitlines()] if found else None


def header(*arguments, expect=0, **environment):
    env = {**{name: value for name, value in os.environ.items() if not name.startswith("OMP_")}, **environment}
    result = subprocess.run([*map(str, arguments)], env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == expect, result.stderr
    return result.stdout + result.stderr


@needs_mpi
@several_cpus
def test_a_mask_from_outside_is_kept(data):
    cpu = CPUS[1]
    said = header("taskset", "-c", cpu, *launched(2, *SHAPE, *QUIET, *data.flags, "-x", 1))
    assert placement(said) == [f"process {r}: CPU {cpu}, as it was started" for r in range(2)]
    said = header(*launched(2, *SHAPE, *QUIET, *data.flags, "-x", 1), OMP_PROC_BIND="false", OMP_PLACES="cores")
    assert placement(said) == [f"process {r}: not bound: OMP_PLACES is set" for r in range(2)]
    assert placement(header(*launched(2, *SHAPE, *QUIET, *data.flags, "-x", 1), PRETRAIN_NUMA="0")) is None
    assert placement(header(*launched(1, *SHAPE, *QUIET, *data.flags, "-x", 1))) is None  # it needs all processors
