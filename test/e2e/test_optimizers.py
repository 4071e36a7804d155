"""Every --optimizer learns; groups of parameters have rates of their own; another optimizer's checkpoint is refused by name,
or its state begins anew. That a resume and an offloaded state change no bit: test/invariants."""
import json
import shutil
import struct

import pytest
from conftest import (QUIET, SIMULATOR, TINY, checkpoints, cut_back, events, losses, needs_simulator,
                      run_tiny, same_run, same_state, train, write_state)

ADAMW_LIKE = 3e-3  # of a model this small; the others in the proportions of their defaults
RATES = {"adamw": ADAMW_LIKE, "adamw8bit": ADAMW_LIKE, "adamw-bf16": ADAMW_LIKE, "adamw-kahan": ADAMW_LIKE,
         "lion": 5e-4, "adafactor": 5e-3, "sgd": 1e-1, "muon": ADAMW_LIKE}
WHOLE_MATRICES = ("adafactor", "muon")  # no --offload
STEPS, MIDDLE = 30, 17
FLAGS = [*TINY, *QUIET, "--dtype", "bf16", "-d", 256, "-u", 3, "-x", STEPS, "-n", MIDDLE, "-nk", 0]


def flags_of(optimizer):
    return ["--optimizer", optimizer, "-l", RATES[optimizer]]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """optimizer -> the directory of its uninterrupted run; each is made once."""
    runs = {}

    def of(optimizer):
        if optimizer not in runs:
            runs[optimizer] = tmp_path_factory.mktemp(optimizer) / "run"
            train(*FLAGS, *data.flags, *flags_of(optimizer), "-o", runs[optimizer])
        return runs[optimizer]

    return of


def interrupted(run, directory):
    """A copy of a run as it was when its checkpoint in the middle had been written."""
    return cut_back(shutil.copytree(run, directory))


def state_of(run, checkpoint=-1):
    return json.loads((checkpoints(run)[checkpoint] / "trainer.json").read_text())


@pytest.mark.parametrize("optimizer", RATES)
def test_it_learns(optimizer, whole):
    run = whole(optimizer)
    loss = losses(run)
    # New weights say ln(257) = 5.55 nats. To know which 23 bytes there are at all is worth ln(257 / 23) = 2.4 of them,
    # and the first thing that is learnt: half of it in 30 steps shows that the update goes where the gradient points.
    assert loss[1] == pytest.approx(5.55, abs=0.1)
    assert sum(loss[step] for step in range(STEPS - 4, STEPS + 1)) / 5 < loss[1] - 1.2
    assert state_of(run)["optimizer"] == optimizer


UNTIED = ["-e", "llama:L=2,C=64,NH=2,T=32", "-t", 32, "-b", 4]


def tensors_of(run):
    from verify_checkpoint import tensors
    return {name: values for name, (_, _, values) in tensors(checkpoints(run)[-1] / "model.safetensors")[0].items()}


def group_of(name):
    if "embed_tokens" in name or name.endswith(("wte.weight", "wpe.weight")):
        return "embedding"
    if "lm_head" in name:
        return "head"
    return "vectors" if "norm" in name or name.endswith("bias") or ".ln_" in name else "matrices"


@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize("head", [False, True])
def test_groups_have_learning_rates_of_their_own(optimizer, head, data, tmp_path):
    """In the first step, whatever the optimizer, the change is the gradient's times the learning rate of the group, also that
    of the decay. A head has the rate of the embeddings unless it has its own."""
    import numpy as np

    flags = [*UNTIED, *QUIET, *data.flags, "--dtype", "fp32", "--optimizer", optimizer, "-k", "constant", "-u", 0, "-n", 1,
             "-nk", 0, "-x", 1, "-c", 0.1]
    unit = 1.0 if optimizer == "sgd" else 1e-3  # changes that fp32 weights hold well
    rates = {"embedding": 4, "head": 8 if head else 4, "vectors": 2, "matrices": 1}
    own = ["--lr-embedding", 4 * unit, "--lr-vectors", 2 * unit, *(["--lr-head", 8 * unit] if head else [])]
    for name, more in (("start", ["-l", 1e-9]), ("one", ["-l", unit]), ("own", ["-l", unit, *own])):
        train(*flags, *more, "-o", tmp_path / name)
    start, one, groups = (tensors_of(tmp_path / name) for name in ("start", "one", "own"))
    for name, values in start.items():
        moved, moved_more = np.abs(one[name] - values), np.abs(groups[name] - values)
        assert moved.max() > 1e-5
        assert np.allclose(moved_more, rates[group_of(name)] * moved, rtol=1e-2, atol=1e-6), name


def test_the_header_and_a_resume_name_what_groups_have(data, tmp_path):
    flags = [*UNTIED, *QUIET, *data.flags, "--dtype", "fp32", "-l", 1e-3, "-x", 2, "-n", 1]
    plain = train(*flags, "-o", tmp_path / "run").stdout
    assert not any(f"{group} learning" in plain or f"{group} beta" in plain for group in ("embedding", "head", "vectors"))
    groups = ["--lr-embedding", 4e-3, "--lr-head", 2e-3, "--by-group", "embedding.beta2=0.99,vectors.decay=0.01"]
    said = train("-o", tmp_path / "run", "-y", 1, "-x", 3, *groups).stdout
    lines = [line.strip() for line in said.splitlines()]
    assert "embedding learning rate 0.004, beta2 0.99" in lines
    assert "head learning rate 0.002" in lines and "vectors weight decay 0.01" in lines
    assert "--lr-embedding 0.004 (was auto)" in said and "--lr-head 0.002 (was auto)" in said
    assert "--by-group embedding.beta2=0.99,vectors.decay=0.01 (was )" in said
    again = train("-o", tmp_path / "run", "-y", 1, "-x", 4).stdout
    assert "head learning rate 0.002" in [line.strip() for line in again.splitlines()]




def test_muon_takes_gradients_of_exactly_zero(data, tmp_path):
    """Where the projections back into the residual are 0, as many models begin, those of qkv and fc in the first step: these
    weights only decay then. Its direction is 0, not 0 / 0."""
    import numpy as np

    train(*UNTIED, "-x", 0, *QUIET, *data.flags, "--export", tmp_path / "start")
    path = tmp_path / "start" / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = 8 + struct.unpack("<Q", content[:8])[0]
    for name, tensor in json.loads(content[8:length]).items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            begin, end = tensor["data_offsets"]
            content[length + begin:length + end] = bytes(end - begin)
    path.write_bytes(content)
    train("-e", tmp_path / "start", "-t", 32, "-b", 4, *QUIET, *data.flags, "--dtype", "fp32", "--optimizer", "muon", "-l", 0.01, "-c",
          0.1, "-u", 0, "-k", "constant", "-x", 5, "-n", 1, "-nk", 0, "-o", tmp_path / "run")
    from verify_checkpoint import tensors
    start = {name: values for name, (_, _, values) in tensors(path)[0].items()}
    first = {name: values for name, (_, _, values) in tensors(checkpoints(tmp_path / "run")[0] / "model.safetensors")[0].items()}
    for name, values in start.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            assert np.allclose(first[name], values * (1 - 1e-3), rtol=1e-6, atol=0), name
    assert all(np.isfinite(values).all() for values in tensors_of(tmp_path / "run").values())
    loss = losses(tmp_path / "run")
    assert not any("skip" in entry for entry in events(tmp_path / "run", "step")) and loss[5] < loss[1] - 0.1


def test_adamw_learns_in_6_bytes_a_parameter(data, tmp_path):
    """No master weights, gradients rounded stochastically in each micro-step, moments of 8 bits."""
    train(*FLAGS, *data.flags, *flags_of("adamw8bit"), "-w", 0, "--grad-dtype", "compute", "-o", tmp_path / "run")
    loss = losses(tmp_path / "run")
    assert loss[STEPS] < loss[1] - 1.2
    assert state_of(tmp_path / "run", 0)["control"]["micro_steps"] == 34


def test_a_skipped_step_leaves_the_state_as_it_is(data, tmp_path):
    """-sl with a limit that every loss is above, once its window of 128 steps is full: those steps change nothing, and are
    no updates, in a resumed run neither: with this beta2 the bias correction depends on their number."""
    flags = ["-e", "L=1,C=64,NH=2,T=16", "-t", 16, "-b", 2, *QUIET, *data.flags, "--dtype", "bf16", "-l", 1e-3, "-k",
             "constant", "-u", 1, "-sl", 1e-6, "-sg", 1e-6, "-n", 0, "-nk", 0, "--beta2", 0.9999]
    for name, more in {"device": [], "host": ["--offload", "optimizer"]}.items():
        train(*flags, *more, "-x", 140, "-o", tmp_path / name)
    skips = [entry["step"] for entry in events(tmp_path / "host", "step") if "skip" in entry]
    assert len(skips) > 2 and min(skips) > 128
    assert same_run(tmp_path / "host", tmp_path / "device")
    # One step before a skipped one, and after it: the same file.
    for last in (skips[0] - 1, skips[0]):
        train(*flags, "--offload", "optimizer", "-x", last, "-o", tmp_path / f"{last}")
    before, after = (checkpoints(tmp_path / f"{last}")[-1] for last in (skips[0] - 1, skips[0]))
    assert same_state(before, after)
    train(*flags, "--offload", "optimizer", "-x", 140, "-o", tmp_path / "run", "-y", 1)
    assert same_state(checkpoints(tmp_path / "run")[-1], checkpoints(tmp_path / "host")[-1])
    assert state_of(tmp_path / "run")["control"]["updates"] == 140 - len(skips)


# ------------------------------------------------------------------------------------------------ another optimizer


def test_a_resume_of_the_weights_begins_with_a_new_state_and_keeps_the_rest(whole, tmp_path):
    parts = interrupted(whole("adamw"), tmp_path / "parts")
    said = train("-o", parts, "-y", "weights", "--optimizer", "lion", "-l", RATES["lion"]).stdout
    assert "-y weights: lion starts with a new state after step 17" in said
    state = state_of(parts)
    assert (state["step"], state["optimizer"], state["control"]["updates"]) == (STEPS, "lion", STEPS - MIDDLE)
    loss = losses(parts)
    assert loss[MIDDLE + 1] == losses(whole("adamw"))[MIDDLE + 1]  # the same weights met the same data
    assert loss[STEPS] < loss[MIDDLE] + 0.1
    train("-o", parts, "-y", 1, "-x", STEPS + 1)  # from here on it is a run like any other: no need to say it again
    assert losses(parts)[STEPS + 1] < loss[MIDDLE] + 0.1


def tensor(checkpoint, name):
    """The floats of a tensor of model.safetensors."""
    with open(checkpoint / "model.safetensors", "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(8 + length + begin)
        return struct.unpack(f"<{(end - begin) // 4}f", file.read(end - begin))


def test_a_new_state_of_the_same_optimizer_counts_its_steps_from_one(whole, tmp_path):
    """The first step of a new AdamW is lr * g / |g|: by lr for every weight that is not decayed. Without a bias
    correction that begins anew it would be 0.1 / sqrt(0.05) = 0.45 lr, and wrong for as long as the moments remember.
    """
    parts = interrupted(whole("adamw"), tmp_path / "parts")
    train("-o", parts, "-y", "weights", "-x", MIDDLE + 1)
    state = state_of(parts)
    assert (state["step"], state["control"]["updates"]) == (MIDDLE + 1, 1)
    assert is_first_update(*checkpoints(parts)[-2:], events(parts, "step")[-1]["lr"])


def is_first_update(before, after, lr):
    values = zip(*(tensor(path, "transformer.ln_f.bias") for path in (before, after)))
    changes = sorted(abs(y - x) for x, y in values)
    return changes[len(changes) // 2] == pytest.approx(lr, rel=0.01)


# ---------------------------------------------------------------------------------------------------- CUDA, simulated


# fp32: what stands in test_simulator.py, and for 8 bits a little more: where two sums that differ by 1e-7 round to two
# codes, a moment differs by up to 1/64 of itself. Adafactor divides by this step's own gradient first of all: an
# element that differs by as much as it is large moves the other way, by the whole learning rate.
@needs_simulator
@pytest.mark.parametrize("optimizer, tolerance", [("adamw8bit", 1e-4), ("muon", 1e-4), ("adafactor", 1e-3)])
def test_the_simulated_gpu_has_the_losses_of_the_cpu(optimizer, tolerance, data, tmp_path):
    arguments = ["--dtype", "fp32", *flags_of(optimizer), "-x", 8, "-u", 2]
    simulated = losses(run_tiny(SIMULATOR, tmp_path / "sim", data, *arguments))
    train(*TINY, *QUIET, *data.flags, *arguments, "-o", tmp_path / "cpu")
    on_cpu = losses(tmp_path / "cpu")
    assert simulated == pytest.approx(on_cpu, rel=tolerance)
    assert on_cpu[8] < on_cpu[1] - 0.1, "nothing was learnt, so nothing was compared"


# 2^24 is the largest loss scale. Over 32 tokens it makes gradients of logits of 2^19, where fp16 ends at 65504.
@needs_simulator
@pytest.mark.slow
def test_in_fp16_the_update_after_overflows_is_the_first_and_a_resume_keeps_the_count(data, tmp_path):
    flags = ["--dtype", "fp16", "-l", 1e-3, "-k", "constant", "-u", 1, "-b", 1, "-d", 32, "-n", 1, "-nk", 0]
    whole = run_tiny(SIMULATOR, tmp_path / "whole", data, *flags, "-x", 1)
    state = state_of(whole)
    state["control"]["loss_scale"] = 2**24
    write_state(checkpoints(whole)[-1], state)
    run_tiny(SIMULATOR, whole, data, *flags, "-y", "weights", "-x", 9)
    skips = [entry["step"] for entry in events(whole, "step") if "skip" in entry]
    assert skips == list(range(2, 2 + len(skips))) and 2 <= len(skips) <= 5
    assert state_of(whole)["control"]["updates"] == 8 - len(skips)
    # Nothing is saved between the start and the first update.
    assert [path.name[-1] for path in checkpoints(whole)[:2]] == ["1", str(skips[-1] + 1)]
    assert is_first_update(*checkpoints(whole)[:2], 1e-3)
    for kept in (2, 3):
        parts = cut_back(shutil.copytree(whole, tmp_path / f"from {kept}"), kept)
        run_tiny(SIMULATOR, parts, data, *flags, "-y", 1, "-x", 9)
        assert same_state(checkpoints(parts)[-1], checkpoints(whole)[-1]), kept


