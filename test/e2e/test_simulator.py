"""The CUDA trainer on the simulator, train_gpt2sim: the same loop and files over the kernels of llmc/cuda.

SIM_TRAINER names the binary (default: ./train_gpt2sim). Without the headers of a CUDA toolkit there is none, and these
tests are skipped.
"""
import os
import subprocess
from pathlib import Path

import pytest
from conftest import QUIET, ROOT, TINY, TRAINER, checkpoints, losses, same_state

SIMULATOR = Path(os.environ.get("SIM_TRAINER", ROOT / "train_gpt2sim")).resolve()
pytestmark = pytest.mark.skipif(not SIMULATOR.exists(), reason="no train_gpt2sim: it is built where a CUDA toolkit is")

# Relative errors of a mean loss after up to 20 steps; the reasons stand in test/golden/test_golden.c: sums over many
# independent errors of one op's tolerance each. fp16 is compared with the CPU's fp32.
TOLERANCE = {"fp32": 1e-5, "bf16": 4e-3, "fp16": 1e-3}


def run(trainer, out, data, *arguments, **environment):
    command = [str(trainer), *TINY, *QUIET, *data.flags, "-o", str(out), *map(str, arguments)]
    env = {**os.environ, "PRETRAIN_CACHE": str(out.parent / "tuning"), **environment}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=env,
                            stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return out


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_twenty_steps_have_the_losses_of_the_cpu_trainer(dtype, data, tmp_path):
    arguments = ["-x", 20, "-d", 256, "-l", 1e-3, "-u", 5]  # two micro-steps a step
    on_cpu = losses(run(TRAINER, tmp_path / "cpu", data, *arguments, "--dtype", dtype if dtype != "fp16" else "fp32"))
    simulated = losses(run(SIMULATOR, tmp_path / "sim", data, *arguments, "--dtype", dtype))
    assert len(on_cpu) == 20
    assert simulated == pytest.approx(on_cpu, rel=TOLERANCE[dtype])
    assert on_cpu[20] < on_cpu[1] - 0.3, "nothing was learnt, so nothing was compared"


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_resumed_run_has_the_same_bits(dtype, data, tmp_path):
    whole = run(SIMULATOR, tmp_path / "whole", data, "--dtype", dtype, "-x", 6, "-n", 6)
    parts = run(SIMULATOR, tmp_path / "parts", data, "--dtype", dtype, "-x", 6, "-n", 3, "-nk", 0)
    for checkpoint in checkpoints(parts)[1:]:  # as if the run had been killed after step 3
        subprocess.run(["rm", "-r", checkpoint], check=True)
    run(SIMULATOR, parts, data, "-y", 1, "-x", 6, "-n", 3)
    assert same_state(checkpoints(whole)[-1], checkpoints(parts)[-1])
    assert losses(whole) == losses(parts)


def test_thread_order_and_late_streams_change_no_bit(data, tmp_path):
    expected = run(SIMULATOR, tmp_path / "forward", data, "-x", 4, "-n", 4)
    orders = {"reverse": {"SIM_SCHED": "rev"}, "random": {"SIM_SCHED": "rand:7"}, "late": {"SIM_STREAMS": "lazy"}}
    for name, environment in orders.items():
        out = run(SIMULATOR, tmp_path / name, data, "-x", 4, "-n", 4, **environment)
        assert same_state(checkpoints(expected)[-1], checkpoints(out)[-1]), name


def test_a_short_last_micro_batch_and_recomputation_give_the_same_losses(data, tmp_path):
    fp32 = ["--dtype", "fp32", "-x", 5, "-d", 192, "-ge", 0]  # a fused GELU would round elsewhere than a repeated one
    expected = losses(run(SIMULATOR, tmp_path / "6", data, *fp32, "-b", 6))
    # 6 sequences as 4 + 2: fp32 sums in another order, 1e-7 a step, growing with the steps.
    assert losses(run(SIMULATOR, tmp_path / "4", data, *fp32, "-b", 4)) == pytest.approx(expected, rel=1e-5)
    for level in (1, 2, 3):
        assert losses(run(SIMULATOR, tmp_path / f"r{level}", data, *fp32, "-b", 6, "-r", level)) == expected


@pytest.mark.parametrize("capability", ["75", "80"])
def test_older_gpus_train_too(capability, data, tmp_path):
    dtype = "fp16" if capability == "75" else "bf16"
    on_cpu = losses(run(TRAINER, tmp_path / "cpu", data, "-x", 5, "--dtype", "fp32"))
    simulated = losses(run(SIMULATOR, tmp_path / "sim", data, "-x", 5, SIM_CC=capability))  # its default dtype
    assert simulated == pytest.approx(on_cpu, rel=TOLERANCE[dtype])
