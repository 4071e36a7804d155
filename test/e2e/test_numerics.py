"""--numerics-every: what is counted goes to main.log (TensorBoard, terminal: test_watching.py), whatever the device. That
training keeps its bits: test/invariants."""
import pytest
from conftest import SIMULATOR, TRAINER, events, needs_simulator, run_tiny

KINDS = ("wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb").split()
LAYERS = ("qkv", "attproj", "fc", "fcproj")
ROLES = ("in", "out", "gradient")
PARTS = ("weight", "gradient", "update")
FIELDS = ("amax", "rms", "zero", "underflow", "overflow")
CLASSES = [f"{layer}.{role}" for layer in LAYERS for role in ROLES] + [f"{k}.{p}" for k in KINDS for p in PARTS]


def run(trainer, out, data, *arguments):
    return run_tiny(trainer, out, data, "-d", 256, *arguments)  # two micro-steps


@needs_simulator
def test_both_backends_count_the_same(data, tmp_path):
    cpu = run(TRAINER, tmp_path / "cpu", data, "-x", 1, "--dtype", "fp32", "--numerics-every", 1)
    sim = run(SIMULATOR, tmp_path / "sim", data, "-x", 1, "--dtype", "fp32", "--numerics-every", 1)
    (on_cpu,), (simulated,) = events(cpu, "numerics"), events(sim, "numerics")
    assert on_cpu.keys() == simulated.keys()
    for key in set(on_cpu) - {"event", "time", "step"}:
        # fp32 on both sides: sums in another order, 1e-5 (DESIGN.md, section 9), a few of them one after the other.
        # Where the exact gradient is 0 (of q and k at the first position, of the biases of keys) what is left is
        # rounding, on one side 0 and on the other not: 1 position in 32, two thirds of its columns; and AdamW makes its
        # first update, which is as large as the rate whatever the gradient is, of chance.
        if key.startswith(("qkvb.gradient", "qkvb.update", "update_ratio/qkvb")):
            continue
        tolerance = {"abs": 0.02} if key.endswith(("zero", "underflow")) else {"rel": 1e-3}
        assert simulated[key] == pytest.approx(on_cpu[key], **tolerance), key


def test_every_class_is_there_with_numbers_that_fit_together(data, tmp_path):
    out = run(TRAINER, tmp_path / "run", data, "-x", 20, "--dtype", "fp32", "--numerics-every", 10, "-u", 2, "-l", 1e-3)
    first, last = events(out, "numerics")
    ratios = {f"update_ratio/{kind}" for kind in KINDS}
    for entry in (first, last):
        fields = {f"{name}/{field}" for name in CLASSES for field in FIELDS}
        assert set(entry) == {"event", "time", "step"} | fields | ratios
        for name in CLASSES:
            amax, rms, *shares = (entry[f"{name}/{field}"] for field in FIELDS)
            assert 0 < rms <= amax < 1e3, name
            assert all(0 <= share < 1 for share in shares), name
        for kind in KINDS:
            exact = entry[f"{kind}.update/rms"] / entry[f"{kind}.weight/rms"]
            assert entry[f"update_ratio/{kind}"] == pytest.approx(exact, rel=1e-6), kind
    # Layernorm leaves rows of mean square 1, times weights that are still close to 1.
    assert first["qkv.in/rms"] == pytest.approx(1, rel=0.05)
    # Three tokens in four of this corpus's vocabulary never appear: their gradient is that of the softmax alone, not 0.
    # The rows beyond V, 127 of 384, have none, and do not count.
    assert first["wte.gradient/zero"] == first["wte.update/zero"] == pytest.approx(0, abs=0.001)
    # AdamW moves a weight by at most about the learning rate a step: of the schedule's largest here.
    assert all(last[f"{kind}.update/amax"] < 4e-3 for kind in KINDS)


@needs_simulator
def test_fp16_loses_what_the_counts_say_it_loses(data, tmp_path):
    out = run(SIMULATOR, tmp_path / "run", data, "-x", 1, "--dtype", "fp16", "--numerics-every", 1)
    (entry,) = events(out, "numerics")
    assert entry["wte.weight/underflow"] > 0  # N(0, 0.02): P(|x| < 2^-14) = 0.24%
    assert entry["qkvw.weight/underflow"] == pytest.approx(0.0024, rel=0.2)  # 24576 of them: 59 +- 8
    assert entry["qkv.in/underflow"] < 1e-3
