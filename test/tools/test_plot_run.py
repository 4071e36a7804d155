"""scripts/plot_run.py: what it reads from a log and that it draws a picture of it."""
import json
import math
import os
import subprocess
import sys

SCRIPTS = os.path.join(os.path.dirname(__file__), "..", "..", "scripts")
sys.path.insert(0, SCRIPTS)
import plot_run  # noqa: E402


def write_log(directory, steps=50, tail=""):
    directory.mkdir()
    lines = [{"event": "run", "time": 1.0, "model": {"L": 2}}]
    for step in range(1, steps + 1):
        loss = None if step == 7 else 5.5 * math.exp(-step / 30)
        lines.append({"event": "step", "step": step, "loss": loss, "norm": 1.0, "lr": 1e-3, "tokens_per_second": 1e4})
    lines.append({"event": "validation", "step": steps, "loss": 1.25})
    (directory / "main.log").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return directory


def plot(*arguments):
    command = [sys.executable, os.path.join(SCRIPTS, "plot_run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_steps_and_validation_points_are_read(tmp_path):
    run = plot_run.Run(str(write_log(tmp_path / "a")))
    assert run.steps == list(range(1, 51))
    assert math.isnan(run.loss[6])
    assert (run.val_steps, run.val_loss) == ([50], [1.25])


def test_an_unfinished_last_line_is_ignored(tmp_path):
    run = plot_run.Run(str(write_log(tmp_path / "a", tail='{"event": "step", "step": 51, "lo')))
    assert run.steps[-1] == 50


def test_smoothing_keeps_a_constant_and_passes_over_nan():
    assert plot_run.smooth([3.0] * 50 + [math.nan] + [3.0] * 449) == [3.0] * 500


def test_two_runs_give_one_png(tmp_path):
    first, second = write_log(tmp_path / "a"), write_log(tmp_path / "b", steps=20)
    result = plot(first, second / "main.log", "-o", tmp_path / "both.png")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert "validation loss 1.2500 -> 1.2500" in result.stdout


def test_the_picture_goes_beside_the_log_by_default(tmp_path):
    assert plot(write_log(tmp_path / "a")).returncode == 0
    assert (tmp_path / "a" / "curve.png").exists()


def test_a_missing_log_and_an_empty_log_get_one_line(tmp_path):
    (tmp_path / "main.log").write_text("")
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path / "main.log", "holds no steps")):
        result = plot(path)
        assert result.returncode == 1
        assert message in result.stderr and result.stderr.count("\n") == 1
