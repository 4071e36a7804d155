"""Every script for the user ends with one line on stderr and a code that is not 0 for whatever is wrong outside of it."""
import json
import os
import signal
import subprocess
import sys

import pytest
from runs import ROOT, call
from test_plot_run import run_event, step_event, write_events

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
SCRIPTS = ["scripts/plot_run.py", "scripts/plot_memory.py", "scripts/sweep_table.py",
           "scripts/verify_checkpoint.py", "scripts/install_cuda.py", "dev/kernel_report.py",
           "dev/check_docs.py", "data/get.py", "data/read_parquet.py", "dev/bench/predict.py", "dev/bench/bench_cpu.py",
           "dev/bench/bench_gpu.py", "dev/bench/check_gpu.py", "dev/bench/gpu_hour.py", "dev/bench/loss_parity.py"]
NAMES_AN_INPUT = ["scripts/plot_run.py", "scripts/sweep_table.py", "scripts/verify_checkpoint.py",
                  "data/read_parquet.py"]


def script(name, *arguments, **options):
    return call(PYTHON, ROOT / name, *arguments, **options)


def refused(result, words="", code=None):
    assert result.returncode not in (0, -6) and (code is None or result.returncode == code), result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr and words in result.stderr, result.stderr


@pytest.fixture
def log(tmp_path):
    return write_events(tmp_path / "sweep" / "run", [run_event(1.0, options={"seed": 1}, total_steps=9),
                                                     *(step_event(n, 1.0 + n) for n in range(1, 9))])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_wrong_option_is_a_line(name, tmp_path):
    refused(script(name, "--no-such-option", "x", cwd=tmp_path), code=2)


@pytest.mark.parametrize("name", ["bench_cpu", "bench_gpu", "check_gpu", "gpu_hour"])
def test_a_wrong_expression_is_a_line(name, tmp_path):
    part = ["run"] if name == "gpu_hour" else []
    result = script(f"dev/bench/{name}.py", *part, "--only", "(", "--output" if name != "bench_cpu" else "--build", tmp_path)
    refused(result, "'(' is no regular expression", 2)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_full_disk_behind_stdout_is_a_line(name, tmp_path):
    with open("/dev/full", "w") as full:
        refused(script(name, "--help", cwd=tmp_path, stdout=full, stderr=subprocess.PIPE), "No space left on device", 1)


@pytest.mark.parametrize("name", NAMES_AN_INPUT)
@pytest.mark.parametrize("kind", ["missing", "empty", "binary", "directory", "not_a_directory"])
def test_an_input_that_is_none_is_a_line(name, kind, tmp_path):
    path = tmp_path / "input"
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else bytes(range(256)) * 9)
    result = script(name, path / "x" if kind == "not_a_directory" else path, cwd=tmp_path)
    refused(result, "" if "pyarrow is missing" in result.stderr else "input")


@pytest.mark.parametrize("output", ["curve", "curve.xyz", "curve.log", "no/curve.png", "file/curve.png", ".png", ""])
def test_a_name_that_is_no_picture_is_a_line(output, log, tmp_path):
    (tmp_path / "file").write_text("")
    result = script("scripts/plot_run.py", log, "-o", output, cwd=tmp_path)
    if output:
        refused(result, output, 2)
    else:
        assert (log / "curve.png").exists()  # as without -o
    assert sorted(os.listdir(tmp_path)) == ["file", "sweep"]


@pytest.mark.parametrize("suffix, begins", [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".html", b"<!DOC")])
def test_the_suffix_chooses_the_form_and_its_own_file_is_written_over(suffix, begins, log, tmp_path):
    for _ in range(2):
        assert script("scripts/plot_run.py", log, "-o", f"a{suffix}", cwd=tmp_path, expect=0).stderr == ""
    assert (tmp_path / f"a{suffix}").read_bytes().startswith(begins)
    assert sorted(os.listdir(tmp_path)) == [f"a{suffix}", "sweep"]


DAMAGED = ["{", "[]", "7", '{"event":7}', '{"event":"step"}', '{"event":"step","step":"x"}', '{"event":"step","step":true}',
           '{"event":"step","step":-1,"time":1}', '{"event":"step","step":1' + "0" * 400 + "}", '{"event":"step","step":9,"loss":"x"}',
           '{"event":"step","step":9,"loss":1' + "0" * 400 + "}", '{"event":"run","start_step":"x","tokens_per_step":{}}',
           '{"event":"run","model":[],"device":"x","options":7,"total_steps":"x"}', '{"event":"validation","step":9,"loss":{}}',
           '{"event":"step","step":9,"time":"x","skip":[]}', "[" * 100000, "\udcff\udcfe\0", '{"event":"choices","step":9,"name":[]}']


def test_damaged_lines_of_a_log_are_passed_over(log, tmp_path):
    with open(log / "main.log", "ab") as file:
        file.write("\n".join(DAMAGED).encode("utf-8", "surrogateescape") + b"\n")
    for arguments in (["scripts/plot_run.py", log, "-o", "a.png"], ["scripts/plot_run.py", log, "-o", "a.html", "-x", "time"],
                      ["scripts/sweep_table.py", log.parent]):
        assert script(*arguments, cwd=tmp_path, expect=0).stderr == ""


def test_names_that_are_not_utf8_are_printed_as_they_are_and_are_utf8_in_a_page(log, tmp_path):
    name = os.fsdecode(b"r\xe4n")
    os.rename(log, log.parent / name)
    for page in ("a.png", "a.html"):
        result = script("scripts/plot_run.py", log.parent / name, "-o", page, cwd=tmp_path, expect=0, text=False)
        assert b"r\xe4n/main.log | steps 1..8" in result.stdout
    assert json.dumps("r\ufffdn").strip('"') in (tmp_path / "a.html").read_bytes().decode()


def test_a_reader_that_ends_and_an_interrupt_leave_no_traceback(log, tmp_path):
    many = tmp_path / "many"
    for n in range(50):  # a table of 1.5 MB: more than any pipe holds
        write_events(many / f"run{n}", [run_event(1.0, options={"prompt": f"{n:030000d}"}, total_steps=9)])
    command = f"'{PYTHON}' '{ROOT}/scripts/sweep_table.py' '{many}' | head -n 1"
    result = call("bash", "-c", f"set -o pipefail; {command}")
    assert result.returncode == 141 and result.stderr == ""
    process = subprocess.Popen([PYTHON, "-u", ROOT / "scripts/plot_run.py", log, "--watch", "100"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while not process.stdout.readline().startswith("drawn"):
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0 and process.stderr.read() == ""
    process = subprocess.Popen([PYTHON, "-c", "import os, signal, sys\nsys.path.append(sys.argv[1])\nimport tool\n"
                                "tool.run(os.kill, os.getpid(), signal.SIGINT)", ROOT / "scripts"], stderr=subprocess.PIPE,
                               text=True)
    assert process.wait(60) == 130 and process.stderr.read().endswith(": interrupted\n")


def test_a_missing_package_is_named_with_debians(tmp_path):
    (tmp_path / "numpy.py").write_text("import numpy.none\n")
    program = "import sys\nsys.path.append(sys.argv[1])\nimport tool\ndef main():\n    import {}\ntool.run(main)"
    for package, words in (("torch.none_such", "torch"), ("none_such", "the Python package none_such is missing: install it")):
        refused(call(PYTHON, "-S", "-c", program.format(package), ROOT / "scripts"), words, 2)


def test_a_recipe_reads_paths_from_where_it_is_called(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}_000000.bin").write_bytes(b"")
    (tmp_path / "trainer").write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    (tmp_path / "trainer").chmod(0o755)
    said = call(ROOT / "scripts/run_gpt2_124M.sh", cwd=tmp_path, expect=0,
                env={**os.environ, "TRAINER": "./trainer", "DATA": ".", "OUT": "out"}).stdout.split("\n")
    assert said[0] == str(tmp_path) and said[said.index("-o") + 1] == "out" and said[said.index("-i") + 1] == "./*train_*.bin"
    said = call(ROOT / "scripts/run_gpt2_124M.sh", "-i", "x", cwd=tmp_path, expect=0,
                env={**os.environ, "TRAINER": "./trainer", "OUT": ""}).stdout.split("\n")
    assert said[said.index("-o") + 1] == f"{ROOT}/runs/gpt2_124M"
