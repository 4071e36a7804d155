"""The comparison of dev/bench/bench_cpu.py: PyTorch starts where we start and has our losses, and a
peer that starts or trains differently gets no ratio."""

import json
import math
import os
import sys

import pytest
from runs import ROOT, TRAINER, call
from tiny_run import bench_program

BENCH = ROOT / "dev" / "bench"
sys.path.insert(0, str(BENCH))
import bench_cpu  # noqa: E402
import peer  # noqa: E402

PYTHON = os.environ.get("PEER_PYTHON", "/usr/bin/python3")
B, T, V = 4, 64, 509
SHAPE = f"L=2,C=64,NH=2,T={T},V={V}"
STEPS = "\n" * peer.LOSSES


def features_of_torch():
    """What the PyTorch of PYTHON has; None: there is no PyTorch."""
    code = "import torch; print(torch.__version__, hasattr(torch.nn, 'RMSNorm'))"
    found = call(PYTHON, "-c", code)
    return found.stdout.split() if found.returncode == 0 else None


def start(tmp_path, model, *more):
    """Weights that the trainer begins with, and a shard."""
    weights = tmp_path / "weights"
    call(TRAINER, "-e", model, "-x", 0, "-v", 0, "-s", 0, *more, "--export", weights, expect=0)
    return weights, peer.write_shard(tmp_path / "shard_000.bin", 4 * B * T, V)


def losses_of(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line)["loss"] for line in result.stdout.splitlines()[: peer.LOSSES]]


def ours(model, weights, shard, dtype):
    program = bench_program("bench_step")
    if not program:
        pytest.skip("bench_step is not built: make test-programs")
    return losses_of(call(program, model, B, T, dtype, 0, weights, shard, input=STEPS))


def theirs(weights, shard, dtype):
    return losses_of(
        call(PYTHON, BENCH / "torch_step.py", weights, shard, B, T, dtype, input=STEPS)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["gpt2", "starcoder2", "llama", "qwen3", "arcee"])
def test_the_peers_first_loss_is_ln_v_and_all_losses_are_ours(family, dtype, tmp_path):
    torch = features_of_torch()
    if not torch:
        pytest.skip(f"{PYTHON} has no PyTorch: scripts/install_deps.sh test-all, or PEER_PYTHON")
    if family not in ("gpt2", "starcoder2") and torch[1] == "False":
        pytest.skip(f"PyTorch {torch[0]} has no RMSNorm; PEER_PYTHON names another")
    model = SHAPE if family == "gpt2" else f"{family}:{SHAPE}"
    weights, shard = start(tmp_path, model)
    peers, allowed = theirs(weights, shard, dtype), peer.tolerances(weights, B, T, dtype)
    assert peers[0] == pytest.approx(math.log(V), rel=0.02)
    assert peer.difference(ours(model, weights, shard, dtype), peers, allowed) is None


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_peer_that_starts_elsewhere_is_refused(dtype, tmp_path):
    """Another seed: a start as good as ours, so that only the comparison sees it."""
    weights, shard = start(tmp_path, SHAPE)
    elsewhere, _ = start(tmp_path / "elsewhere", SHAPE, "--seed", 2)
    known, others = (ours(SHAPE, path, shard, dtype) for path in (weights, elsewhere))
    said = peer.difference(known, others, peer.tolerances(weights, B, T, dtype))
    assert said.startswith(f"losses differ: {known[0]:.6f} vs {others[0]:.6f} at step 1")


def test_a_peer_with_another_update_is_refused_at_the_second_step(tmp_path):
    weights, shard = start(tmp_path, SHAPE)
    known = ours(SHAPE, weights, shard, "fp32")
    said = peer.difference(
        known, [known[0], known[0], known[0]], peer.tolerances(weights, B, T, "fp32")
    )
    assert said.startswith("losses differ: ") and "at step 2" in said


def test_a_peer_whose_loss_is_not_finite_is_refused(tmp_path):
    weights, _ = start(tmp_path, SHAPE)
    said = peer.difference(
        [6.0] * 3, [6.0, math.nan, math.nan], peer.tolerances(weights, B, T, "bf16")
    )
    assert "6.000000 vs nan at step 2" in said


def test_a_padded_vocabulary_in_the_softmax_is_refused_in_fp32(tmp_path):
    """GPT-2's 47 rows of padding beside 50,257 tokens, as PyTorch programs often have them."""
    config = {"n_layer": 12, "n_embd": 768, "vocab_size": 50257}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loss, padded = math.log(50257), math.log(50304)
    allowed = peer.tolerances(tmp_path, 4, 256, "fp32")
    assert "losses differ" in peer.difference([loss] * 3, [padded] * 3, allowed)


def test_the_table_has_words_in_place_of_a_refused_ratio():
    steps = {
        "ours": [{"loss": 6.0, "step_seconds": 1.0}] * 5,
        "eager": [{"loss": 6.5, "step_seconds": 2.0}] * 5,
    }
    one = bench_cpu.of_peer("eager", steps, {"eager": {}}, [1e-3] * peer.LOSSES, 256)
    row = {"torch": {"eager": one, "compiled": {"ended": "no compiler"}}}
    assert "ratio" not in one and bench_cpu.best_peer(row) is None
    assert bench_cpu.times_torch(row).startswith("losses differ: 6.000000 vs 6.500000 at step 1")


def test_the_ratio_is_to_the_faster_form_turn_by_turn():
    steps = {
        name: [{"loss": 6.0, "step_seconds": seconds}] * 5
        for name, seconds in (("ours", 1.0), ("eager", 3.0), ("compiled", 2.0))
    }
    forms = {
        name: bench_cpu.of_peer(name, steps, {name: {}}, [1e-3] * peer.LOSSES, 256)
        for name in ("eager", "compiled")
    }
    assert bench_cpu.times_torch({"torch": forms}) == "2.00x (2.00-2.00)"


def test_a_contender_that_breaks_says_why(tmp_path):
    contender = peer.Contender([sys.executable, "-c", "raise SystemExit('no room')"])
    with pytest.raises(peer.Ended, match="no room .exit code 1."):
        contender.step()


def test_update_begins_a_result_and_replaces_its_rows(tmp_path):
    key = dict(zip(("name", "B", "T", "dtype", "code"), ("124M", 4, 256, "bf16", "")))
    path = tmp_path / "result.json"
    first = bench_cpu.updated(path, [{**key, "ratio": 0.1}])
    path.write_text(json.dumps(first))
    second = bench_cpu.updated(path, [{**key, "ratio": 0.9}, {**key, "dtype": "fp32", "ratio": 0.8}])
    assert [row["ratio"] for row in second["steps"]] == [0.9, 0.8]
