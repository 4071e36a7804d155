"""The CUDA trainer on the simulator, train_gpt2sim: the same loop and files over the kernels of llmc/cuda.

Without the headers of a CUDA toolkit there is no such binary, and these tests are skipped.
"""
import itertools
import json
import os
import re

import pytest
from conftest import (EXIT_RUN_FAILED, QUIET, SIMULATOR, TINY, TRAINER, call, checkpoints, command, events,
                      losses, needs_simulator, run_tiny, same_run, same_state, train, write_state, xxh3)

pytestmark = needs_simulator

# Relative errors of a mean loss after up to 20 steps; the reasons stand in test/golden/test_golden.c: sums over many
# independent errors of one op's tolerance each. fp16 is compared with the CPU's fp32.
TOLERANCE = {"fp32": 1e-5, "bf16": 4e-3, "fp16": 1e-3}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_twenty_steps_have_the_losses_of_the_cpu_trainer(dtype, data, tmp_path):
    arguments = ["-x", 20, "-d", 256, "-l", 1e-3, "-u", 5]  # two micro-steps a step
    cpu_dtype = dtype if dtype != "fp16" else "fp32"
    on_cpu = losses(run_tiny(TRAINER, tmp_path / "cpu", data, *arguments, "--dtype", cpu_dtype))
    simulated = losses(run_tiny(SIMULATOR, tmp_path / "sim", data, *arguments, "--dtype", dtype))
    assert len(on_cpu) == 20
    assert simulated == pytest.approx(on_cpu, rel=TOLERANCE[dtype])
    assert on_cpu[20] < on_cpu[1] - 0.3, "nothing was learnt, so nothing was compared"


def test_a_short_last_micro_batch_and_recomputation_give_the_same_losses(data, tmp_path):
    fp32 = ["--dtype", "fp32", "-x", 5, "-d", 192, "-ge", 0]  # a fused GELU would round elsewhere than a repeated one
    expected = losses(run_tiny(SIMULATOR, tmp_path / "6", data, *fp32, "-b", 6))
    # 6 sequences as 4 + 2: fp32 sums in another order, 1e-7 a step, growing with the steps.
    assert losses(run_tiny(SIMULATOR, tmp_path / "4", data, *fp32, "-b", 4)) == pytest.approx(expected, rel=1e-5)
    for level in (1, 2, 3):
        assert losses(run_tiny(SIMULATOR, tmp_path / f"r{level}", data, *fp32, "-b", 6, "-r", level)) == expected


def sealed(choice):
    """The line of a choice with its checksum."""
    return f"{choice}\t{xxh3(choice.encode())[-8:]}"


def another_algorithm(line):
    """The line of a product, with an algorithm (SimAlgorithm of dev/sim/cublaslt.h) that was another candidate of the
    contest: only the checkpoint can tell it to the resumed run. A choice is recorded where there were several: always
    TILED, and SCALAR with it if the epilogue is plain or a bias, else SPLIT."""
    tiled, split, scalar = 1, 2, 3
    key, value, _ = line.split("\t")
    second = scalar if re.search(r" to \w+, (plain|bias)\b", key) else split
    return sealed(f"{key}\t{value[:8]}{tiled if int(value[8:10]) != tiled else second:02}{value[10:]}")


def test_a_resume_takes_what_the_run_chose_by_timing_and_says_where_it_cannot(data, tmp_path):
    environment = {"PRETRAIN_CACHE": "off", "SIM_CUBLASLT_ALGOS": "all"}
    out = run_tiny(SIMULATOR, tmp_path / "run", data, "-x", 3, "-n", 3, **environment)
    (checkpoint,) = checkpoints(out)
    state = json.loads((checkpoint / "trainer.json").read_text())
    assert [event["tuning"] for event in events(out, "tuning")] == [state["tuning"]]
    other = "".join(another_algorithm(line) + "\n" for line in state["tuning"].splitlines())
    assert other and not set(other.splitlines()) & set(state["tuning"].splitlines())
    write_state(checkpoint, state | {"tuning": other})
    run_tiny(SIMULATOR, out, data, "-y", 1, "-x", 5, "-n", 5, **environment)
    again = json.loads((checkpoints(out)[-1] / "trainer.json").read_text())["tuning"]
    assert sorted(again.splitlines()) == sorted(other.splitlines())
    for units, told in (("2", False), ("3", True)):  # multiprocessors: another GPU
        result = train("-o", out, "-y", 1, "-x", 6, *TINY, *QUIET, *data.flags, trainer=SIMULATOR,
                       env={**os.environ, "PRETRAIN_CACHE": "off", "SIM_SMS": units})
        assert ("attention for another GPU" in result.stderr) == told


def test_a_resume_takes_the_choice_between_cudnn_and_our_attention(data, tmp_path):
    environment = {"PRETRAIN_CACHE": "off", "SIM_CUDNN": "1", "SIM_CC": "90"}
    out = run_tiny(SIMULATOR, tmp_path / "run", data, "--dtype", "bf16", "-x", 2, "-n", 2, **environment)
    (checkpoint,) = checkpoints(out)
    state = json.loads((checkpoint / "trainer.json").read_text())
    assert len(re.findall(r"attention.*\t0[01]\t", state["tuning"])) == 2
    # Of the model, not of the products by which the machine was measured.
    assert re.search(r"cuDNN \d\S* or own kernels, to be measured", (out / "main.log").read_text())
    other = re.sub(r"^(.*attention.*\t0)([01])\t.*$", lambda found: sealed(found[1] + "10"[int(found[2])]), state["tuning"],
                   flags=re.M)
    write_state(checkpoint, state | {"tuning": other})
    result = train("-o", out, "-y", 1, "-x", 4, "-n", 4, *TINY, *QUIET, *data.flags, trainer=SIMULATOR,
                   env={**os.environ, **environment})
    again = json.loads((checkpoints(out)[-1] / "trainer.json").read_text())["tuning"]
    assert "chosen again" not in result.stderr and sorted(again.splitlines()) == sorted(other.splitlines())


@pytest.mark.parametrize("refused, said", [
    ({"SIM_CAPTURE": "refused"}, ["CUDA graphs"]), ({"SIM_EARLY": "refused"}, ["early launches"]),
    ({"SIM_DRIVER": "12020"}, ["early launches"]), ({}, [])], ids=["graphs", "early", "old", "nothing"])
def test_what_a_driver_refuses_is_left_out_with_the_same_bits(refused, said, data, tmp_path):
    """PRETRAIN_GRAPHS=0 is the run that asks the driver for nothing of it."""
    flags = ["--dtype", "bf16", "--optimizer", "muon", "-x", 4, "-n", 4]  # which records its products, too
    tuned = {**os.environ, "SIM_CC": "90", "PRETRAIN_CACHE": str(tmp_path / "tuning")}
    simple = run_tiny(SIMULATOR, tmp_path / "simple", data, *flags, PRETRAIN_GRAPHS="0", PRETRAIN_EARLY_LAUNCH="0",
                      SIM_CC="90")
    result = train(*TINY, *QUIET, *data.flags, *flags, "-o", tmp_path / "run", trainer=SIMULATOR, env=tuned | refused)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("sim: ")]
    assert len(lines) == len(said) and all(words in line for words, line in zip(said, lines)), result.stderr
    assert same_state(checkpoints(simple)[-1], checkpoints(tmp_path / "run")[-1])


# nvcc makes the same instructions of a kernel for these: fp32 does not know the tensor cores of sm_80. An sm_120 runs the
# kernels of sm_90 here, with the shared memory and the choices of its own.
@pytest.mark.slow
@pytest.mark.parametrize("dtype, capabilities", [("fp32", "75 80 90"), ("bf16", "80 89 90 120")])
def test_gpus_with_the_same_code_give_the_same_bits(dtype, capabilities, data, tmp_path):
    arguments = ["-x", 3, "-n", 3, "-ge", 0, "--dtype", dtype]
    out = [run_tiny(SIMULATOR, tmp_path / c, data, *arguments, SIM_CC=c) for c in capabilities.split()]
    assert all(same_state(checkpoints(out[0])[-1], checkpoints(other)[-1]) for other in out[1:])


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["75", "80", "120"])
def test_other_gpus_train_too(capability, data, tmp_path):
    dtype = "fp16" if capability == "75" else "bf16"
    on_cpu = losses(run_tiny(TRAINER, tmp_path / "cpu", data, "-x", 5, "--dtype", "fp32"))
    simulated = losses(run_tiny(SIMULATOR, tmp_path / "sim", data, "-x", 5, SIM_CC=capability))  # its default dtype
    assert simulated == pytest.approx(on_cpu, rel=TOLERANCE[dtype])


def test_tf32_trains_as_fp32_within_the_rounding_of_its_operands(data, tmp_path):
    """Products are wrong by 3e-4 (test_gemm_plan.c), and losses by no more. In fp32 only the order of sums may differ,
    which is chosen by timing: the mean of 128 losses then moves by few times 2^-24."""
    order, rounding = 1e-6, 3e-4
    for numerics in ({}, {"SIM_NUMERICS": "hardware"}):
        fp32, tf32 = (losses(run_tiny(SIMULATOR, tmp_path / f"{len(numerics)}-{f}", data, "-x", 5, "--dtype", "fp32",
                                      "-f", f, **numerics)) for f in (0, 1))
        error = max(abs(tf32[step] / fp32[step] - 1) for step in fp32)
        assert order < error < rounding if numerics else error < order


def run_broken(out, data, *arguments, **environment):
    """The exit code, and the lines of stderr; the simulator says before the last one what it broke."""
    env = {**os.environ, "PRETRAIN_CACHE": str(out.parent / "tuning"), **environment}
    run = call(*command(*TINY, *QUIET, *data.flags, "-o", out, *arguments, trainer=SIMULATOR), env=env)
    lines = run.stderr.splitlines()
    assert run.returncode == 0 or (len(lines) == 2 and lines[0].startswith("sim: ")), run.stderr
    return run.returncode, lines


# Allocations for measuring may fail: something is then not measured. Ten others stop the run; how many there are before
# one of them depends on times, so a start may have another one at the number of the last start.
@pytest.mark.slow
def test_each_allocation_of_a_start_may_fail(data, tmp_path):
    stopped = 0
    for n in itertools.count(1):
        out = tmp_path / str(n)
        code, lines = run_broken(out, data, "-x", 1, "-n", 1, PRETRAIN_CACHE="off", SIM_FAIL_ALLOC=str(n))
        if not lines:
            break
        assert lines[0].startswith(f"sim: allocation {n}, ")
        if code == 0:
            continue
        stopped += 1
        assert code == EXIT_RUN_FAILED and "out of memory" in lines[1] and not list(out.glob("*step_*"))
    assert code == 0 and stopped >= 5 and n > stopped


def test_a_kernel_that_fails_leaves_whole_checkpoints_only(data, tmp_path):
    arguments = ["-x", 4, "-n", 2, "-nk", 0]
    whole = run_tiny(SIMULATOR, tmp_path / "whole", data, *arguments)
    kept = []
    for n in itertools.count(1, 29):
        out = tmp_path / str(n)
        code, lines = run_broken(out, data, *arguments, SIM_STICKY=str(n))
        if code == 0:
            break
        assert re.search(r"an illegal memory access was encountered( \(cudaErrorIllegalAddress\))?$", lines[1])
        kept.append(len(list(out.glob("*step_*"))))
        assert all(same_state(path, whole / path.name) for path in out.glob("*step_*"))
    assert {0, 1} <= set(kept), "no kernel failed before the first checkpoint, or none after it"


# Every tensor of the arena apart from the others, between forbidden gaps, with NaN before each pass.
@pytest.mark.sanitize
@pytest.mark.parametrize("arguments", [
    "--dtype bf16 -d 256",
    "--dtype bf16 -d 192 -v 1 -s 1 --samples 2 -g 8",  # a short last micro-batch
    "--dtype fp32 -r 3",
    "--dtype bf16 --fp8 1 --grad-dtype compute -d 256 -r 2",
    "--dtype bf16 --optimizer muon",
    "--dtype bf16 --optimizer adafactor --numerics-every 1",
    "--dtype bf16 --offload optimizer",
])
def test_no_tensor_of_the_arena_depends_on_its_neighbours(arguments, data, tmp_path):
    arguments = [*arguments.split(), "-x", 3, "-n", 3]
    plain, apart = (run_tiny(SIMULATOR, tmp_path / name, data, *arguments, **environment)
                    for name, environment in (("plain", {}), ("apart", {"PLAN_APART": "1"})))
    assert same_run(plain, apart)
    planned = [events(run, "run")[0]["memory_planned"]["total"] for run in (plain, apart)]
    assert planned[1] > planned[0] + 50 * 4096
