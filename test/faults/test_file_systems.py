"""File systems that cannot do everything: without an exchange of two names (NFS, FUSE), and an overlay that cannot rename the
directories of its lower layer (Docker's default). Runs and exports end as elsewhere, and kills between calls lose nothing.
"""
import shutil
import signal

import pytest
from e2e.conftest import call
from faults.shim import (SMALL, TRAINER, checkpoints, copy, data, files_of, losses, shim, state_of)  # noqa: F401

TRAIN = [*SMALL, "-v", "0", "-s", "0", "-n", "1"]


def export(model, place):
    return [TRAINER, "-e", model, "-x", "0", "-v", "0", "-s", "0", "--export", place]


class Disturbed:
    """A run with the checkpoints of steps 1 to 3, the last with a flipped bit, which its resume writes anew; and exports."""

    def __init__(self, shim, place, flags):
        self.flags = [*TRAIN, *flags]
        self.run, self.whole, self.model = place / "run", place / "whole", place / "model"
        assert shim.run([TRAINER, *self.flags, "-o", self.whole, "-x", "4", "-nk", "0"]).returncode == 0
        shutil.copytree(self.whole, self.run)
        shutil.rmtree(self.run / "step_00000004")
        file = self.run / "step_00000003" / "optimizer.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        first, second = checkpoints(self.whole)[:2]
        for place, model in ((self.model, first), (place / "wanted", second)):
            assert shim.run(export(model, place)).returncode == 0
        self.export = export(second, self.model)
        self.old, self.new = files_of(self.model), files_of(place)

    def resume(self, run):
        return [TRAINER, "-o", run, "-x", "4", "-nk", "2", "-y", "1"]

    def check(self, run, told=""):
        """It has the last two checkpoints, those of the undisturbed run, and nothing is left over."""
        assert [path.name for path in checkpoints(run)] == ["step_00000003", "step_00000004"], told
        for checkpoint in checkpoints(run):
            assert state_of(checkpoint) == state_of(self.whole / checkpoint.name), told
        assert losses(run) == losses(self.whole), told
        assert not list(run.glob(".tmp-*")) and not list(run.glob("*/*.tmp-*")), told


@pytest.fixture
def disturbed(shim, data, tmp_path):
    return Disturbed(shim, tmp_path, data.flags)


def renames(shim, command, under, counts):
    result = shim.run(command, FAULT_NO_EXCHANGE=1, FAULT_UNDER=under, FAULT_COUNTS=counts)
    assert result.returncode == 0, result.stderr
    return shim.counts(counts)[0]["rename"]


def test_without_an_exchange_of_names_a_run_and_an_export_end_as_elsewhere(disturbed, shim, tmp_path):
    assert renames(shim, disturbed.resume(disturbed.run), disturbed.run, tmp_path / "counts") > 10
    disturbed.check(disturbed.run)
    assert renames(shim, disturbed.export, tmp_path, tmp_path / "counts") > 2
    assert files_of(disturbed.model) == disturbed.new
    assert not list(tmp_path.glob(".tmp-*"))


def test_without_an_exchange_a_kill_at_any_rename_of_a_run_loses_nothing(disturbed, shim, tmp_path):
    count = renames(shim, disturbed.resume(copy(disturbed.run, tmp_path / "counted")), tmp_path / "counted", tmp_path / "counts")
    for at in range(1, count + 1):
        run = copy(disturbed.run, tmp_path / f"killed{at}")
        killed = shim.run(disturbed.resume(run), FAULT_NO_EXCHANGE=1, FAULT_UNDER=run, FAULT_CLASS="rename", FAULT_AT=at,
                          FAULT_SIGNAL=int(signal.SIGKILL))
        assert killed.returncode == -signal.SIGKILL
        again = shim.run(disturbed.resume(run), FAULT_NO_EXCHANGE=1)
        assert again.returncode == 0, f"rename {at}: {again.stderr}"
        disturbed.check(run, f"killed at rename {at} of {count}")


def test_without_an_exchange_a_kill_at_any_rename_of_an_export_leaves_the_old_or_the_new_model(disturbed, shim, tmp_path):
    before = copy(disturbed.model, tmp_path / "before")
    count = renames(shim, disturbed.export, tmp_path, tmp_path / "counts")
    for at in range(1, count + 1):
        shutil.rmtree(disturbed.model)
        copy(before, disturbed.model)
        killed = shim.run(disturbed.export, FAULT_NO_EXCHANGE=1, FAULT_UNDER=tmp_path, FAULT_CLASS="rename", FAULT_AT=at,
                          FAULT_SIGNAL=int(signal.SIGKILL))
        assert killed.returncode == -signal.SIGKILL
        found = files_of(disturbed.model)
        assert found in (disturbed.old, disturbed.new), f"killed at rename {at} of {count}: {sorted(found)}"
        assert shim.run(disturbed.export, FAULT_NO_EXCHANGE=1).returncode == 0
        assert files_of(disturbed.model) == disturbed.new and not list(tmp_path.glob(".tmp-*"))
    assert count > 6


@pytest.fixture
def overlay(tmp_path):
    """Lays an overlay over a directory, without redirect_dir."""
    mounted = []

    def lay(lower):
        place, upper, work = (tmp_path / f"{name}_{lower.name}" for name in ("overlay", "upper", "work"))
        for directory in (place, upper, work):
            directory.mkdir()
        made = call("mount", "-t", "overlay", "overlay", "-o",
                    f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off", place)
        if made.returncode != 0:
            pytest.skip(f"this needs the right to mount an overlay: {made.stderr.strip()}")
        mounted.append(place)
        return place

    yield lay
    for place in mounted:
        call("umount", place, expect=0)


def test_a_run_and_a_model_in_the_lower_layer_of_an_overlay_are_continued_and_replaced(disturbed, shim, overlay, tmp_path):
    lower = tmp_path / "image"
    lower.mkdir()
    for directory in (disturbed.run, disturbed.model):
        shutil.copytree(directory, lower / directory.name)
    shutil.copytree(checkpoints(disturbed.whole)[0], lower / "foreign", ignore=shutil.ignore_patterns("[ot]*"))
    weights = lower / "foreign" / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"pretrain.cu", b"another one"))
    place = overlay(lower)
    result = shim.run(disturbed.resume(place / "run"))
    assert result.returncode == 0, result.stderr
    disturbed.check(place / "run")
    model = checkpoints(disturbed.whole)[1]
    for name in ("model", "foreign"):
        result = shim.run(export(model, place / name))
        assert result.returncode == 0, result.stderr
        assert files_of(place / name) == disturbed.new
    assert files_of(place / "foreign.1") == files_of(lower / "foreign")
    assert sorted(path.name for path in place.iterdir()) == ["foreign", "foreign.1", "model", "run"]


def test_on_an_overlay_a_kill_at_any_rename_of_a_run_loses_nothing(disturbed, shim, overlay, tmp_path):
    at = 0
    while True:
        at += 1
        lower = tmp_path / f"image{at}"
        lower.mkdir()
        shutil.copytree(disturbed.run, lower / "run")
        run = overlay(lower) / "run"
        killed = shim.run(disturbed.resume(run), FAULT_UNDER=run, FAULT_CLASS="rename", FAULT_AT=at,
                          FAULT_SIGNAL=int(signal.SIGKILL))
        if killed.returncode == 0:
            break
        again = shim.run(disturbed.resume(run))
        assert again.returncode == 0, f"rename {at}: {again.stderr}"
        disturbed.check(run, f"killed at rename {at}")
    assert at > 20
