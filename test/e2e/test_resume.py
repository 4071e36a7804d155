"""Nothing is ever lost: a run that was interrupted, killed, or ran out of disk goes on to the very same weights."""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest
from conftest import (EXIT_INTERRUPTED, EXIT_RUN_FAILED, QUIET, ROOT, TINY, checkpoints, command, cut_back, events,
                      kill, losses, same_state, start, train, wait_for, write_shard)

# Constant, and its warm-up given: so that the weights after step N do not depend on -x.
SCHEDULE = ["-k", "constant", "-u", 2]
SAVE_EACH_STEP = [*TINY, *QUIET, *SCHEDULE, "-n", 1, "-nk", 0]
RESUME = ["-y", 1]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_resuming_at_every_step_gives_the_same_bits(dtype, data, tmp_path):
    steps = 6
    flags = [*TINY, *QUIET, *data.flags, "--dtype", dtype, "-n", 1, "-nk", 0, "-x", steps, "-u", 2, "-d", 192]
    train(*flags, "-o", tmp_path / "whole")
    whole = checkpoints(tmp_path / "whole")
    assert len(whole) == steps
    for step in range(1, steps):
        out = tmp_path / f"from_{step}"
        cut_back(shutil.copytree(tmp_path / "whole", out), kept=step)
        train(*flags, "-o", out, *RESUME)
        assert losses(out) == losses(tmp_path / "whole")
        assert same_state(checkpoints(out)[-1], whole[-1])


@pytest.mark.sanitize
def test_three_steps_and_a_resume(data, tmp_path):
    flags = [*SAVE_EACH_STEP, *data.flags, "-v", 2, "-s", 2, "-g", 20]
    train(*flags, "-o", tmp_path / "whole", "-x", 3)
    train(*flags, "-o", tmp_path / "parts", "-x", 2)
    train(*flags, "-o", tmp_path / "parts", "-x", 3, *RESUME)
    assert same_state(checkpoints(tmp_path / "parts")[-1], checkpoints(tmp_path / "whole")[-1])


def test_o_and_y_alone_go_on_as_the_run_was_started(data, tmp_path):
    flags = [*TINY, *QUIET, *data.flags, "-l", 3e-3, "-d", 192, "-n", 2]
    train(*flags, "-o", tmp_path / "whole", "-x", 6, "-u", 1)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(checkpoints(tmp_path / "parts")[-1])
    train("-o", tmp_path / "parts", *RESUME)
    assert same_state(checkpoints(tmp_path / "parts")[-1], checkpoints(tmp_path / "whole")[-1])


def test_resume_without_a_checkpoint_starts_at_the_beginning(data, tmp_path):
    train(*SAVE_EACH_STEP, *data.flags, "-o", tmp_path / "run", "-x", 2, *RESUME)
    assert sorted(losses(tmp_path / "run")) == [1, 2]


def in_a_write(out):
    """Is a checkpoint being written that is newer than all there are? (Rests of a killed write are not.)"""
    newest = max((path.name for path in checkpoints(out)), default="")
    return any(path.name.removeprefix(".tmp-") > newest for path in out.glob(".tmp-step_*"))


def test_kill_9_at_50_random_moments_loses_nothing(data, tmp_path):
    out, choose, kills_in_a_write = tmp_path / "run", random.Random(7), 0
    flags = [*SAVE_EACH_STEP, *data.flags]
    for i in range(50):
        saved = len(losses(out))
        process = start(*flags, "-nk", 3, "-o", out, "-x", 100000, *RESUME)
        if i % 2 == 0:  # somewhere in the writing of a checkpoint, some steps later
            assert wait_for(lambda: len(losses(out)) > saved + 1, process)
            assert wait_for(lambda: in_a_write(out), process)
            time.sleep(choose.uniform(0, 0.01))
        else:  # anywhere, also while starting
            time.sleep(choose.uniform(0.0, 0.8))
        assert process.poll() is None, f"the trainer ended by itself with {process.returncode}"
        kill(process)
        kills_in_a_write += in_a_write(out)
    assert kills_in_a_write >= 10
    reached = int(checkpoints(out)[-1].name.split("_")[1])
    assert reached > 25
    train(*flags, "-nk", 3, "-o", out, "-x", reached + 2, *RESUME)
    train(*flags, "-n", 0, "-o", tmp_path / "whole", "-x", reached + 2)
    assert same_state(checkpoints(out)[-1], checkpoints(tmp_path / "whole")[-1])
    assert losses(out) == losses(tmp_path / "whole")
    assert not list(out.glob(".tmp-*")), "rests of writes that were killed are still there"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_saves_and_exits_75(number, data, tmp_path):
    flags = [*TINY, *QUIET, *SCHEDULE, *data.flags, "-o", tmp_path / "run"]
    process = start(*flags, "-x", 1000000)
    assert wait_for(lambda: len(losses(tmp_path / "run")) > 3, process)
    process.send_signal(number)
    assert process.wait(timeout=30) == EXIT_INTERRUPTED
    last = max(losses(tmp_path / "run"))
    assert checkpoints(tmp_path / "run")[-1].name == f"step_{last:08d}"
    train(*flags, "-x", last + 2, *RESUME)
    assert max(losses(tmp_path / "run")) == last + 2


def test_under_nohup_a_closed_terminal_does_not_end_the_run(data, tmp_path):
    process = subprocess.Popen(["nohup", *command(*TINY, *QUIET, *data.flags, "-x", 1000000, "-o", tmp_path / "run")],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    assert wait_for(lambda: losses(tmp_path / "run"), process)
    process.send_signal(signal.SIGHUP)
    now = len(losses(tmp_path / "run"))
    assert wait_for(lambda: len(losses(tmp_path / "run")) > now + 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == EXIT_INTERRUPTED


@pytest.mark.parametrize("what", ["removed", "renamed"])
def test_a_run_whose_directory_is_gone_says_so_and_saves_where_it_was(what, data, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(command(*TINY, *QUIET, *data.flags, "-x", 1000000, "-o", out), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert wait_for(lambda: len(losses(out)) > 3, process)
    out.rename(tmp_path / "elsewhere")
    if what == "removed":
        shutil.rmtree(tmp_path / "elsewhere")
    assert process.wait(timeout=30) == EXIT_RUN_FAILED
    assert process.stderr.read().count("was removed or renamed while this run wrote into it") == 1
    assert len(checkpoints(out)) == 1
    train(*TINY, *QUIET, *data.flags, "-o", out, "-x", int(checkpoints(out)[0].name[5:]) + 1, *RESUME)


def test_a_second_sigint_ends_the_run_at_once(data, tmp_path):
    out = tmp_path / "run"
    # Steps of about a second, so that both signals fall into one.
    process = start("-e", "L=8,C=512,NH=8,T=256", "-t", 256, "-b", 16, *QUIET, *data.flags, "-o", out, "-x", 1000)
    assert wait_for(lambda: len(losses(out)) > 0, process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == -signal.SIGINT  # a run that ends its step first exits with 75
    assert checkpoints(out) == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "trainer.json", "config.json"])
@pytest.mark.sanitize
def test_a_corrupt_checkpoint_is_named_and_the_one_before_is_used(name, data, tmp_path):
    flags = [*SAVE_EACH_STEP, *data.flags, "-o", tmp_path / "run"]
    train(*flags, "-x", 3)
    file = checkpoints(tmp_path / "run")[-1] / name
    content = bytearray(file.read_bytes())
    content[len(content) * 2 // 3] ^= 0x10
    file.write_bytes(content)
    result = train(*flags, "-x", 3, *RESUME)
    assert "step_00000003" in result.stdout + result.stderr
    # Going on from step 2 writes step 3 again, whole this time.
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3]
    train(*flags, "-x", 4, *RESUME)


def test_a_truncated_checkpoint_is_skipped(data, tmp_path):
    flags = [*SAVE_EACH_STEP, *data.flags, "-o", tmp_path / "run"]
    train(*flags, "-x", 2)
    os.truncate(checkpoints(tmp_path / "run")[-1] / "model.safetensors", 1000)
    result = train(*flags, "-x", 3, *RESUME)
    assert "step_00000002" in result.stdout + result.stderr
    assert checkpoints(tmp_path / "run")[-1].name == "step_00000003"


def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes then fail with EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_failed_write_leaves_the_previous_checkpoint(data, tmp_path):
    flags = [*SAVE_EACH_STEP, *data.flags, "-o", tmp_path / "run"]
    train(*flags, "-x", 1)
    result = train(*flags, "-x", 3, *RESUME, expect=EXIT_RUN_FAILED, preexec_fn=limit_file_size)
    assert "File too large" in result.stderr
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step_00000001"]
    assert not list((tmp_path / "run").glob(".tmp-*"))
    train(*flags, "-x", 3, *RESUME)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with room for one checkpoint of the tiny model and a half."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"a full disk needs the right to mount a tmpfs: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_a_full_disk_leaves_the_previous_checkpoint(data, small_disk):
    flags = [*SAVE_EACH_STEP, "-nk", 1, *data.flags, "-o", small_disk / "run"]
    train(*flags, "-x", 1)
    kept = [path.name for path in checkpoints(small_disk / "run")]
    result = train(*flags, "-x", 5, *RESUME, expect=EXIT_RUN_FAILED)
    assert "No space left on device" in result.stderr
    assert [path.name for path in checkpoints(small_disk / "run")] == kept
    assert not list((small_disk / "run").glob(".tmp-*"))
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    train(*flags, "-x", 5, *RESUME)
    assert checkpoints(small_disk / "run")[-1].name == "step_00000005"
    assert sorted(losses(small_disk / "run")) == [1, 2, 3, 4, 5]


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


def test_rotation_keeps_the_newest_and_the_major_ones(data, tmp_path):
    train(*SAVE_EACH_STEP, *data.flags, "-nk", 2, "-nm", 4, "-o", tmp_path / "run", "-x", 10)
    assert [int(p.name.split("_")[1]) for p in checkpoints(tmp_path / "run")] == [4, 8, 9, 10]


def test_the_log_of_a_resumed_run_says_how_it_ended(data, tmp_path):
    train(*SAVE_EACH_STEP, *data.flags, "-o", tmp_path / "run", "-x", 2)
    assert len(events(tmp_path / "run", "end")) == 1
