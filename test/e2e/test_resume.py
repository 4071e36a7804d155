"""Nothing is ever lost: a run that was interrupted, killed, or ran out of disk goes on to the very same weights."""
import fcntl
import json
import os
import pty
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest
from conftest import (EXIT_INTERRUPTED, EXIT_RUN_FAILED, PREPARE, QUIET, TINY, TRAINER, call, checkpoints, command, cut_back, events, kill,
                      limit_file_size, losses, refused, same_run, start, train, wait_for, write_shard)
from verify_checkpoint import verify

# Constant, and its warm-up given: so that the weights after step N do not depend on -x.
SCHEDULE = ["-k", "constant", "-u", 2]
SAVE_EACH_STEP = [*TINY, *QUIET, *SCHEDULE, "-n", 1, "-nk", 0]
RESUME = ["-y", 1]
WHEREIS = PREPARE.with_name("whereis")


def interrupt(condition, *arguments, number=signal.SIGTERM):
    """Starts the trainer and sends it the signal once the condition is true: it saves, and exits with 75."""
    process = start(*arguments)
    assert wait_for(condition, process)
    process.send_signal(number)
    assert process.wait(timeout=3600) == EXIT_INTERRUPTED


def test_a_run_with_another_d_ff_resumes_and_is_exported_with_it(data, tmp_path):
    whole, export, again = tmp_path / "whole", tmp_path / "export", tmp_path / "again"
    flags = [*TINY, *QUIET, *data.flags, "-n", 1, "-nk", 0, "-x", 3, "-u", 1]
    train(*flags, "-o", whole, "--d-ff", 72, "--export", export)
    assert events(whole, "run")[0]["model"]["d_ff"] == 72
    cut = cut_back(shutil.copytree(whole, tmp_path / "cut"))
    train("-o", cut, *RESUME)  # with the options of the run
    assert same_run(cut, whole)
    verify(checkpoints(whole)[-1], export)
    train("-e", export, "-x", 0, *QUIET, "--export", again)
    assert (again / "model.safetensors").read_bytes() == (export / "model.safetensors").read_bytes()


def test_of_a_finished_run_nothing_is_left_and_what_goes_on_with_it_is_named(data, tmp_path):
    train(*TINY, *QUIET, *data.flags, "-o", tmp_path / "run", "-x", 3)
    said = train("-o", tmp_path / "run", *RESUME).stdout
    assert "nothing to do: the run is at step 3 of 3; a larger -x continues it, such as -x 6" in said
    assert "done        3 steps" in train("-o", tmp_path / "run", *RESUME, "-x", 6).stdout


def test_a_run_killed_before_its_first_checkpoint_keeps_its_options_and_its_log(data, tmp_path):
    run = tmp_path / "run"
    process = start(*TINY, *QUIET, *SCHEDULE, *data.flags, "--seed", 7, "-o", run, "-x", 1000000)
    assert wait_for(lambda: len(losses(run)) >= 3, process)
    kill(process)
    log = (run / "main.log").read_text()
    result = train("-o", run, *RESUME, "-x", 3)
    assert f"starting from the beginning with the options in {run}/options.json" in result.stderr
    assert (run / "main.log.1").read_text() == log
    train(*TINY, *QUIET, *SCHEDULE, *data.flags, "--seed", 7, "-o", tmp_path / "whole", "-x", 3)
    assert same_run(run, tmp_path / "whole")


def test_remembered_options_that_are_damaged_or_empty_are_refused(data, tmp_path):
    run = tmp_path / "run"
    process = start(*TINY, *QUIET, *SCHEDULE, *data.flags, "-o", run, "-x", 1000000)
    assert wait_for(lambda: losses(run), process)
    kill(process)
    good = (run / "options.json").read_bytes()
    json.loads(good)
    mark, seal = good.index(b'"train-data":"'), good.index(b'"xxh3": "')
    flipped = (1, mark + 3, good.index(b'"seed":') + 7, seal - 6, seal + 2, seal + 12, len(good) - 1)
    for bad in (b"", *(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:] for at in flipped)):
        (run / "options.json").write_bytes(bad)
        refused("-o", run, *RESUME, "-x", 2, words=["options.json: damaged", "remove it, and give the options again"])
    (run / "options.json").write_bytes(good)
    train("-o", run, *RESUME, "-x", 2)


def in_a_write(out):
    """Is a checkpoint being written that is newer than all there are? (Rests of a killed write are not.)"""
    newest = max((path.name for path in checkpoints(out)), default="")
    return any(path.name.removeprefix(".tmp-") > newest for path in out.glob(".tmp-step_*"))


def kill_in_a_write(process, out, delay):
    """Kills the trainer so long after it began to write a checkpoint; sooner when the write was over by then."""
    while True:
        assert wait_for(lambda: in_a_write(out), process)
        time.sleep(delay)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if in_a_write(out) or process.poll() is not None:
            return kill(process)
        process.send_signal(signal.SIGCONT)
        delay /= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU,
                                    signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_saves_and_exits_75(number, data, tmp_path):
    flags = [*TINY, *QUIET, *SCHEDULE, *data.flags, "-o", tmp_path / "run"]
    interrupt(lambda: len(losses(tmp_path / "run")) > 3, *flags, "-x", 1000000, number=number)
    last = max(losses(tmp_path / "run"))
    assert checkpoints(tmp_path / "run")[-1].name == f"step_{last:08d}"
    train(*flags, "-x", last + 2, *RESUME)
    assert max(losses(tmp_path / "run")) == last + 2


@pytest.mark.parametrize("flags", [["--grad-dtype", "compute"], ["--fp8", 1]],
                         ids=["stochastic", "fp8"])
def test_a_signal_drops_the_step_that_is_not_finished(flags, data, tmp_path):
    # 200 micro-steps a step, so that the signal comes between two. Their random bits and their scales are state too.
    flags = [*TINY[:-1], 1, *QUIET, *SCHEDULE, *data.flags, "--dtype", "bf16", "-d", 32 * 200, "-x", 3, *flags]
    train(*flags, "-o", tmp_path / "whole")
    interrupt(lambda: len(losses(tmp_path / "parts")) == 2, *flags, "-o", tmp_path / "parts")
    assert checkpoints(tmp_path / "parts")[-1].name == "step_00000002"
    assert sorted(losses(tmp_path / "parts")) == [1, 2]
    train("-o", tmp_path / "parts", *RESUME)
    assert same_run(tmp_path / "parts", tmp_path / "whole")


def evaluations(run):
    """What a run says of its model besides losses: validations and samples by step, without times."""
    validations = [(entry["step"], entry["loss"]) for entry in events(run, "validation")]
    return sorted(validations), sorted((entry["step"], entry["index"], entry["text"]) for entry in events(run, "sample"))


def best_val_loss(run):
    return json.loads((checkpoints(run)[-1] / "trainer.json").read_text())["best_val_loss"]


def test_a_sample_that_a_signal_cut_is_not_logged_and_drawn_again(data, tmp_path):
    flags = [*TINY, *data.flags, "-x", 4, "-v", 2, "-m", 4, "-s", 2, "-g", 800]
    train(*flags, "-o", tmp_path / "whole")
    interrupt(lambda: [e for e in events(tmp_path / "parts", "validation") if e["step"] == 2], *flags, "-o", tmp_path / "parts")
    assert events(tmp_path / "parts", "sample") == []
    train("-o", tmp_path / "parts", *RESUME)
    assert evaluations(tmp_path / "parts") == evaluations(tmp_path / "whole")


def test_what_is_due_at_the_checkpoint_is_evaluated_again_and_logged_once(data, tmp_path):
    flags = [*TINY, *data.flags, *SCHEDULE, "-v", 2, "-m", 4, "-s", 2, "-g", 8, "-n", 2, "-nk", 0]
    train(*flags, "-x", 6, "-o", tmp_path / "whole")
    run = cut_back(shutil.copytree(tmp_path / "whole", tmp_path / "run"), kept=2)
    said = train("-o", run, *RESUME).stdout
    assert "validation at step 4 " in said and "sample at step 4:" in said
    assert evaluations(run) == evaluations(tmp_path / "whole")
    assert best_val_loss(run) == best_val_loss(tmp_path / "whole")
    # Not due in a longer run: what the log has of the last step stays.
    train(*flags, "-x", 3, "-o", tmp_path / "short")
    train("-o", tmp_path / "short", *RESUME, "-x", 4)
    assert [step for step, _ in evaluations(tmp_path / "short")[0]] == [0, 2, 3, 4]


# KILLS=300 SIGNALS=60 python -m pytest test/e2e/test_resume.py -k random_moments   for a longer one.
KILLS, SIGNALS = int(os.environ.get("KILLS", 40)), int(os.environ.get("SIGNALS", 16))


def test_a_validation_that_is_made_up_for_is_the_checkpoints(data, tmp_path):
    """A signal before the validation of the last step: the resume validates, and saves no other checkpoint."""
    run = tmp_path / "run"
    interrupt(lambda: len(losses(run)) > 2, *TINY, *SCHEDULE, *data.flags, "-x", 1000000, "-v", 1000000, "-m", 2, "-s", 0,
              "-o", run)
    (checkpoint,) = checkpoints(run)
    step = int(checkpoint.name[5:])
    best = lambda: json.loads((checkpoint / "trainer.json").read_text())["best_val_loss"]  # noqa: E731
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != "trainer.json"}
    assert best() == events(run, "validation")[0]["loss"]  # before the first step
    for _ in range(2):
        train("-o", run, *RESUME, "-x", step)
        assert best() == events(run, "validation")[-1]["loss"] < events(run, "validation")[0]["loss"]
        verify(checkpoint)
        assert {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != "trainer.json"} == before


@pytest.mark.slow
def test_kills_and_signals_at_random_moments_lose_nothing(data, tmp_path):
    out, choose, kills_in_a_write, ended_by_signal = tmp_path / "run", random.Random(7), 0, 0
    # Eight micro-steps a step, whose random bits are state; evaluations and saves that take as long as the steps.
    flags = ["-e", "L=2,C=64,NH=2,T=32", "-t", 32, "-b", 2, "-d", 32 * 16, "--dtype", "bf16", "--grad-dtype", "compute",
             *SCHEDULE, *data.flags, "-v", 3, "-m", 64, "-s", 4, "-g", 40, "--samples", 2, "-n", 2]
    moments = [signal.SIGKILL] * KILLS + [signal.SIGTERM] * SIGNALS
    choose.shuffle(moments)
    for i, number in enumerate(moments):
        known = (out / "options.json").exists()  # from then on -o and -y are enough, also without a checkpoint
        step = max(losses(out), default=0)
        process = start(*([] if known else flags), "-o", out, "-x", 1000000, *RESUME)
        if i % 3 == 0:  # somewhere in the writing of a checkpoint
            assert wait_for(lambda: max(losses(out), default=0) > step, process)
            if number == signal.SIGKILL:
                kill_in_a_write(process, out, choose.uniform(0, 0.01))
            else:
                assert wait_for(lambda: in_a_write(out), process)
        elif i % 3 == 1:  # in a step, a validation, a sample
            assert wait_for(lambda: max(losses(out), default=0) > step, process)
            time.sleep(choose.uniform(0, 0.3))
        else:  # anywhere, also while starting
            time.sleep(choose.uniform(0.0, 0.8))
        if process.returncode != -signal.SIGKILL:
            assert process.poll() is None, f"the trainer ended by itself with {process.returncode}"
            process.send_signal(number)
        code = process.wait(timeout=3600)
        assert code in ((-number,) if number == signal.SIGKILL else (EXIT_INTERRUPTED, -number))  # -: while starting
        ended_by_signal += code == EXIT_INTERRUPTED
        if code == EXIT_INTERRUPTED and max(losses(out), default=0) > 0:
            assert checkpoints(out)[-1].name == f"step_{max(losses(out)):08d}"
        kills_in_a_write += number == signal.SIGKILL and in_a_write(out)
    reached = max(losses(out)) + 2
    for _ in range(2):  # the second one finds nothing to do
        train("-o", out, "-x", reached, *RESUME)
    train(*flags, "-n", 0, "-o", tmp_path / "whole", "-x", reached)
    assert same_run(out, tmp_path / "whole")
    assert evaluations(out) == evaluations(tmp_path / "whole")
    assert best_val_loss(out) == best_val_loss(tmp_path / "whole")
    assert not list(out.glob(".tmp-*")), "rests of writes that were killed are still there"
    print(f"{KILLS} kills, {kills_in_a_write} in a write; {SIGNALS} signals, {ended_by_signal} to a running step loop; "
          f"{reached} steps")
    assert kills_in_a_write >= KILLS / 10 and ended_by_signal >= SIGNALS / 4


def unread(kind):
    """A descriptor of something that nobody reads: to write to it waits, at the latest after 64 KiB."""
    if kind == "terminal":
        ends = pty.openpty()
    elif kind == "socket":
        pair = socket.socketpair()
        pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ends = [end.detach() for end in pair]
    else:
        ends = os.pipe()
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    return ends


@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket", "full disk"])
def test_a_save_does_not_wait_for_a_reader_of_our_output(kind, data, tmp_path):
    reader, writer = (None, os.open("/dev/full", os.O_WRONLY)) if kind == "full disk" else unread(kind)
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    run = tmp_path / "run"
    process = start(*TINY, *QUIET, *data.flags, "-x", 1000000, "-o", run, stdout=writer, stderr=writer)
    assert wait_for(lambda: len(losses(run)) > 3, process)
    if kind == "terminal":
        termios.tcflow(writer, termios.TCOOFF)  # Ctrl-S
    time.sleep(1)  # 4 KiB are full, too
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(timeout=300) == EXIT_INTERRUPTED
    finally:
        kill(process)
    assert checkpoints(run)[-1].name == f"step_{max(losses(run)):08d}"
    assert fcntl.fcntl(writer, fcntl.F_GETFL) == flags  # it may be the terminal of others
    for end in (reader, writer):
        if end is not None:
            os.close(end)


def test_a_run_goes_on_without_a_reader_and_says_so_when_it_is_back(data, tmp_path):
    reader, writer = unread("pipe")
    run = tmp_path / "run"
    process = start(*TINY, *QUIET, *data.flags, "-x", 1000000, "-o", run, stdout=writer)
    os.close(writer)
    try:
        assert wait_for(lambda: len(losses(run)) > 200, process, seconds=60)  # 4 KiB hold less than 40 lines
        said = b""
        while b"\n(output that found no reader was left out here)\nstep" not in said:
            said += os.read(reader, 4096)
        process.send_signal(signal.SIGTERM)
        while more := os.read(reader, 4096):
            said += more
    finally:
        os.close(reader)
    assert process.wait() == EXIT_INTERRUPTED and b"stopped by SIGTERM" in said


def test_under_nohup_a_closed_terminal_does_not_end_the_run(data, tmp_path):
    process = start(*TINY, *QUIET, *data.flags, "-x", 1000000, "-o", tmp_path / "run", before=["nohup"])
    assert wait_for(lambda: losses(tmp_path / "run"), process)
    process.send_signal(signal.SIGHUP)
    now = len(losses(tmp_path / "run"))
    assert wait_for(lambda: len(losses(tmp_path / "run")) > now + 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=3600) == EXIT_INTERRUPTED


@pytest.mark.parametrize("what", ["removed", "renamed"])
def test_a_run_whose_directory_is_gone_says_so_and_saves_where_it_was(what, data, tmp_path):
    out = tmp_path / "run"
    process = start(*TINY, *QUIET, *data.flags, "-x", 1000000, "-o", out, stderr=subprocess.PIPE, text=True)
    assert wait_for(lambda: len(losses(out)) > 3, process)
    out.rename(tmp_path / "elsewhere")
    if what == "removed":
        shutil.rmtree(tmp_path / "elsewhere")
    assert process.wait(timeout=3600) == EXIT_RUN_FAILED
    assert process.stderr.read().count("was removed or renamed while this run wrote into it") == 1
    assert len(checkpoints(out)) == 1
    train(*TINY, *QUIET, *data.flags, "-o", out, "-x", int(checkpoints(out)[0].name[5:]) + 1, *RESUME)


def test_a_second_sigint_ends_the_run_at_once(data, tmp_path):
    """Both signals fall into the first micro-step, which takes seconds."""
    out = tmp_path / "run"
    with start("-e", "L=8,C=512,NH=8,T=256", "-t", 256, "-b", 64, *QUIET, *data.flags, "-o", out, "-x", 1,
               stderr=subprocess.PIPE, text=True) as process:
        assert wait_for(lambda: events(out, "run"), process)
        process.send_signal(signal.SIGINT)
        while "Ctrl-C again ends at once" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == -signal.SIGINT  # a run that ends its step first exits with 75
    assert losses(out) == {} and checkpoints(out) == []


# That no flipped bit and no cut in any of the files passes: test/unit/test_checkpoint.c.
@pytest.mark.sanitize
def test_a_corrupt_checkpoint_is_named_and_the_one_before_is_used(data, tmp_path):
    flags = [*SAVE_EACH_STEP, *data.flags, "-o", tmp_path / "run"]
    train(*flags, "-x", 3)
    file = checkpoints(tmp_path / "run")[-1] / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) * 2 // 3] ^= 0x10
    file.write_bytes(content)
    result = train(*flags, "-x", 3, *RESUME)
    assert "step_00000003" in result.stdout + result.stderr
    # Going on from step 2 writes step 3 again, whole this time.
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3]
    train(*flags, "-x", 4, *RESUME)


@pytest.fixture(params=["full disk", "largest file"])
def little_room(request, tmp_path):
    """Where a run is to go, options of its process, what a lack of room is called, and who makes room: a file system with
    room for one checkpoint of the tiny model and a half, or a limit for the size of files."""
    if request.param == "largest file":
        yield tmp_path / "run", {"preexec_fn": limit_file_size(100_000)}, "File too large", lambda: None
        return
    disk = tmp_path / "disk"
    disk.mkdir()
    made = call("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk)
    if made.returncode != 0:
        pytest.skip(f"a full disk needs the right to mount a tmpfs: {made.stderr.strip()}")
    yield disk / "run", {}, "No space left on device", lambda: call("mount", "-o", "remount,size=16m", disk, expect=0)
    call("umount", disk, expect=0)


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(data, little_room):
    run, options, message, make_room = little_room
    flags = [*SAVE_EACH_STEP, "-nk", 1, *data.flags, "-o", run]
    train(*flags, "-x", 1)
    kept = [path.name for path in checkpoints(run)]
    assert message in train(*flags, "-x", 5, *RESUME, expect=EXIT_RUN_FAILED, **options).stderr
    assert [path.name for path in checkpoints(run)] == kept
    assert not list(run.glob(".tmp-*"))
    make_room()
    train(*flags, "-x", 5, *RESUME)
    assert checkpoints(run)[-1].name == "step_00000005"
    assert sorted(losses(run)) == [1, 2, 3, 4, 5]


def test_a_step_that_fails_midway_is_read_again(data, tmp_path):
    # One bad token: the four windows of a step are read one by one, so the failure comes after some of them were taken.
    tokens = [i % 200 for i in range(32 * 64 + 1)]
    tokens[32 * 40 + 5] = 60000
    shard = write_shard(tmp_path / "train_0.bin", tokens)
    train("-e", "L=1,C=64,NH=2,T=32,V=257", "-t", 32, "-b", 1, "-d", 128, *QUIET, "-i", shard, "-o", tmp_path / "run",
          "-x", 16, expect=EXIT_RUN_FAILED)
    state = json.loads((checkpoints(tmp_path / "run")[-1] / "trainer.json").read_text())
    assert state["step"] >= 1
    assert state["position"] == 4 * state["step"]


def test_without_a_checkpoint_a_run_begins_and_rotation_keeps_the_newest_and_the_major_ones(data, tmp_path):
    train(*SAVE_EACH_STEP, *data.flags, "-nk", 2, "-nm", 4, "-o", tmp_path / "run", "-x", 10, *RESUME)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 11))
    assert [int(p.name.split("_")[1]) for p in checkpoints(tmp_path / "run")] == [4, 8, 9, 10]


def test_a_run_goes_on_with_other_threads_with_a_word_about_its_bits(data, tmp_path):
    run, same, other = tmp_path / "run", tmp_path / "same", tmp_path / "other"
    train(*SAVE_EACH_STEP, *data.flags, "-o", run, "-x", 4, "--threads", 2)
    for directory in (same, other):
        cut_back(shutil.copytree(run, directory))
    assert "bits" not in train("-o", same, *RESUME, "--threads", 2).stderr and same_run(same, run)
    said = train("-o", other, *RESUME, "--threads", 3).stderr
    assert re.search(r"computed by vector code .*, 2 threads, here it is vector code .*, 3 threads: bits will differ", said)
    assert "--threads that it had" in said


def test_an_old_checkpoint_with_a_users_files_stays_and_the_run_goes_on(data, tmp_path):
    run = tmp_path / "run"
    train(*SAVE_EACH_STEP, *data.flags, "-o", run, "-x", 2)
    (run / "step_00000002" / "eval").mkdir()
    result = train("-o", run, *RESUME, "-nk", 1, "-x", 5)
    assert result.stdout.count("step_00000002 is kept: eval in it was not written by this program") == 1
    assert [path.name for path in checkpoints(run)] == ["step_00000002", "step_00000005"]
    assert (run / "step_00000002" / "eval").is_dir()


def test_a_start_clears_what_a_kill_in_a_rotation_left(data, tmp_path):
    run = tmp_path / "run"
    train(*SAVE_EACH_STEP, *data.flags, "-o", run, "-x", 2)
    (run / "step_00000001").rename(run / ".tmp-step_00000001")
    train("-o", run, *RESUME)  # there is nothing to do or to save
    assert not list(run.glob(".tmp-*"))


@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
def test_lines_for_a_terminal_that_is_closed_do_not_end_up_in_a_file(closed, data, tmp_path):
    call(*command(*SAVE_EACH_STEP, *data.flags, "-x", 3, "-o", tmp_path / "run"), expect=0,
         preexec_fn=lambda: [os.close(descriptor) for descriptor in closed])
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3]  # every line is an event
    assert (tmp_path / "run" / ".lock").read_text().count("\n") == 1


def test_a_resume_on_other_shards_says_so(tmp_path):
    tokens = [[(7 * i + k) % 200 for i in range(4000)] for k in (0, 1)]
    shard = write_shard(tmp_path / "train_0.bin", tokens[0], vocab=257, eot=256)
    flags = [*SAVE_EACH_STEP, "-i", shard, "-o", tmp_path / "run"]
    train(*flags, "-x", 1)
    assert "shards have changed" not in train(*flags, "-x", 2, *RESUME).stderr
    write_shard(shard, tokens[1], vocab=257, eot=256)  # the same header
    assert "-i: the shards have changed: the checkpoint has 4000 tokens" in train(*flags, "-x", 3, *RESUME).stderr
    write_shard(shard, tokens[1] + [5], vocab=257, eot=256)
    assert "these have 4001 (" in train(*flags, "-x", 4, *RESUME).stderr


# ---------------------------------------------------------------------------------------------------------- vector code

CODES = ["amx", "avx512bf16", "avx512", "avx2", "baseline"]
# Sums in another order: the losses of a few steps differ by rounding of the numbers that are added, which the steps
# between amplify a little. fp32 2^-24 and bf16 2^-8 times 30.
ANOTHER_ORDER = {"fp32": 30 * 2**-24, "bf16": 30 * 2**-8}


def with_code(code):
    return {"env": {**os.environ, "PRETRAIN_CPU": code}}


def codes_here(data):
    """Those that PRETRAIN_CPU takes: a wrong one is refused with the list."""
    here = [code for code in CODES
            if train(*TINY, *QUIET, *data.flags, "-x", 0, expect=None, **with_code(code)).returncode == 0]
    assert here[-1] == "baseline"
    return here


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_run_goes_on_under_other_vector_code_with_a_word_about_its_bits(dtype, data, tmp_path):
    flags = [*TINY, *QUIET, *SCHEDULE, *data.flags, "--dtype", dtype, "-n", 2, "-nk", 0]
    here = codes_here(data)
    for code in here:
        run = tmp_path / code
        said = train(*flags, "-o", run, "-x", 4, **with_code(code)).stdout
        assert f"vector code {code}, oneDNN" in said
        assert f"vector code {code}, oneDNN" in events(run, "run")[0]["device"]["libraries"]
        assert losses(run) == pytest.approx(losses(tmp_path / here[0]), rel=ANOTHER_ORDER[dtype])
        same = cut_back(shutil.copytree(run, tmp_path / f"{code}_again"))
        resumed = train("-o", same, *RESUME, **with_code(code))
        assert "bits" not in resumed.stderr and same_run(same, run)
    whole, first = tmp_path / here[0], tmp_path / "other"
    cut_back(shutil.copytree(whole, first))
    said = train("-o", first, *RESUME, **with_code("baseline")).stderr
    if here[0] != "baseline":
        assert f"computed by vector code {here[0]}," in said and "here it is vector code baseline," in said
        assert "bits will differ" in said
    assert losses(first) == pytest.approx(losses(whole), rel=ANOTHER_ORDER[dtype])


# ------------------------------------------------------------------------------------------ from another directory


def begun(place):
    """A run of one step in place/work, with relative paths; returns the directory and what it was trained with."""
    work = place / "work"
    shutil.copytree(begun.data, work / "[sh] a")
    flags = [*TINY, "-s", 0, *SCHEDULE, "-i", "\\[sh] a/train_*.bin", "-v", 2, "-m", 4, "-n", 1, "-nk", 0, "--tokenizer",
             "bytes"]
    call(TRAINER, *flags, "-x", 2, "-o", "run", cwd=work, expect=0)
    return work


@pytest.fixture
def work(data, tmp_path):
    begun.data = data.directory
    return begun(tmp_path)


def test_a_run_resumes_from_another_directory_with_the_paths_of_its_own(work, tmp_path):
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    said = call(TRAINER, "-o", "../work/run", "-y", "-x", 4, cwd=elsewhere, expect=0)
    assert "changed since the checkpoint:\n--max-steps 4 (was 2)\n" in said.stdout and not said.stderr
    assert f"{work}/\\[sh] a/val_*.bin'" in said.stdout  # beside the training data
    call(TRAINER, "-o", "run", "-y", "-x", 5, cwd=work, expect=0)  # and here again
    options = events(work / "run", "run")[-1]["options"]
    assert options["directory"] == str(work) and options["train-data"] == "\\[sh] a/train_*.bin"
    at_once = begun(tmp_path / "once")
    call(TRAINER, "-o", "run", "-y", "-x", 5, cwd=at_once, expect=0)
    assert same_run(work / "run", at_once / "run")


def test_a_run_that_is_moved_with_its_data_resumes(work, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    call(TRAINER, "-o", "../work/run", "-y", "-x", 3, cwd=tmp_path / "elsewhere", expect=0)
    moved = work.rename(tmp_path / "moved")
    said = call(TRAINER, "-o", "run", "-y", "-x", 4, cwd=moved, expect=0).stdout
    assert "'\\[sh] a/val_*.bin'" in said
    assert call(WHEREIS, "run", 4, cwd=moved, expect=0).stdout.count("train_0") == 4


def test_the_message_says_where_the_paths_of_a_run_were_looked_for(work, tmp_path):
    (work / "[sh] a").rename(tmp_path / "gone")
    (tmp_path / "elsewhere").mkdir()
    said = call(TRAINER, "-o", "../work/run", "-y", "-x", 4, cwd=tmp_path / "elsewhere", expect=2).stderr
    assert f"(relative to {work}, where the run was begun, and to {tmp_path / 'elsewhere'})" in said
    assert "-i: no token shards match '\\[sh] a/train_*.bin'" in said and said.count("\n") == 1


def test_a_path_that_is_given_at_the_resume_is_relative_to_the_directory_of_the_resume(work, tmp_path):
    (work / "[sh] a").rename(tmp_path / "here")
    (tmp_path / "elsewhere").mkdir()
    call(TRAINER, "-o", "../work/run", "-y", "-x", 3, "-i", "../here/train_*.bin", cwd=tmp_path / "elsewhere", expect=0)
    call(TRAINER, "-o", "run", "-y", "-x", 4, "--export", "weights", cwd=work, expect=0)  # it is where it was named
    assert (work / "weights" / "model.safetensors").exists()


def test_weights_of_a_run_are_evaluated_from_another_directory_on_its_data(work, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    said = call(TRAINER, "-e", checkpoints(work / "run")[-1], "-x", 0, "-s", 0, cwd=tmp_path / "elsewhere", expect=0).stdout
    assert f"{work}/\\[sh] a/val_*.bin'" in said


def test_whereis_finds_the_shards_of_a_run_from_anywhere(work, tmp_path):
    rows = call(WHEREIS, work / "run", 2, cwd=tmp_path, expect=0).stdout.splitlines()[2:]
    assert len(rows) == 4 and all(f"'{work}/[sh] a/train_000000.bin'" in row for row in rows)


# ---------------------------------------------------------------------------------------- scripts that wait for the end

# As llm.c's users run it: the trainer is started again until the marker of the last step is there.
UNTIL_DONE = """
runs=0
until [ -e "$OUT/DONE_00000040" ]; do
    runs=$((runs + 1))
    [ $runs -le 20 ] || exit 9
    "$@" -o "$OUT" -y 1 >/dev/null 2>>"$OUT.err" & trainer=$!
    if [ $runs = 1 ]; then
        until [ -d "$OUT/step_00000004" ] || ! kill -0 $trainer 2>/dev/null; do sleep 0.01; done
        kill -$SIGNAL $trainer
    fi
    wait $trainer; echo $?
done
"""


@pytest.mark.parametrize("number, code", [(signal.SIGKILL, 137), (signal.SIGTERM, EXIT_INTERRUPTED)])
def test_a_script_that_starts_the_run_until_its_last_step_is_marked_ends(number, code, data, tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    flags = [*TINY, *QUIET, *SCHEDULE, *data.flags, "-n", 2, "-x", 40]
    loop = call("bash", "-c", UNTIL_DONE, "loop", *command(*flags), expect=0,
                env={**os.environ, "OUT": str(run), "SIGNAL": str(int(number))})
    assert loop.stdout.split() == [str(code), "0"]
    assert [path.name for path in run.glob("DONE*")] == ["DONE_00000040"]
    train(*flags, "-o", whole)
    assert same_run(run, whole)
    again = train(*flags, "-o", run, *RESUME)  # of a finished run: nothing to do, and the marker stays, or comes back
    assert "nothing to do" in again.stdout
    (run / "DONE_00000040").unlink()
    train(*flags, "-o", run, *RESUME)
    assert (run / "DONE_00000040").stat().st_size == 0


def test_only_the_last_step_is_marked_and_a_longer_run_takes_the_mark_away(data, tmp_path):
    run = tmp_path / "run"
    flags = [*TINY, *QUIET, *SCHEDULE, *data.flags, "-n", 1, "-o", run]
    done = lambda: sorted(path.name for path in run.glob("DONE*"))  # noqa: E731
    train(*flags, "-x", 2)
    assert done() == ["DONE_00000002"]
    (run / "DONE_00000001").write_text("somebody's notes")  # not ours: ours are empty
    interrupt(lambda: (run / "step_00000003").exists(), *flags, "-x", 100000, *RESUME)
    assert done() == ["DONE_00000001"]
    step = int(checkpoints(run)[-1].name[5:])
    train(*flags, "-x", 100000, "--max-minutes", 1e-9, *RESUME)  # the time is up, the run is not done
    assert done() == ["DONE_00000001"] and int(checkpoints(run)[-1].name[5:]) == step + 1
    train(*flags, "-x", step + 3, *RESUME)
    assert done() == ["DONE_00000001", f"DONE_{step + 3:08d}"]


def test_a_run_of_so_many_tokens_is_done_after_them(data, tmp_path):
    train(*TINY, *QUIET, *data.flags, "--tokens", 3 * 4 * 32, "-o", tmp_path / "run")
    assert (tmp_path / "run/DONE_00000003").exists()
    train("-e", tmp_path / "run/step_00000003", "-x", 0, "-s", 1, "-v", 0, "-o", tmp_path / "samples")
    assert not list((tmp_path / "samples").glob("DONE*"))  # it only draws samples


# ------------------------------------------------------------------------------------------------- runs without an update


def test_a_run_without_an_update_fails_and_leaves_the_checkpoint_before(tmp_path):
    """Trained on one token until the loss is 0, then resumed on random ones, whose loss is an outlier."""
    easy = write_shard(tmp_path / "easy_0.bin", [7] * (32 * 256 + 1), vocab=257)
    choose = random.Random(1)
    hard = write_shard(tmp_path / "hard_0.bin", [choose.randrange(256) for _ in range(32 * 256 + 1)], vocab=257)
    flags = [*TINY, *QUIET, *SCHEDULE, "-l", 1e-3, "-j", hard, "-n", 1, "-nk", 2, "-sl", 3, "-o", tmp_path / "run"]
    train(*flags, "-i", easy, "-x", 140)
    kept = [path.name for path in checkpoints(tmp_path / "run")]
    result = train(*flags, "-i", hard, "-x", 142, *RESUME, expect=EXIT_RUN_FAILED)
    assert "none of 2 steps has updated the weights" in result.stderr and "-sl" in result.stderr
    assert result.stdout.count("SKIPPED: loss outlier") == 2 and "not saved" in result.stdout
    assert "done  " not in result.stdout
    assert [path.name for path in checkpoints(tmp_path / "run")] == kept
    assert not (tmp_path / "run/DONE_00000142").exists()
    train(*flags, "-i", hard, "-x", 142, "-sl", 0, *RESUME)
    assert checkpoints(tmp_path / "run")[-1].name == "step_00000142"


def test_a_run_whose_gradients_are_never_finite_saves_and_exports_nothing(data, tmp_path):
    train(*TINY, *QUIET, "-e", "L=2,C=64,NH=2,T=32,V=257", "-x", 0, "--export", tmp_path / "model", "--dtype", "fp32")
    path = tmp_path / "model/model.safetensors"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    name = next(name for name in header if name.endswith("wte.weight"))
    begin, end = (8 + length + offset for offset in header[name]["data_offsets"])
    content[begin:end] = struct.pack("<f", 3e38) * ((end - begin) // 4)  # finite; the logits are not
    path.write_bytes(content)
    result = train("-e", tmp_path / "model", *QUIET, "-t", 32, "-b", 4, *data.flags, "-x", 3, "-n", 1, "--dtype", "fp32", "-o",
                   tmp_path / "run", "--export", tmp_path / "out", expect=EXIT_RUN_FAILED)
    assert "none of 3 steps has updated the weights" in result.stderr
    assert not checkpoints(tmp_path / "run") and not list((tmp_path / "run").glob("DONE*")) and not (tmp_path / "out").exists()
