"""scripts/wandb_upload.py. With the real package wandb in its offline mode, of which only is seen that it takes what it is
given (WANDB_PYTHON names a Python that has it; skipped where there is none); and with a recording stand-in, which shows
what the script passes and what it does without a network."""
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from runs import ROOT, call, wait_for

SCRIPT = ROOT / "scripts" / "wandb_upload.py"

RUN_EVENT = {"event": "run", "time": 1.0, "options": {"lr": 6e-4}, "model": {"L": 12}, "train": {"tokens": 9},
             "start_step": 0, "total_steps": 3}
STEPS = [{"event": "step", "time": 1.0 + i, "step": i, "loss": 5.0 / i, "norm": None if i == 2 else 1.0, "lr": 1e-3,
          **({"skip": "nonfinite"} if i == 2 else {})} for i in (1, 2, 3)]
OTHERS = [{"event": "validation", "time": 5.0, "step": 3, "loss": 1.5, "ppl": 4.48, "bits_per_byte": 0.9},
          {"event": "choices", "time": 6.0, "step": 3, "name": "hellaswag_val", "accuracy_normalised": 0.2955},
          {"event": "sample", "time": 7.0, "step": 3, "index": 1, "text": "a <b>\nc"},
          {"event": "gpu", "time": 8.0, "step": 3, "power_watts": 650.0, "temperature_c": None, "throttle": ""}]
END = {"event": "end", "time": 9.0, "step": 3, "seconds": 2.5, "best_val_loss": 1.5}


def write(run, *entries, mode="a"):
    run.mkdir(exist_ok=True)
    with open(run / "main.log", mode) as log:
        log.writelines(json.dumps(entry) + "\n" for entry in entries)


def upload(run, *arguments, python=sys.executable, expect=0, **environment):
    """An error is one line."""
    result = call(python, SCRIPT, run, *arguments, env={**os.environ, "WANDB_SILENT": "true", **environment}, expect=expect)
    assert expect == 0 or result.stderr.count("\n") == 1, result.stderr
    return result


# ----------------------------------------------------------------------------------------------------- the real package

@pytest.fixture(scope="module")
def real_wandb():
    """A Python that has wandb."""
    for python in (os.environ.get("WANDB_PYTHON"), sys.executable, "/usr/bin/python3"):
        if python and call(python, "-c", "import wandb; wandb.init").returncode == 0:
            return python
    pytest.skip("wandb is not installed: the real package was NOT tried (pip install wandb, WANDB_PYTHON)")


def test_the_real_wandb_takes_everything_and_goes_on_with_the_same_run(real_wandb, tmp_path):
    run = tmp_path / "run"
    write(run, RUN_EVENT, *STEPS[:2])
    upload(run, "--offline", "--project", "tests", python=real_wandb)
    time.sleep(1.1)  # wandb names its directories by the second
    write(run, STEPS[2], *OTHERS, END)
    upload(run, "--offline", "--project", "tests", python=real_wandb)
    first, second = (path.read_bytes() for path in sorted(run.glob("wandb/offline-run-*/*.wandb")))
    name = (run / "wandb_id").read_text().split("\n")[0].encode()
    assert all(text in first for text in (name, b"tests", b"options", b"train/loss", b"train/was_skipped"))
    assert all(text in second for text in (name, b"tests", b"train/loss", b"val/perplexity", b"gpu/power_watts", b"html-file",
                                           b"choices/hellaswag_val/accuracy_normalised", b"whole_run/best_val_loss"))


# --------------------------------------------------------------------------------------------- the recording stand-in

STAND_IN = textwrap.dedent('''
    """A recording stand-in for wandb: writes the calls it gets to $CALLS, one JSON list a line."""
    import json, os

    def record(*call):
        with open(os.environ["CALLS"], "a") as file:
            file.write(json.dumps(call) + "\\n")

    class Recorder:
        def __init__(self, name): self.name = name
        def update(self, values, **options): record(self.name, values, options)

    class Run:
        config, summary = Recorder("config"), Recorder("summary")
        def log(self, row, step): record("log", row, step)
        def define_metric(self, name, **options): record("define_metric", name, options)
        def finish(self): record("finish")

    def Html(text, inject): return "html: " + text
    def Settings(**settings): return settings

    def init(**options):
        if os.environ.get("REFUSE"): raise RuntimeError("api_key not configured")
        record("init", options)
        return Run()
''')


@pytest.fixture
def stand_in(tmp_path):
    """Environment in which `import wandb` gives the stand-in."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "wandb.py").write_text(STAND_IN)
    return {"PYTHONPATH": str(tmp_path / "modules"), "CALLS": str(tmp_path / "calls")}


def calls(environment, kind):
    with open(environment["CALLS"]) as file:
        return [call[1:] for call in map(json.loads, file) if call[0] == kind]


def test_the_run_is_named_and_resumed_by_its_id(stand_in, tmp_path):
    run = tmp_path / "my run"
    write(run, RUN_EVENT, *STEPS)
    (run / "wandb_id").write_text("abc123\n")
    upload(run / "main.log", "--entity", "team", **stand_in)
    ((options,),) = calls(stand_in, "init")
    assert {key: options[key] for key in ("project", "entity", "name", "id", "resume", "dir", "mode")} == {
        "project": "pretrain.cu", "entity": "team", "name": "my run", "id": "abc123", "resume": "allow",
        "dir": str(run), "mode": "online"}
    assert calls(stand_in, "define_metric") == [["step", {}], ["*", {"step_metric": "step"}]]
    assert (run / "wandb_id").read_text() == "abc123\nrows 3\nstep 3\n"


def test_what_was_sent_is_not_sent_again_though_the_log_was_cut(stand_in, tmp_path):
    run = tmp_path / "run"
    write(run, RUN_EVENT, *STEPS, *OTHERS)
    assert "7 events sent" in upload(run, **stand_in).stdout
    *rows, sample, gpu = [row for row, number in calls(stand_in, "log")]
    assert [*rows, gpu] == [{"step": 1, "train/loss": 5.0, "train/norm": 1.0, "train/lr": 1e-3},
                            {"step": 2, "train/loss": 2.5, "train/lr": 1e-3, "train/was_skipped": 1},
                            {"step": 3, "train/loss": 5.0 / 3, "train/norm": 1.0, "train/lr": 1e-3},
                            {"step": 3, "val/loss": 1.5, "val/perplexity": 4.48, "val/bits_per_byte": 0.9},
                            {"step": 3, "choices/hellaswag_val/accuracy_normalised": 0.2955},
                            {"step": 3, "gpu/power_watts": 650.0}]
    assert sample["step"] == 3 and "a &lt;b&gt;\nc" in sample["sample/1"]  # escaped
    config = calls(stand_in, "config")[0][0]
    assert (config["options"], config["model"]) == ({"lr": 6e-4}, {"L": 12})
    write(run, RUN_EVENT, *STEPS[:1], RUN_EVENT, *STEPS[1:], {**STEPS[2], "step": 4}, mode="w")  # resumed at step 1
    assert "1 events sent" in upload(run, **stand_in).stdout
    steps = [row["step"] for row, number in calls(stand_in, "log") if "train/loss" in row]
    assert steps == [1, 2, 3, 4]
    assert [number for row, number in calls(stand_in, "log")] == list(range(8))


def test_follow_sends_what_is_added_and_ends_with_the_run(stand_in, tmp_path):
    run = tmp_path / "run"
    write(run, RUN_EVENT, STEPS[0])
    script = f"import sys; sys.argv[0] = {str(SCRIPT)!r}; sys.path.insert(0, {str(SCRIPT.parent)!r}); " \
             "import wandb_upload; wandb_upload.POLL_SECONDS = 0.05; wandb_upload.main()"
    process = subprocess.Popen([sys.executable, "-c", script, run, "--follow"], env={**os.environ, **stand_in},
                               stdout=subprocess.PIPE, text=True)
    wait_for(lambda: os.path.exists(stand_in["CALLS"]) and len(calls(stand_in, "log")) == 1)
    with open(run / "main.log", "a") as log:  # a line comes in two pieces
        log.write('{"event": "step", "step": 2, ')
        log.flush()
        time.sleep(0.3)
        log.write('"loss": 2.5}\n')
    wait_for(lambda: len(calls(stand_in, "log")) == 2)
    write(run, RUN_EVENT, STEPS[0], {**STEPS[1], "loss": 9.0}, STEPS[2], mode="w")  # resumed: cut, and longer again
    write(run, END)
    assert process.wait(300) == 0
    assert [row["train/loss"] for row, number in calls(stand_in, "log")] == [5.0, 2.5, 5.0 / 3]
    assert calls(stand_in, "summary") == [[{"whole_run/seconds": 2.5, "whole_run/best_val_loss": 1.5}, {}]]
    assert calls(stand_in, "finish") == [[]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_upload(stand_in, tmp_path, number):
    write(tmp_path / "run", RUN_EVENT, STEPS[0])
    process = subprocess.Popen([sys.executable, SCRIPT, tmp_path / "run", "--follow"], env={**os.environ, **stand_in},
                               stdout=subprocess.PIPE, text=True)
    wait_for(lambda: os.path.exists(stand_in["CALLS"]) and len(calls(stand_in, "log")) == 1)
    process.send_signal(number)
    assert process.wait(300) == 0
    assert calls(stand_in, "finish") == [[]] and "stopped" in process.stdout.read()
    assert "step 1" in (tmp_path / "run" / "wandb_id").read_text()


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_refusal_of_wandb_is_one_line(stand_in, tmp_path):
    write(tmp_path / "run", RUN_EVENT)
    assert upload(tmp_path / "run", **stand_in, REFUSE="1", expect=1).stderr == (
        "wandb_upload: W&B does not accept the run: api_key not configured\n")


def test_without_wandb_the_message_says_how_to_get_it(tmp_path):
    (tmp_path / "wandb.py").write_text("raise ImportError('none here')\n")
    write(tmp_path / "run", RUN_EVENT)
    assert "pip install wandb" in upload(tmp_path / "run", PYTHONPATH=str(tmp_path), expect=2).stderr
    assert not (tmp_path / "run" / "wandb_id").exists()


def test_a_run_that_is_not_there_and_a_damaged_id_file_get_one_line(tmp_path):
    assert "no such file" in upload(tmp_path / "none", expect=2).stderr
    run = tmp_path / "run"
    write(run, RUN_EVENT)
    for content, message in (("../../x\n", "not an id of a W&B run"), ("abc\nstep x\n", "line 2 is not 'KIND STEP'")):
        (run / "wandb_id").write_text(content)
        assert message in upload(run, expect=2).stderr
