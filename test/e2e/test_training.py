"""What a run computes: it learns, and its numbers do not depend on how the work was cut."""
import re
import shutil
import sys

import pytest
from conftest import QUIET, ROOT, TINY, TRAINER, call, events, losses, train, why_no_mpi

FP32 = ["--dtype", "fp32"]


def run(out, data, *arguments):
    train(*TINY, *QUIET, *data.flags, "-o", out, *arguments)
    return out


def test_overfitting_one_batch_brings_the_loss_down(data, tmp_path):
    loss = losses(run(tmp_path / "run", data, "-a", 1, "-x", 60, "-l", 3e-3, "-u", 5))
    assert loss[1] == pytest.approx(5.55, abs=0.2)  # ln 257: a fresh model knows nothing
    assert loss[60] < 2.0


def test_training_brings_the_validation_loss_down(data, tmp_path):
    out = run(tmp_path / "run", data, "-x", 100, "-l", 3e-3, "-u", 5, "-v", 100)
    points = events(out, "validation")
    assert [p["step"] for p in points] == [0, 100]
    assert points[-1]["loss"] < points[0]["loss"] - 1.5


def test_a_total_batch_cut_into_uneven_micro_batches_gives_the_same_losses(data, tmp_path):
    # 6 sequences a step as 6, 3+3, 4+2 and 6x1. fp32 sums in another order: 1e-7 a step, growing with the steps.
    expected = losses(run(tmp_path / "6", data, *FP32, "-x", 8, "-d", 192, "-b", 6))
    for B in (1, 3, 4):
        got = losses(run(tmp_path / str(B), data, *FP32, "-x", 8, "-d", 192, "-b", B))
        assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.sanitize
def test_x_0_evaluates_and_samples_and_changes_nothing(data, tmp_path):
    result = train(*TINY, *data.flags, "-o", tmp_path / "run", "-x", 0, "-v", 1, "-s", 1, "-g", 40)
    assert len(events(tmp_path / "run", "validation")) == 1
    assert "nan" not in result.stdout and "inf" not in result.stdout.replace("information", "")
    assert not list(tmp_path.glob("run/step_*"))


def test_v_0_and_s_0_never_validate_and_never_sample(data, tmp_path):
    run(tmp_path / "run", data, "-x", 3)
    assert events(tmp_path / "run", "validation") == [] and events(tmp_path / "run", "sample") == []
    assert len(losses(tmp_path / "run")) == 3


def test_the_log_of_a_run_can_be_plotted(data, tmp_path):
    out = run(tmp_path / "run", data, "-x", 5, "-v", 2)
    result = call(sys.executable, ROOT / "scripts" / "plot_run.py", out, expect=0)
    assert "steps 1..5" in result.stdout and (out / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_max_minutes_ends_the_run(data, tmp_path):
    run(tmp_path / "run", data, "-x", 1000000, "--max-minutes", 0.05)
    assert 1 <= len(losses(tmp_path / "run")) < 1000000


# ----------------------------------------------------------------------------- validation data, and options without effect


def header(*arguments):
    return train(*TINY, "-s", 0, "-x", 1, "-m", 4, *arguments).stdout


@pytest.mark.parametrize("train_name, val_name, given", [
    ("train_000000.bin", "val_000000.bin", "train_*.bin"),
    ("fineweb_train_000001.bin", "fineweb_val_000000.bin", "fineweb_train_*.bin"),
    ("tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin", "tiny_shakespeare_train.bin"),
    ("train_000000.bin", "val_000000.bin", "t*.bin"),
])
def test_validation_data_are_those_beside_the_training_data(train_name, val_name, given, data, tmp_path):
    shutil.copy(data.directory / "train_000000.bin", tmp_path / train_name)
    said = header("-i", tmp_path / given)
    name = re.sub("0+", "*", val_name)
    assert "validation  off: no " in said and f"/{name}" in said and "-j GLOB names validation data" in said
    shutil.copy(data.directory / "val_000000.bin", tmp_path / val_name)
    said = header("-i", tmp_path / given)
    assert re.search(rf"^validation .* in 1 shard: \S*/{re.escape(name)}'?$", said, re.M) and "validation at step 1" in said


def test_why_there_is_no_validation_is_said(data, tmp_path):
    shutil.copy(data.directory / "train_000000.bin", tmp_path / "text.bin")
    assert "validation  off: no train in the name" in header("-i", tmp_path / "text.bin")
    assert "validation  off: -v 0" in header("-i", data.train, "-v", 0)
    (tmp_path / "train.bin").write_bytes((tmp_path / "text.bin").read_bytes())
    (tmp_path / "val.bin").write_bytes(b"no shard")
    assert "validation  off: " + str(tmp_path / "val.bin") in header("-i", tmp_path / "train.bin")


def test_an_error_that_was_forgiven_is_forgotten(data, tmp_path):
    """Neither validation shards nor, where nothing is trained, training shards have to be there."""
    shutil.copy(data.directory / "train_000000.bin", tmp_path / "train.bin")
    trains = [*TINY, "-s", 0, "-x", 1, "-i", tmp_path / "train.bin"]
    only_looks = ["-e", "L=1,C=64,NH=2,T=32", "-x", 0, "-v", 0]
    two = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2] if not why_no_mpi() else []
    for command in ([TRAINER, *trains], [TRAINER, *only_looks], [*two, TRAINER, *only_looks]):
        assert call(*command, expect=0, cwd=tmp_path).stderr == ""


def test_validation_that_a_run_had_does_not_end_in_silence(data, tmp_path):
    for name in ("train", "val"):
        shutil.copy(data.directory / f"{name}_000000.bin", tmp_path / f"{name}.bin")
    train(*TINY, "-s", 0, "-x", 1, "-m", 4, "-i", tmp_path / "train.bin", "-o", tmp_path / "run")
    (tmp_path / "val.bin").unlink()
    validated = len(events(tmp_path / "run", "validation"))
    resume = ["-o", tmp_path / "run", "-y", "-x", 2]
    assert "validation  off: -v 0" in train(*resume, "-v", 0).stdout
    assert len(events(tmp_path / "run", "validation")) == validated


def test_training_on_validation_data_without_validation_is_said(data):
    both = data.directory / "*.bin"
    said = train(*TINY, "-s", 0, "-x", 1, "-i", both, "-v", 0).stderr
    assert "-i: also matches validation data, which is trained on: 1 file, such as" in said
    assert "'%s', the text that is trained on" % data.train in header("-i", data.train, "-j", data.train)


def test_options_without_effect_are_named_in_the_header(data):
    said = train(*TINY, *data.flags, "-x", 1, "-v", 0, "-m", 5, "-s", 0, "--samples", 3, "-b", 2).stdout
    assert "options     without effect in this run: -j (-v 0), -m (-v 0), --samples (-s 0)\n" in said
    assert "options     given twice, the last counts: --batch-size 4, then 2\n" in said
    assert "without effect" not in train(*TINY, "-i", data.train, "-x", 1).stdout
