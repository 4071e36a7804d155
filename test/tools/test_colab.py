"""scripts/colab.ipynb: executed by nbconvert in a copy of the tree, on the CPU trainer and without a network."""
import json
import os
import shutil
import signal
import subprocess

import pytest
from runs import ROOT, call, checkpoints, events, script
from tiny_run import clean_environment, last_step, wait_until

NOTEBOOK = ROOT / "scripts" / "colab.ipynb"
JUPYTER = ROOT / ".venv" / "bin" / "jupyter"
PYTHON = ROOT / ".venv" / "bin" / "python"
needs_jupyter = pytest.mark.skipif(not JUPYTER.exists(), reason=".venv has no jupyter: scripts/install_deps.sh test-all")

# What a session's machine has and loses with it: sources, and what was built of them, so that make finds it done.
TREE = ["Makefile", "README.md", "train_gpt2.cu", "doc", "llmc", "scripts", "dev/sim", "build"]
NOT_THESE = shutil.ignore_patterns("test", "sanitize-*", "*-cuda-*", "nvcc-*", "*-sim", "tsan-*", "msan-*", "*-none", "kernels", "__pycache__")


def make_machine(directory):
    for name in TREE:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=NOT_THESE)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, target)
    (directory / "data").mkdir()
    for path in (ROOT / "data").iterdir():  # the tools, not the corpora
        if path.is_file():
            shutil.copy2(path, directory / "data")
    shutil.copy2(ROOT / "train_gpt2", directory)
    return directory


def environment(machine, kept, **settings):
    """What is set in the form; hosts that refuse at once; no GPU, wherever the test runs."""
    nowhere = "http://127.0.0.1:9"
    tools = script(machine / "no_gpu" / "nvidia-smi", "exit 9").parent
    return clean_environment(REPO=machine, KEPT=kept, GITHUB_RAW=nowhere, HF_ENDPOINT=nowhere, CUDA_VISIBLE_DEVICES="",
                             PATH=f"{tools}:{os.environ['PATH']}", PYTHONDONTWRITEBYTECODE=1, **settings)


def execute(machine, kept, **settings):
    """The outputs, a list for each cell: text, or the type of a picture."""
    call(JUPYTER, "nbconvert", "--to", "notebook", "--execute", "--output", machine / "done.ipynb", NOTEBOOK, cwd=machine,
         env=environment(machine, kept, **settings), expect=0)
    cells = json.loads((machine / "done.ipynb").read_text())["cells"]
    return {"".join(cell["source"]).split("\n")[0].removeprefix("#@title "):
            "".join("".join(o.get("text", list(o.get("data", {})))) for o in cell["outputs"])
            for cell in cells if cell["cell_type"] == "code"}


@pytest.mark.slow
@needs_jupyter
def test_the_notebook_trains_and_a_new_machine_goes_on(tmp_path):
    kept = tmp_path / "drive"
    first = make_machine(tmp_path / "first")
    said = execute(first, kept, STEPS=40, PROMPT="The model ")
    assert "No GPU here" in said["The GPU"] and "the CPU trainer" in said["The GPU"]
    assert "No text could be fetched" in said["The text, as tokens"]
    run = first / "runs" / "colab"
    validation = [entry["loss"] for entry in events(run, "validation")]
    assert validation[0] > 5 and validation[-1] < validation[0] - 1, "the loss fell"
    assert "image/png" in said["The curve"] and (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "The model " in said["A sample"] and "generated   200 tokens" in said["A sample"]
    assert [path.name for path in checkpoints(kept)] == ["step_00000040"]
    assert not list(kept.glob(".partial"))

    shutil.rmtree(first)  # the session is gone
    second = make_machine(tmp_path / "second")
    said = execute(second, kept, STEPS=60)
    run = second / "runs" / "colab"
    assert "resuming from runs/colab/step_00000040" in said[
        "Where checkpoints are kept; restores an earlier session"]
    assert "resuming after step 40" in said["Train"]
    assert [entry["step"] for entry in events(run, "step")] == list(range(1, 61)), "the curve is that of both sessions"
    assert [path.name for path in checkpoints(kept)] == ["step_00000060"]


def code_cells():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@needs_jupyter
def test_the_stop_button_saves_and_keeps_what_was_trained(tmp_path):
    machine, kept = make_machine(tmp_path / "machine"), tmp_path / "drive"
    (tmp_path / "text.txt").write_text("all work and no play makes a dull text\n" * 2000)
    cells = code_cells()
    train = next(i for i, cell in enumerate(cells) if cell.startswith("#@title Train"))
    # The cells as one program; Jupyter's stop button is a SIGINT as well.
    process = subprocess.Popen([PYTHON, "-c", "\n".join(cells[: train + 1])], cwd=machine, stdout=subprocess.DEVNULL,
                               env=environment(machine, kept, STEPS=1000000, TEXT=tmp_path / "text.txt"))
    try:
        wait_until(lambda: last_step(machine / "runs" / "colab") >= 30, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
    stopped = last_step(machine / "runs" / "colab")
    assert [path.name for path in checkpoints(kept)] == [f"step_{stopped:08d}"]


def run_cells(count, *more, **options):
    """The first cells as one program."""
    return call(PYTHON if PYTHON.exists() else "python3", "-c", "\n".join([*code_cells()[:count], *more]), **options)


@pytest.mark.parametrize("name, capability, dtype",
                         [("Tesla T4", "7.5", "fp16"), ("NVIDIA A100-SXM4-40GB", "8.0", "bf16"),
                          ("NVIDIA L4", "8.9", "bf16")])
def test_the_gpu_decides_architecture_and_precision(name, capability, dtype, tmp_path):
    script(tmp_path / "nvidia-smi", f"echo '{name}, {capability}'")
    result = run_cells(2, "print(BUILD, TRAINER, DTYPE)", env=clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    arch = capability.replace(".", "")
    assert f'train_gpt2cu data/prepare ARCHS="{arch}" ./train_gpt2cu {dtype}' in result.stdout, result.stderr
    assert f"{name}: building for sm_{arch}, training in {dtype}" in result.stdout


def test_the_notebook_is_committed_without_outputs_and_in_a_form_that_stays():
    text = NOTEBOOK.read_text()
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "as Jupyter writes it"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
        assert all(len(line) <= 130 for line in "".join(cell["source"]).split("\n"))


def test_without_an_address_a_lonely_notebook_says_what_to_set(tmp_path):
    result = run_cells(3, cwd=tmp_path, env=clean_environment(REPO=""), expect=1)
    assert "set REPO, in the settings, to the address of the repository" in result.stderr
