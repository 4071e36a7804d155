"""The program of doc/watching_a_run.md that sends a run to Weights & Biases: with a recording stand-in, and with the real
package in its offline mode where it is installed (WANDB_PYTHON names a Python that has it)."""
import json
import os
import re
import sys

import pytest
from runs import ROOT, call

EVENTS = [
    {"event": "run", "time": 1.0, "options": {"seed": 3}, "model": {"L": 12}, "total_steps": 2},
    {"event": "step", "time": 2.0, "step": 1, "loss": 5.0, "norm": None},
    {"event": "step", "time": 3.0, "step": 2, "loss": 4.0, "norm": 1.0, "skip": "nonfinite"},
    {"event": "validation", "time": 4.0, "step": 2, "loss": 1.5, "ppl": 4.48},
    {"event": "sample", "time": 5.0, "step": 2, "index": 1, "text": "a <b>\nc"},
    {"event": "end", "time": 6.0, "step": 2, "seconds": 2.5},
]
STAND_IN = '''
import json, os
def record(*call):
    print(json.dumps(call))
class Run:
    class config:
        update = staticmethod(lambda values, **options: record("config", values))
    def __enter__(self): return self
    def __exit__(self, *_): record("finish")
    def define_metric(self, name, **options): record("metric", name, options)
    def log(self, row): record("log", row)
def init(**options):
    record("init", options)
    return Run()
Html = str
'''


@pytest.fixture
def send(tmp_path):
    page = (ROOT / "doc" / "watching_a_run.md").read_text()
    program = tmp_path / "send.py"
    program.write_text(re.search(r"```python\n(import json, sys\nimport wandb.*?)```", page, re.S)[1])
    run = tmp_path / "run"
    run.mkdir()
    (run / "main.log").write_text("".join(json.dumps(entry) + "\n" for entry in EVENTS))
    return lambda python, **environment: call(python, program, run, env={**os.environ, **environment}, expect=0).stdout


def test_the_program_of_the_page_sends_options_numbers_and_samples(send, tmp_path):
    (tmp_path / "wandb.py").write_text(STAND_IN)
    calls = [json.loads(line) for line in send(sys.executable).splitlines()]
    assert ["config", {"time": 1.0, "options": {"seed": 3}, "model": {"L": 12}, "total_steps": 2}] in calls
    assert [call[1] for call in calls if call[0] == "log"] == [
        {"step": 1, "step/time": 2.0, "step/loss": 5.0},
        {"step": 2, "step/time": 3.0, "step/loss": 4.0, "step/norm": 1.0},
        {"step": 2, "validation/time": 4.0, "validation/loss": 1.5, "validation/ppl": 4.48},
        {"step": 2, "sample": "<pre>a &lt;b>\nc</pre>"},
        {"step": 2, "end/time": 6.0, "end/seconds": 2.5}]
    assert calls[0][0] == "init" and calls[-1] == ["finish"]


def test_the_real_package_takes_what_it_is_given(send, tmp_path):
    python = os.environ.get("WANDB_PYTHON", sys.executable)
    if call(python, "-c", "import wandb; wandb.init").returncode != 0:
        pytest.skip("wandb is not installed: the real package was NOT tried (pip install wandb, WANDB_PYTHON)")
    send(python, WANDB_MODE="offline", WANDB_SILENT="true")
    sent = next((tmp_path / "run").glob("wandb/offline-run-*/*.wandb")).read_bytes()
    assert all(word in sent for word in (b"options", b"step/loss", b"validation/ppl", b"html-file"))
