"""-r and --grad-dtype, from the command line: what is computed again is computed once and is accounted for (that it changes
no bit: test/invariants); gradients in the compute dtype train as well as those in fp32."""
import json

import pytest
from conftest import QUIET, events, losses, train

L = 4
MODEL = ["-e", f"L={L},C=64,NH=2,T=32", "-t", "32", "-b", "2", "-d", 5 * 32]  # micro-batches of 2, 2 and 1
RUN = [*MODEL, *QUIET, "-x", "4"]
# How many of the 4 blocks compute again: qkv, attproj, fc, a GELU without fc, attention, both layernorms.
CHOICES = {"1": (0, 0, 0, 4, 0, 0), "2": (0, 0, 0, 4, 0, 4), "3": (4, 4, 4, 0, 4, 4), "3/2": (2, 2, 2, 0, 2, 2),
           "fc": (0, 0, 4, 0, 0, 0), "qkv+gelu/3": (2, 0, 0, 2, 0, 0),
           "layernorm+qkv+attentionx1,fc+attproj": (1, 3, 3, 0, 1, 1), "2x3,3": (1, 1, 1, 3, 1, 4)}


@pytest.mark.parametrize("choice", CHOICES)
def test_each_op_that_was_not_kept_runs_once_more(data, tmp_path, choice):
    train(*MODEL[:-2], *QUIET, *data.flags, "--profile", 2, "-r", choice, "-o", tmp_path)
    profile = json.loads((tmp_path / "profile.json").read_text())
    calls = {}
    for row in profile["ops"]:
        calls[row["op"]] = calls.get(row["op"], 0) + row["calls"]
    qkv, attproj, fc, gelu_alone, attention, layernorms = CHOICES[choice]
    assert calls["matmul_forward"] == L + qkv
    assert calls["matmul_residual_forward"] == 2 * L + attproj
    assert calls["matmul_gelu_forward"] == L + fc
    assert calls.get("gelu_forward", 0) == gelu_alone
    assert calls["attention_forward"] == L + attention
    assert calls["layernorm_forward"] == 2 * L + 1 + 2 * layernorms

    shape = events(tmp_path, "run")[0]
    C, Vp, T = (shape["model"][key] for key in ("C", "Vp", "T"))
    again = (8 * fc + 6 * qkv + 2 * attproj) * C * C + 2 * C * (T + 1) * attention
    once = 72 * L * C * C + 6 * Vp * C + 7 * L * C * (T + 1)
    assert profile["flops"] == (once + again) * shape["tokens_per_step"]




# --------------------------------------------------------------------------------------- gradients in the compute dtype

COMPUTE = ["--dtype", "bf16", "--grad-dtype", "compute"]


@pytest.mark.slow
def test_64_micro_steps_train_as_well_as_in_fp32(data, tmp_path):
    """Step by step the loss is nearer to that with fp32 gradients than runs of other seeds are to each other."""
    flags = ["-e", "L=2,C=64,NH=2,T=32", "-t", "32", "-b", "1", "-d", 64 * 32, *QUIET]
    flags += ["-x", "12", "-l", "3e-3", "-u", "2"]

    def curve(seed, *precision):
        run = tmp_path / f"{seed}{len(precision)}"
        train(*flags, *data.flags, *precision, "--seed", seed, "-o", run)
        return losses(run)

    fp32 = [curve(seed, "--dtype", "bf16") for seed in (1, 2, 3)]
    compute = curve(1, *COMPUTE)
    assert fp32[0][1] - fp32[0][12] > 1
    for step in fp32[0]:
        chance = [run[step] for run in fp32]
        assert abs(compute[step] - fp32[0][step]) < max(chance) - min(chance), step
    assert compute[1] == fp32[0][1] and compute[12] != fp32[0][12]  # another precision indeed
