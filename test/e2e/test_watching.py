"""Watching a run: what TensorBoard's own readers find in the event files against main.log, also after kills, resumes
and on full disks; what a terminal, a pipe and a notebook show; the last lines of a run."""
import json
import os
import re
import socket
import struct
import subprocess
import time

import pytest
from conftest import (EXIT_RUN_FAILED, MEASURED, PREPARE, QUIET, TINY, checkpoints, command, events, kill, limit_file_size, on_a_terminal, start,
                      train, wait_for)

pytest.importorskip("tensorboard", reason="tensorboard is not installed: scripts/install_deps.sh test")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.plugin_util import markdown_to_safe_html  # noqa: E402

RUN = [*TINY, "-v", 4, "-s", 0, "-n", 5]
GROUPS = {"step": "train/", "validation": "val/", "gpu": "gpu/", "end": "whole_run/", "numerics": "numerics/"}
NAMES = {"val/ppl": "val/perplexity"}


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def scalars_of_log(run):
    """(tag, step) -> float32, of every number of every line of main.log that belongs to a step."""
    found = {}
    for line in (run / "main.log").read_text().splitlines():
        entry = json.loads(line)
        if "step" not in entry or entry["event"] == "sample":
            continue
        group = f"choices/{entry['name']}/" if entry["event"] == "choices" else GROUPS[entry["event"]]
        for key, value in entry.items():
            if key not in ("time", "step") and isinstance(value, (int, float)):
                tag = group + key
                found[NAMES.get(tag, tag), entry["step"]] = as_float32(value)
    return found


def accumulated(run):
    """The same from the event files, as TensorBoard's reader in Python sees them."""
    accumulator = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return {(tag, event.step): event.value
            for tag in accumulator.Tags()["scalars"] for event in accumulator.Scalars(tag)}


def event_files(run):
    return sorted(run.glob("events.out.tfevents.*"))


def test_tensorboard_finds_every_number_of_the_log(data, tmp_path):
    run = tmp_path / "logs" / "run"
    said = train(*RUN, *data.flags, "-x", 12, "-o", run, "--numerics-every", 4, env=MEASURED).stdout
    assert "\nnumerics at step 4 | " in said
    found = accumulated(run)
    assert found == scalars_of_log(run)
    assert {step for tag, step in found if tag == "train/loss"} == set(range(1, 13))
    assert {step for tag, step in found if tag == "val/loss"} == {0, 4, 8, 12}
    assert {"train/norm", "train/lr", "train/ms", "train/tokens_per_second", "train/mfu", "train/hfu", "val/perplexity",
            "whole_run/ms_p99", "numerics/qkv.in/rms"} <= {tag for tag, step in found}
    assert served(tmp_path / "logs")["run"] == found  # last: it may have to skip


def served(directory):
    """run -> {(tag, step): value}, from TensorBoard's data server, a process that it starts beside its web server."""
    from tensorboard import context
    from tensorboard.data import server_ingester
    from tensorboard.util import grpc_util
    try:
        binary = server_ingester.get_server_binary()
    except server_ingester.NoDataServerError as error:
        pytest.skip(f"tensorboard has no data server here: {error}")
    try:
        socket.gethostbyname("localhost")  # where it listens
    except OSError:
        pytest.skip("tensorboard's data server was NOT asked: this system has no address for localhost")
    ingester = server_ingester.SubprocessServerDataIngester(
        server_binary=binary, logdir=str(directory), reload_interval=5, samples_per_plugin={"scalars": 0},
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL)
    ingester.start()
    series = ingester.data_provider.read_scalars(context.RequestContext(), experiment_id="", plugin_name="scalars",
                                                 downsample=100000)
    return {run: {(tag, datum.step): datum.value for tag in tags for datum in tags[tag]}
            for run, tags in series.items()}


def test_a_resumed_run_replaces_the_steps_that_are_run_again(data, tmp_path):
    run = tmp_path / "run"
    train(*RUN, *data.flags, "-x", 9, "-o", run)
    newest = checkpoints(run)[-1]
    (newest / "trainer.json").write_text("damaged")  # the one before it is of step 5: 6 to 9 are run again
    assert ("train/loss", 9) in accumulated(run)
    train(*RUN, *data.flags, "-x", 7, "-o", run, "-y", 1)
    assert len(event_files(run)) == 2
    found = accumulated(run)
    assert found == scalars_of_log(run)
    assert max(step for tag, step in found) == 7


def test_after_kill_9_nothing_but_the_last_line_can_be_missing(data, tmp_path):
    run = tmp_path / "run"
    flags = [*RUN, *data.flags, "-o", run]
    process = start(*flags, "-x", 100000)
    wait_for(lambda: len(checkpoints(run)) >= 2, process)
    kill(process)
    log = run / "main.log"
    log.write_bytes(log.read_bytes()[: log.read_bytes().rindex(b"\n") + 1])
    in_log, found = scalars_of_log(run), accumulated(run)
    last = json.loads(log.read_text().splitlines()[-1])
    assert found.items() <= in_log.items()
    assert {step for tag, step in in_log.keys() - found.keys()} <= {last["step"]}
    # A kill in the middle of a record leaves its beginning, which a reader passes over.
    with open(event_files(run)[0], "ab") as file:
        file.write(event_files(run)[0].read_bytes()[:40])
    assert accumulated(run) == found
    train(*flags, "-x", int(checkpoints(run)[-1].name[5:]) + 3, "-y", 1)
    assert accumulated(run) == scalars_of_log(run)


# What the files hold then: test_runlog.c, test_tensorboard.c.
def test_a_file_that_cannot_grow_does_not_stop_the_run(data, tmp_path):
    result = train("-e", "L=1,C=32,NH=1,T=32", "-t", 32, "-b", 1, *QUIET, "-n", 0, *data.flags, "-x", 2500, "-o",
                   tmp_path / "run", preexec_fn=limit_file_size(400_000))  # the largest file of the checkpoint has 300 KB
    full = r"cannot write: File too large \(.*\); the run continues"
    assert len(re.findall(f"events.out.*: {full}", result.stderr)) == 1
    # A shorter line may fit where one had not: then the log is complete again from there on, and the next is told anew.
    fitted = result.stdout.count("main.log is written again")
    assert 1 <= len(re.findall(f"main.log: {full}", result.stderr)) <= 1 + fitted <= 4
    assert "done        2500 steps" in result.stdout


def test_the_text_tab_shows_the_options_of_the_run_and_its_samples(data, tmp_path):
    run = tmp_path / "run"
    train(*TINY, "-v", 0, "-s", 2, "-g", 12, *data.flags, "-x", 4, "-n", 0, "-o", run)
    accumulator = EventAccumulator(str(run), size_guidance={"tensors": 0})
    accumulator.Reload()

    def texts(tag):
        return [(event.step, event.tensor_proto.string_val[0].decode()) for event in accumulator.Tensors(tag)]

    (of_run,) = texts("run")
    assert json.loads(of_run[1])["options"]["train-data"] == data.train
    samples = texts("sample/1")
    assert [step for step, text in samples] == [2, 4]
    for (step, shown), entry in zip(samples, events(run, "sample")):
        assert step == entry["step"]
        assert markdown_to_safe_html(shown).startswith("<pre><code>")


def test_a_run_that_only_evaluates_adds_to_the_log_and_takes_nothing_away(data, tmp_path):
    run = tmp_path / "run"
    train(*RUN, *data.flags, "-x", 5, "-o", run)
    log, before = (run / "main.log").read_text(), accumulated(run)
    train("-e", checkpoints(run)[-1], *TINY[2:], "-s", 0, "-v", 1, *data.flags, "-x", 0, "-o", run)
    assert (run / "main.log").read_text().startswith(log)
    assert len(events(run, "validation")) == 4
    assert accumulated(run) == before == served(run.parent)["run"]  # a curve of its own
    (loss,) = (value for (tag, step), value in accumulated(run / "evaluation").items() if tag == "val/loss")
    assert loss == as_float32(events(run, "validation")[-1]["loss"])


def test_a_second_process_in_the_same_directory_is_refused(data, tmp_path):
    run = tmp_path / "run"
    flags = [*TINY, *QUIET, *data.flags, "-n", 5, "-o", run]
    first = start(*flags, "-x", 1000000)
    try:
        # While it still starts: there is nothing to resume from yet. Who has the lock writes its name into the file.
        wait_for(lambda: (run / ".lock").exists() and (run / ".lock").read_text(), first)
        seconds = [train(*flags, "-x", 1000000, "-y", 1, expect=EXIT_RUN_FAILED)]
        wait_for(lambda: checkpoints(run), first)
        seconds += [train(*flags, "-x", 1000000, *resume, expect=EXIT_RUN_FAILED) for resume in ([], ["-y"])]
    finally:
        kill(first)
    for second in seconds:
        assert f"-o {run}: in use by process {first.pid} on " in second.stderr and "wait until it ends" in second.stderr
    steps = [entry["step"] for entry in events(run, "step")]
    assert steps == list(range(1, len(steps) + 1))


def test_of_many_starts_at_once_one_runs_and_its_log_stays(data, tmp_path):
    run = tmp_path / "run"
    flags = [*TINY, *QUIET, *data.flags, "-n", 5, "-o", run, "-x", 20]
    processes = []
    for _ in range(8):
        processes.append(start(*flags))
        time.sleep(0.1)
    assert sorted(process.wait(timeout=300) != 0 for process in processes) == [False] + 7 * [True]
    assert [entry["step"] for entry in events(run, "step")] == list(range(1, 21))


# The figures: test/unit/test_summary.c.
def test_the_last_lines_sum_up_the_run(data, tmp_path):
    said = train(*RUN, *data.flags, "-x", 8, "-o", tmp_path / "run", env=MEASURED).stdout
    summary = re.search(r"^summary +8 steps, 1.024K tokens, (\S+) in steps \| median (\S+) tok/s, mfu \S+% \| "
                        r"step p50 (\S+) ms, p99 (\S+) ms\n +best validation loss (\S+) at step (\d+)$", said, re.MULTILINE)
    assert summary and not set("\r\x1b") & set(said), said[-500:]  # through a pipe: plain lines
    end = events(tmp_path / "run", "end")[-1]
    validations = {entry["step"]: entry["loss"] for entry in events(tmp_path / "run", "validation")}
    assert end["best_val_loss"] == min(validations.values()) == validations[int(summary[6])]
    assert summary[5] == f"{end['best_val_loss']:.4f}" and (end["steps"], end["tokens"]) == (8, 1024)


# ------------------------------------------------------------------------------------------------ terminal and notebook


def test_on_a_terminal_the_bar_leaves_nothing_behind(data):
    code, output = on_a_terminal(*command(*TINY, "-v", 2, "-s", 0, *data.flags, "-x", 6),
                                 env={**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": ""})
    assert code == 0, output
    assert re.search(r"\rstep|step \d/6 \[[█▏▎▍▌▋▊▉ ]+\] +\d+\.\d% \| loss", output)
    # What comes after the last "to the beginning of the line, erase it" is what stays of a line.
    shown = [line.split("\r\x1b[K")[-1] for line in output.replace("\r\n", "\n").split("\n")]
    assert [line.split("/")[0] for line in shown if line.startswith("step")] == [f"step {i}" for i in range(1, 7)]
    assert not any(set("\r\x1b") & set(line) for line in shown)
    assert all("[" not in line for line in shown if line.startswith(("step", "validation", "done", "summary")))
    assert shown[-1] == ""


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "true"}, {"JPY_PARENT_PID": "1"}], ids=lambda v: list(v)[0])
def test_where_nothing_can_be_redrawn_there_is_no_bar(variables, data, tmp_path):
    code, output = on_a_terminal(*command(*TINY, *QUIET, *data.flags, "-x", 3), variables=variables)
    assert code == 0 and not set("\r\x1b") & set(output.replace("\r\n", "\n"))
    (tmp_path / "large.txt").write_bytes(b"some words of a long text\n" * 2_000_000)
    code, output = on_a_terminal(PREPARE, "-o", tmp_path / "out", tmp_path / "large.txt", variables=variables)
    assert code == 0 and not set("\r\x1b") & set(output.replace("\r\n", "\n"))
    forced = train(*TINY, *QUIET, *data.flags, "-x", 3, env={**os.environ, **variables, "PRETRAIN_PROGRESS": "1"})
    assert "\x1b[K" in forced.stdout


@pytest.mark.slow
def test_what_takes_long_at_the_start_is_said_before(data):
    """1.5 GB of memory; and 8 TFLOP on one core, which take more than a second on any."""
    process = start("-e", "L=12,C=768,NH=12,T=64", "-t", 64, "-b", 1, "-d", 64 * 256, *QUIET, *data.flags, text=True,
                    stdout=subprocess.PIPE, env={**MEASURED, "OMP_NUM_THREADS": "1"})
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(("first step", "step")):
            break
    kill(process)
    assert re.fullmatch(r"starting    .*: measuring its speed, then allocating 1\.[0-9]+ GiB and initialising the "
                        r"weights\n", lines[0])
    assert re.fullmatch(r"first step  takes at least \S+ s at the measured matmul rate\n", lines[-1])
    said = train(*TINY, *QUIET, *data.flags, "-x", 1).stdout
    assert "starting" not in said and "first step  " not in said and "validating" not in said


@pytest.mark.slow
def test_a_notebook_gets_plain_lines_though_its_cells_look_like_a_terminal(data, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: scripts/install_deps.sh test-all")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: scripts/install_deps.sh test-all")
    run = " ".join(command(*TINY, "-v", 2, "-s", 0, *data.flags, "-x", 4))
    cells = ["!" + run.replace("*", r"\*"), "!tty"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    assert texts[1].startswith("/dev/"), "this Jupyter runs its commands without a terminal: the test shows nothing"
    lines = texts[0].replace("\r\n", "\n")
    assert "\r" not in lines and "\x1b" not in lines
    assert len(re.findall(r"^step \d/4 \|", lines, re.MULTILINE)) == 4
