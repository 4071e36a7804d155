"""scripts/slurm/*.sbatch: their bodies, run by bash with the real trainer, the real signals and Slurm's variables.

Two commands of Slurm stand on the PATH in place of its own: srun, which only starts its command (where Slurm runs, it
also hands signals on), and scontrol, which writes down what it was asked. Where a job is queued again, the test
starts the body again, as Slurm would.
"""
import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from tiny_run import (EXIT_BAD_INPUT, EXIT_INTERRUPTED, TINY, call, checkpoints, clean_environment, events, last_step,
                      make_root, same_weights, script, wait_until)

ATTEMPTS = 3

SRUN = """while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
# The state that `show job` tells is in the file state; a file no_requeue makes requeueing fail.
SCONTROL = """cd "$(dirname "$0")"
if [[ $1 == show ]]; then
    echo "JobId=$3 JobName=x JobState=$(cat state) Reason=None"
else
    echo "$*" >>calls
    [[ ! -e no_requeue ]]
fi
"""


class Cluster:
    """A repository, and a Slurm that knows one job."""

    def __init__(self, directory):
        self.root, self.bin = make_root(directory / "root"), directory / "bin"
        script(self.bin / "srun", SRUN), script(self.bin / "scontrol", SCONTROL)
        (self.bin / "state").write_text("RUNNING")
        self.run = self.root / "runs" / "gpt2_124M"  # the job's name says so
        self.restarts, self.processes = 0, []

    def environment(self, name="gpt2_124M", **more):
        slurm = {"SLURM_JOB_ID": 4711, "SLURM_JOB_NAME": name, "SLURM_SUBMIT_DIR": self.root}
        if self.restarts:  # Slurm does not set it on the first start
            slurm["SLURM_RESTART_COUNT"] = self.restarts
        return clean_environment(**{**slurm, "PATH": f"{self.bin}:{os.environ['PATH']}", **more})

    def start(self, batch, *arguments, environment=None, **options):
        """Slurm runs a copy of the script from a directory of its own."""
        self.started = time.time()
        spool = self.bin / "slurm_script"
        spool.write_bytes((self.root / "scripts" / "slurm" / batch).read_bytes())
        command = ["bash", str(spool), *map(str, arguments)]
        self.processes.append(subprocess.Popen(command, env=environment or self.environment(), cwd="/", text=True,
                                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                               stderr=subprocess.PIPE, start_new_session=True, **options))
        return self.processes[-1]

    def end(self):
        """Nothing outlives a test, also not one that failed."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def finish(self, process, expect, seconds=300):
        _, said = process.communicate(timeout=seconds)
        assert process.returncode == expect, said
        return said

    def requeues(self):
        """What scontrol was asked since the last look."""
        calls = self.bin / "calls"
        asked = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        assert set(asked) <= {"requeue 4711"}
        return len(asked)

    def interrupted(self, batch, number=signal.SIGUSR1):
        """What a job says that gets the signal, to the batch shell alone, as --signal=B: does, after 20 steps of its own."""
        before = last_step(self.run) if checkpoints(self.run) else 0
        process = self.start(batch, *TINY, "-x", 1000000)
        wait_until(lambda: last_step(self.run, self.started) >= before + 20, process)
        process.send_signal(number)
        return self.finish(process, EXIT_INTERRUPTED)


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGUSR1] * ATTEMPTS],
                         ids=["TERM", "USR1_as_often_as_there_are_attempts"])
def test_a_job_that_is_interrupted_goes_on_to_the_same_bits(cluster, numbers):
    for number in numbers:
        said = cluster.interrupted("preemptible.sbatch", number)
        assert cluster.requeues() == 1 and "queued again" in said
        assert checkpoints(cluster.run)[-1].name == f"step_{last_step(cluster.run):08d}"
        cluster.restarts += 1
    steps = last_step(cluster.run) + 10
    cluster.finish(cluster.start("preemptible.sbatch", *TINY, "-x", steps), 0)
    assert cluster.requeues() == 0, "a job that is done is not queued again"
    assert last_step(cluster.run) == steps
    assert [entry["step"] for entry in events(cluster.run, "step")] == list(range(1, steps + 1))
    call(cluster.root, "scripts/run_gpt2_124M.sh", *TINY, "-x", steps, expect=0,
         environment=clean_environment(OUT=cluster.root / "whole"))
    assert same_weights(cluster.run, cluster.root / "whole")


@pytest.mark.parametrize("when", ["before the trainer is up", "while the trainer is being started"])
def test_a_signal_queues_the_job_again(cluster, when):
    """The second comes while the batch shell looks for checkpoints, and is passed on as soon as there is a process."""
    reached, go = cluster.run / "attempts", cluster.root / "go"  # the last file that is written before
    if when == "while the trainer is being started":
        reached = cluster.root / "reached"
        script(cluster.bin / "sort", f"touch {reached}\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec {shutil.which('sort')}\n")
    process = cluster.start("preemptible.sbatch", *TINY, "-x", 1000000)  # where this machine is busy it may be up by then
    wait_until(reached.exists, process)
    process.send_signal(signal.SIGUSR1)
    go.touch()
    process.communicate(timeout=300)
    # Ended by the signal, if it was not yet ready to handle it.
    assert process.returncode in (EXIT_INTERRUPTED, 128 + signal.SIGUSR1)
    assert cluster.requeues() == 1
    cluster.restarts = 1
    steps = 30 + (last_step(cluster.run) if checkpoints(cluster.run) else 0)
    cluster.finish(cluster.start("preemptible.sbatch", *TINY, "-x", steps), 0)
    assert last_step(cluster.run) == steps and cluster.requeues() == 0


def test_bad_options_end_the_job_for_good(cluster):
    said = cluster.finish(cluster.start("preemptible.sbatch", *TINY, "-x", "many"), EXIT_BAD_INPUT)
    assert cluster.requeues() == 0 and "the trainer ended with 2" in said


def no_room_for_checkpoints():
    """Files end at 64 KiB: the log is written, a checkpoint of 100 KiB is not. Bash, too, must live to tell."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))


def fail_once(cluster, steps=20):
    """Fails at the end of a run, when it is to be saved; exit code 1."""
    process = cluster.start("preemptible.sbatch", *TINY, "--tensorboard", 0, "-x", steps,
                            preexec_fn=no_room_for_checkpoints)
    said = cluster.finish(process, 1)
    cluster.restarts += 1
    return said


def test_three_failures_without_progress_end_the_requeueing(cluster):
    for attempt in range(1, ATTEMPTS + 1):
        said = fail_once(cluster)
        assert f"attempt {attempt} from the beginning" in said
        assert cluster.requeues() == (1 if attempt < ATTEMPTS else 0)
    assert "3 attempts from the beginning brought no new checkpoint: not queued again" in said
    cluster.restarts = 0  # submitted anew: it may fail as often again
    assert "attempt 1 from the beginning" in fail_once(cluster) and cluster.requeues() == 1


def test_a_new_checkpoint_resets_the_count_of_failures(cluster):
    for _ in range(ATTEMPTS - 1):
        fail_once(cluster)
    cluster.interrupted("preemptible.sbatch")
    cluster.restarts += 1
    assert cluster.requeues() == ATTEMPTS
    said = fail_once(cluster, last_step(cluster.run) + 20)
    assert re.search(r"attempt 1 from step_0000\d+", said) and cluster.requeues() == 1


def test_a_node_that_keeps_dying_does_not_run_the_job_for_ever(cluster):
    for attempt in range(1, ATTEMPTS + 1):
        process = cluster.start("preemptible.sbatch", *TINY, "-x", 1000000)
        attempts = cluster.run / "attempts"
        wait_until(lambda: attempts.exists() and attempts.read_text() == f"{attempt} \n", process)
        os.killpg(process.pid, signal.SIGKILL)  # Slurm starts the job again by itself
        process.communicate(timeout=300)
        cluster.restarts += 1
    assert cluster.requeues() == 0
    said = cluster.finish(cluster.start("preemptible.sbatch", *TINY, "-x", 1000000), 1)
    assert "3 attempts from the beginning brought no new checkpoint: giving up" in said and cluster.requeues() == 0


def test_a_job_that_was_cancelled_is_saved_and_not_brought_back(cluster):
    process = cluster.start("preemptible.sbatch", *TINY, "-x", 1000000)
    wait_until(lambda: last_step(cluster.run) > 20, process)
    (cluster.bin / "state").write_text("COMPLETING")  # what Slurm 22.05 says of a job between scancel and its end
    process.send_signal(signal.SIGTERM)
    assert "cancelled" in cluster.finish(process, EXIT_INTERRUPTED)
    assert cluster.requeues() == 0 and len(checkpoints(cluster.run)) == 1


def test_a_cluster_that_refuses_to_requeue_is_reported(cluster):
    (cluster.bin / "no_requeue").touch()
    assert "scontrol requeue failed; resume with the same sbatch command" in cluster.interrupted("preemptible.sbatch")


def test_the_plain_job_saves_at_its_time_limit_and_the_same_command_goes_on(cluster):
    cluster.interrupted("train.sbatch")
    stopped = last_step(cluster.run)
    assert checkpoints(cluster.run)[-1].name == f"step_{stopped:08d}"
    cluster.finish(cluster.start("train.sbatch", *TINY, "-x", stopped + 10), 0)
    assert last_step(cluster.run) == stopped + 10 and cluster.requeues() == 0


def test_a_sweep_runs_each_rate_and_ends_with_the_table(cluster):
    rates = ["1e-5", "3e-3"]
    for task, rate in enumerate(rates):
        environment = cluster.environment("sweep_gpt2_124M", SLURM_ARRAY_TASK_ID=task, LRS=" ".join(rates))
        flags = [*TINY, "-v", 30, "-x", 60, "-o", cluster.root / "runs" / "sweep_gpt2_124M" / f"lr_{rate}"]
        table = call(cluster.root, "bash", "scripts/slurm/sweep.sbatch", *flags[:-2], environment=environment, expect=0)
    lines = [line for line in table.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["learning-rate", "steps", "train loss", "best val loss", "tok/s (median)"] and len(cells) == 4
    assert {row[0] for row in cells[2:]} == {"1e-05", "0.003"} and all(row[1] == "60" for row in cells[2:])
    assert float(cells[2][3]) < float(cells[3][3]), "the best stands first"
    for row in cells[2:]:
        run = cluster.root / "runs" / "sweep_gpt2_124M" / ("lr_3e-3" if row[0] == "0.003" else "lr_1e-5")
        assert float(row[3]) == pytest.approx(min(v["loss"] for v in events(run, "validation")), abs=1e-4)
        assert events(run, "run")[0]["options"]["learning-rate"] == float(row[0])


def test_a_task_without_a_learning_rate_says_how_to_submit(cluster):
    environment = cluster.environment("sweep_gpt2_124M", SLURM_ARRAY_TASK_ID=2, LRS="1e-4 2e-4")
    result = call(cluster.root, "bash", "scripts/slurm/sweep.sbatch", environment=environment, expect=EXIT_BAD_INPUT)
    assert "--array=0-1" in result.stderr


def test_the_table_marks_what_is_unfinished_and_has_a_line_for_an_empty_directory(cluster, tmp_path):
    run = tmp_path / "sweep" / "a"
    run.mkdir(parents=True)
    (run / "main.log").write_text('{"event":"run","options":{"seed":1,"output":"x"},"total_steps":9}\n'
                                  '{"event":"step","step":4,"loss":2.5,"tokens_per_second":100}\n{"event":"st')
    table = call(cluster.root, "scripts/sweep_table.py", tmp_path / "sweep", "--vary", "seed")
    assert "| 1    | 4 of 9 | 2.5000     | -             | 100            |" in table.stdout
    (tmp_path / "empty").mkdir()
    nothing = call(cluster.root, "scripts/sweep_table.py", tmp_path / "empty", expect=1)
    assert "has no run" in nothing.stderr and "Traceback" not in nothing.stderr


def test_the_batch_scripts_ask_slurm_for_the_signal_and_for_requeueing(cluster):
    for name in ("train", "preemptible", "sweep"):
        text = (cluster.root / "scripts" / "slurm" / f"{name}.sbatch").read_text()
        asked = re.findall(r"^#SBATCH (\S+)", text, re.MULTILINE)
        assert "--signal=B:USR1@180" in asked and ("--requeue" in asked) == (name != "train")
        # Slurm stops to look for #SBATCH at the first command.
        assert text.index("\nset -euo pipefail\n") > text.rindex("#SBATCH")
