"""--plan, -b auto and -r auto of the trainer: what is planned is what is taken, on every machine the same plan for a
GPU, valid JSON, and messages that say what would fit."""
import json
import os
import random
import re
import resource

import pytest
from conftest import (EXIT_BAD_INPUT, MEASURED, QUIET, ROOT, SIMULATOR, TINY, events, losses, needs_simulator,
                      same_run, train, write_shard)

MIB = 1 << 20


def plan(*arguments, **environment):
    return json.loads(train("--plan", "json", *arguments, env={**os.environ, **environment}).stdout)


# ------------------------------------------------------------------------------------------------- planned and measured

@pytest.fixture(scope="module")
def gpt2_tokens(tmp_path_factory):
    """Shards of GPT-2's vocabulary; which tokens they are does not matter here."""
    directory = tmp_path_factory.mktemp("gpt2_tokens")
    choose = random.Random(1)
    for part in ("train", "val"):
        write_shard(directory / f"{part}_000.bin", [choose.randrange(50257) for _ in range(8000)], 50257, 50256)
    return ["-i", str(directory / "train_*.bin"), "-j", str(directory / "val_*.bin")]


def limited(megabytes, *arguments, **options):
    """The trainer with so much memory and no more: the kernel refuses what would go beyond it, whatever else is in
    memory and however much of it was touched."""
    limits = (int(megabytes * MIB),) * 2
    return train(*arguments, "--threads", 2, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, limits), **options)


# Outside the plan are, whatever the model, the stacks of threads, of which 8 MiB each count, libraries and what they
# generate, the ring of the loader: 46 to 56 MiB with AVX512-BF16, most of it 1 to 2 MiB that oneDNN reserves for the
# code of each of some 25 matmuls. With AMX it reserves more.
OUTSIDE = 256


# Parameters outweigh all else, activations do, the logits do.
@pytest.mark.slow
@pytest.mark.parametrize("model, batch, context", [("L=2,C=1024,NH=16", 1, 64), ("L=12,C=256,NH=4", 8, 512),
                                                   ("d6", 32, 128)])
def test_a_run_takes_what_was_planned_and_little_beside_it(gpt2_tokens, model, batch, context):
    options = ["-e", model, "-b", batch, "-t", context, "--dtype", "fp32", *gpt2_tokens, *QUIET, "-x", 1]
    planned = plan(*options)["devices"][0]["memory"]["total"] / MIB
    assert planned > 3 * OUTSIDE
    limited(planned + OUTSIDE, *options)
    assert "not enough memory" in limited(planned - 1, *options, expect=EXIT_BAD_INPUT).stderr


def test_the_plan_of_this_machine_is_what_a_run_takes(data, tmp_path):
    options = ["-e", "L=3,C=128,NH=2,V=257,T=64", "-b", 6, "-t", 64, "-r", "2x1,0", *data.flags, *QUIET]
    for dtype in ("fp32", "bf16"):
        train(*options, "--dtype", dtype, "-x", 1, "-o", tmp_path / dtype)
        taken = events(tmp_path / dtype, "run")[0]["memory_planned"]
        memory = plan(*options, "--dtype", dtype)["devices"][0]["memory"]
        assert events(tmp_path / dtype, "memory")[0]["planned"] == sum(taken[key] for key in taken if key != "total")
        assert {key: memory[key] for key in taken} == taken


# -------------------------------------------------------------------------------------------------- -b auto, -r auto

def test_without_bf16_instructions_auto_is_fp32_and_the_plan_has_the_memory_of_both(data):
    baseline = {**os.environ, "PRETRAIN_CPU": "baseline"}
    said = {dtype: train(*TINY, *data.flags, "--plan", "--dtype", dtype, env=baseline).stdout for dtype in ("fp32", "bf16", "auto")}
    total = {dtype: re.search(r"planned +total +(\S+ \S+) ", text).group(1) for dtype, text in said.items()}
    assert total["auto"] == total["bf16"] != total["fp32"]  # a plan is of bf16, which GPUs take
    for dtype, other in (("fp32", "bf16"), ("bf16", "fp32"), ("auto", "fp32")):
        assert re.search(rf"planned +in {other} +{re.escape(total[other])}  there are no instructions for bf16", said[dtype])
    assert "precision   fp32: there are no instructions for bf16" in train(*TINY, *data.flags, *QUIET, "-x", 1, env=baseline).stdout


def test_auto_stays_below_the_memory_that_is_free():
    here = plan("-e", "d12,V=50257", "-b", "auto", "-r", "auto")["devices"][0]
    assert here["fits"] and here["memory"]["total"] <= here["memory"]["room"] <= 0.9501 * here["memory_bytes"]
    more = plan("-e", "d12,V=50257", "-b", here["batch_size"] + 1, "-r", here["recompute"])["devices"][0]
    # Other processes come and go: what is free now need not be what was free then. More than 64K tokens gain nothing.
    assert more["memory"]["total"] > here["memory"]["room"] or here["batch_size"] * 1024 == 65536


def test_a_run_with_auto_trains_and_its_checkpoint_states_what_was_chosen(data, tmp_path):
    options = ["-e", "L=2,C=64,NH=2,T=32", "-t", 32, "-d", 32 * 21, *data.flags, *QUIET]
    train(*options, "-b", "auto", "-r", "auto", "-x", 3, "-o", tmp_path / "auto")
    stated = events(tmp_path / "auto", "run")[0]["options"]
    assert (stated["batch-size"], stated["recompute"]) == (21, "0")  # memory is plenty: all windows of a step at once
    train(*options, "-b", 4, "-x", 3, "-o", tmp_path / "four")  # 5 micro-batches of 4 and one of 1
    ours, theirs = losses(tmp_path / "auto"), losses(tmp_path / "four")
    assert ours[1] == pytest.approx(theirs[1], rel=1e-5)  # the same windows, summed in another order


# A GPU needs memory beside the plan: for kernels and the libraries.
@needs_simulator
def test_a_gpu_with_room_for_the_plan_alone_is_refused_before_the_run(data):
    options = ["-e", "L=2,C=512,NH=8,V=8192,T=32", "-t", 32, "-b", 4, "-x", 1, *data.flags, *QUIET]
    planned = json.loads(train("--plan", "json", *options, trainer=SIMULATOR).stdout)["devices"][0]["memory"]["total"]

    def run(megabytes, expect):
        environment = {**MEASURED, "SIM_MEMORY_MB": str(int(megabytes)), "SIM_CONTEXT_MB": "1"}
        return train(*options, trainer=SIMULATOR, expect=expect, env=environment)

    assert "not enough memory: -b 4 -r 0 needs" in run(planned / MIB + 1, EXIT_BAD_INPUT).stderr
    # With the reserve it trains. Not even the 32 MiB are left that the measurement of its speed wants: it was before.
    little = planned / 0.94 / MIB + 2
    assert little * MIB - planned < 32 * MIB
    assert "limits      measured now, in a burst: " in run(little, 0).stdout


# ------------------------------------------------------------------------------------------------------------- the plan

def test_json_is_all_that_is_printed_and_every_key_is_documented():
    result = train("--plan", "json", "-e", "d12", "-b", "auto", "-r", "auto", "--tokens", "10e9", "-d", 524288,
                   "--gpu", "T4,h200,24G", "--gpus", 8)
    assert result.stderr == ""
    document = (ROOT / "doc" / "memory.md").read_text()

    def keys(item):
        if isinstance(item, dict):
            for key, value in item.items():
                yield key
                yield from keys(value)
        elif isinstance(item, list):
            for value in item:
                yield from keys(value)

    whole = json.loads(result.stdout)
    assert [entry["name"] for entry in whole["devices"]] == ["T4", "H200", "24G"]
    names = [entry["name"] for entry in plan("-e", "d12")["devices"]]  # all of the table, and this machine
    assert len(names) == 15 and names[1:3] == ["T4", "L4"] and "H200" in names
    for key in set(keys(whole)):
        assert f"`{key}`" in document, key
    t4, h200, size = whole["devices"]
    assert (t4["dtype"], h200["dtype"]) == ("fp16", "bf16")
    assert t4["limit"]["run_seconds"] > h200["limit"]["run_seconds"] > 0 and size["limit"]["run_seconds"] is None
    assert t4["memory"]["total"] <= 15.5e9 and t4["batch_size"] <= h200["batch_size"] == 64


def test_8_gpus_are_planned_without_one_being_there():
    options = ["-e", "d12", "-d", 524288, "-b", "auto", "-r", "auto", "--gpu", "h100", "--tokens", "10e9"]
    (one,), (eight,) = plan(*options)["devices"], plan(*options, "--gpus", 8)["devices"]
    assert eight["batch_size"] == 64 and one["batch_size"] > 64  # 512 windows, 64 for each of 8
    limit = eight["limit"]
    assert limit["step_tokens"] == one["limit"]["step_tokens"] == 524288
    assert limit["step_flop"] == pytest.approx(one["limit"]["step_flop"] / 8)
    # 124,475,904 parameters, padded to 8 x 256 elements a block: each GPU sends 7/8 of the gradients (4 bytes), and
    # receives 7/8 of the weights (2 bytes); with -z 0 the gradients twice.
    padded = 39421952 + 12 * 7088128
    assert limit["step_exchange_bytes"] == 7 * padded * (4 + 2) // 8
    (whole,) = plan(*options, "--gpus", 8, "-z", 0)["devices"]
    assert whole["limit"]["step_exchange_bytes"] == 2 * 7 * padded * 4 // 8
    assert whole["memory"]["optimizer"] == pytest.approx(8 * eight["memory"]["optimizer"], rel=0.002)
    assert limit["step_exchange_seconds"] == pytest.approx(limit["step_exchange_bytes"] / 450e9)
    assert 0 < limit["step_exposed_seconds"] < limit["step_exchange_seconds"]
    seconds = limit["step_seconds"] - limit["step_exposed_seconds"]
    assert limit["efficiency"] == pytest.approx(seconds / limit["step_seconds"])
    assert eight["gpu_link"] == 450e9 and limit["run_seconds"] == pytest.approx(limit["steps"] * limit["step_seconds"])
    # Four groups in each GPU are added first, for which it keeps two more copies of the gradients.
    (more,) = plan(*options, "--gpus", 8, "-z", 0, "--reduce-groups", 32)["devices"]
    assert more["memory"]["gradients"] == pytest.approx(3 * whole["memory"]["gradients"], rel=0.001)
    assert more["batch_size"] == 16


def test_a_plan_leaves_the_memory_that_nccl_takes_over_nvlink():
    for gpus, taken in ((1, 0), (2, 0.4e9), (4, 1.2e9), (8, 2.8e9), (64, 3e9)):
        linked, by_pcie = plan("-e", "d12", "-d", 524288, "-b", 1, "--gpu", "h200,rtx4090", "--gpus", gpus)["devices"]
        assert linked["memory"]["nccl"] == taken and by_pcie["memory"]["nccl"] == 0
        assert linked["memory"]["room"] == linked["memory_bytes"] - linked["memory"]["context"] - taken
    text = train("--plan", "-e", "d12", "-b", 1, "--gpu", "h200", "--gpus", 8).stdout
    assert "; plus 954 MiB for the CUDA context and 2.61 GiB for NCCL\n" in text


@needs_simulator
def test_every_build_makes_the_same_plan_for_a_gpu():
    arguments = ["--plan", "json", "-e", "d24", "-b", "auto", "-r", "auto", "-d", "524288",
                 "--gpu", "T4,rtx4090,H200,b200"]
    ours = train(*arguments).stdout
    assert train(*arguments, trainer=SIMULATOR).stdout == ours


def test_1558M_trains_in_12_GB_with_8_bit_states():
    (found,) = plan("-e", "d48", "-b", 1, "-r", "auto", "--gpu", "12G", "--optimizer", "adamw8bit", "-w", 0,
                    "--grad-dtype", "compute")["devices"]
    assert found["fits"] and found["memory"]["total"] + found["memory"]["context"] <= 12e9

# ------------------------------------------------------------------------------------------------- -------------- advice

def test_sizes_of_feed_forward_layers_near_4_c():
    out = train("--plan", "d_ff", "--gpu", "h100", "-e", "L=1,C=72,NH=1", "-b", 1, "-t", 16).stdout
    rows = [line.split()[1] for line in out.splitlines() if line.split()[1].isdigit()]
    # 4 C = 288; the multiples of 64 around it.
    assert [int(size) for size in rows] == [64, 128, 192, 256, 288, 320, 384, 448, 512, 576]
    assert "near 4 C: take " in out


def test_advice_is_the_same_on_every_machine(tmp_path):
    options = ["--plan", "sizes", "--gpu", "h100,a100", "-e", "d12", "-b", 64]
    out = train(*options).stdout
    assert out.count("what would gain most nearby") == 2 and "4608" in out
    if SIMULATOR.exists():
        assert train(*options, trainer=SIMULATOR).stdout == out
        here = train("--plan", "sizes", "-e", "d6", "-b", 1, "-t", 64, trainer=SIMULATOR).stdout
        assert "multiprocessors" in here and "matmul_forward qkvw" in here


def test_without_a_datasheet_mfu_is_a_share_of_the_rate_measured_at_the_start(data, tmp_path):
    train(*TINY, *QUIET, *data.flags, "-x", 2, "--dtype", "fp32", "-o", tmp_path / "run", env=MEASURED)
    device = events(tmp_path / "run", "run")[0]["device"]
    assert device["mfu_base"] == "measured" and device["peak_flops"] == device["matmul_flops"] > 0


def test_a_start_measures_the_speed_of_the_machine_unless_that_is_off(data, tmp_path):
    said = {}
    for value in ("on", "off"):
        flags = [*TINY, *QUIET, *data.flags, "-x", 1, "--dtype", "fp32", "-o", tmp_path / value]
        said[value] = train(*flags, env={**os.environ, "PRETRAIN_SPEED": value}).stdout
    assert re.search(r"^limits +measured now, in a burst: matmul \S+ TFLOP/s in fp32, copy \S+ GB/s$", said["on"], re.M)
    assert re.search(r"^limits +not measured now$", said["off"], re.M)
    assert same_run(tmp_path / "on", tmp_path / "off")  # with a checkpoint at the end
    step = events(tmp_path / "off", "step")[0]
    assert step["mfu"] is None and events(tmp_path / "off", "run")[0]["device"]["matmul_flops"] == 0


def test_a_speed_that_is_neither_on_nor_off_is_refused(data):
    result = train(*TINY, *QUIET, *data.flags, "-x", 1, expect=EXIT_BAD_INPUT, env={**os.environ, "PRETRAIN_SPEED": "0"})
    assert result.stderr.endswith("PRETRAIN_SPEED=0: expected on or off\n")
