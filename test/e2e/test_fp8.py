"""--fp8: curves next to those of bf16, on the CPU and in the simulator."""
import pytest
from conftest import SIMULATOR, TRAINER, losses, needs_simulator, run_tiny

FP8 = ["--fp8", 1]

# 128 tokens a step. At this learning rate the gradient norm is smooth in all precisions, so that what differs is the
# arithmetic; at 1e-3 it has spikes in fp32 already, and any two precisions part at them for a step.
CURVE = ["--dtype", "bf16", "-x", 100, "-l", 3e-4]


def run(trainer, out, data, *arguments):
    return run_tiny(trainer, out, data, *arguments, SIM_CC="90")  # a GPU that has fp8


@pytest.fixture(params=[pytest.param(TRAINER, id="cpu"),
                        pytest.param(SIMULATOR, id="simulator", marks=needs_simulator)])
def trainer(request):
    return request.param


def check_curve(in_fp8, in_bf16):
    assert len(in_bf16) == 100
    assert in_fp8 == pytest.approx(in_bf16, rel=0.01)  # at each step, not on average
    assert in_fp8 != pytest.approx(in_bf16, rel=1e-5), "the blocks were not computed in fp8"
    assert in_fp8[100] < in_fp8[1] - 1, "nothing was learnt, so nothing was compared"


@pytest.mark.slow
def test_each_of_a_hundred_losses_is_within_a_percent_of_bf16(trainer, data, tmp_path):
    in_bf16 = losses(run(trainer, tmp_path / "bf16", data, *CURVE))
    check_curve(losses(run(trainer, tmp_path / "fp8", data, *CURVE, "--fp8", 1)), in_bf16)


@needs_simulator
def test_the_simulator_has_the_losses_of_the_cpu_trainer(data, tmp_path):
    arguments = ["--dtype", "bf16", "-x", 20, "-d", 256, "-l", 1e-3, "-u", 5, *FP8]
    on_cpu = losses(run(TRAINER, tmp_path / "cpu", data, *arguments))
    # As in bf16 (test_simulator.py): sums in another order are sometimes rounded to the other side, now also in fp8.
    assert losses(run(SIMULATOR, tmp_path / "sim", data, *arguments)) == pytest.approx(on_cpu, rel=4e-3)


