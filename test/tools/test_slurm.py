"""scripts/slurm/*.sbatch: their bodies, run by bash with the real trainer, the real signals and Slurm's variables.

Two commands of Slurm stand on the PATH in place of its own: srun, which starts the tasks with its variables, hands
signals on and ends the tasks when one fails, and scontrol, which writes down what it was asked. Where a job is queued
again, the test starts the body again, as Slurm would. test_slurmd.py does it with a real Slurm.
"""
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from tiny_run import (EXIT_BAD_INPUT, EXIT_INTERRUPTED, SIMULATOR, TINY, call, checkpoints, clean_environment, events, last_step,
                      make_root, same_weights, script, wait_until)

ATTEMPTS = 3
needs_simulator = pytest.mark.skipif(not SIMULATOR.exists(),
                                     reason="train_gpt2sim is not built: that takes a CUDA toolkit")

# What it was asked goes to the file srun_calls.
SRUN = """tasks=${SLURM_NTASKS:-1} kills='' worst=0 pids=()
echo "$*" >>"$(dirname "$0")/srun_calls"
while [[ $1 == --* ]]; do
    case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --kill-on-bad-exit=1) kills=1 ;;
    esac
    shift
done
export SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost SLURM_PROCID=0 SLURM_LOCALID=0
((tasks > 1)) || exec "$@"
trap 'kill -s USR1 "${pids[@]}"' USR1
trap 'kill -s KILL "${pids[@]}"' TERM # as the real one does
declare -A running
for ((i = 0; i < tasks; i++)); do
    SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
    pids+=($!) running[$!]=1
done
while ((${#running[@]} > 0)); do
    ended='' code=0
    wait -n -p ended || code=$?
    if [[ -z $ended ]]; then
        ((code == 127)) || continue # a signal came
        # No task is left for wait -n: bash took note of an end when it ran the trap. It still knows the status.
        set -- "${!running[@]}"
        ended=$1 code=0
        wait "$ended" || code=$?
    fi
    unset "running[$ended]"
    ((worst = code > worst ? code : worst))
    # Slurm does it by messages between its daemons.
    if ((code != 0)) && [[ $kills ]]; then sleep 0.5 && kill -s TERM "${pids[@]}" 2>/dev/null || true; fi
done
exit "$worst"
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
        # Tasks meet at a port that follows from the number of the job: other tests run at the same time.
        self.job, self.restarts, self.processes = random.randrange(1, 1 << 20), 0, []

    def environment(self, name="gpt2_124M", **more):
        slurm = {"SLURM_JOB_ID": self.job, "SLURM_JOB_NAME": name, "SLURM_SUBMIT_DIR": self.root}
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
        assert set(asked) <= {f"requeue {self.job}"}
        return len(asked)

    def interrupted(self, batch, number=signal.SIGUSR1, **options):
        """What a job says that gets the signal, to the batch shell alone, as --signal=B: does, after 20 steps of its own."""
        before = last_step(self.run) if checkpoints(self.run) else 0
        process = self.start(batch, *TINY, "-x", 1000000, **options)
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


def of_tasks(cluster, count, **more):
    """The environment of a job with so many tasks, each with a simulated GPU."""
    return cluster.environment(TRAINER=SIMULATOR, SIM_GPUS=count, SLURM_NTASKS=count,
                               PRETRAIN_CACHE=cluster.root / "tuning", **more)


@needs_simulator
def test_a_job_of_several_gpus_is_interrupted_and_goes_on_to_the_bits_of_one_gpu(cluster):
    for number in (signal.SIGUSR1, signal.SIGTERM):
        said = cluster.interrupted("multi_gpu.sbatch", number, environment=of_tasks(cluster, 2))
        assert cluster.requeues() == 1 and "the trainer ended with 75 after SIG" not in said and "queued again" in said
        assert checkpoints(cluster.run)[-1].name == f"step_{last_step(cluster.run):08d}"
        cluster.restarts += 1
    steps = last_step(cluster.run) + 10
    cluster.finish(cluster.start("multi_gpu.sbatch", *TINY, "-x", steps, environment=of_tasks(cluster, 2)), 0)
    assert cluster.requeues() == 0 and last_step(cluster.run) == steps
    assert [entry["step"] for entry in events(cluster.run, "step")] == list(range(1, steps + 1))
    assert "--ntasks" not in (cluster.bin / "srun_calls").read_text(), "srun takes the number of tasks from the job"
    whole = of_tasks(cluster, 1, OUT=cluster.root / "whole")
    call(cluster.root, "scripts/run_gpt2_124M.sh", *TINY, "-x", steps, "--reduce-groups", 2, expect=0, environment=whole)
    assert same_weights(cluster.run, cluster.root / "whole")


@needs_simulator
def test_a_job_of_several_gpus_ends_for_good_with_bad_options_and_is_queued_again_when_a_task_dies(cluster):
    said = cluster.finish(cluster.start("multi_gpu.sbatch", *TINY, "-d", 33, environment=of_tasks(cluster, 2)),
                          EXIT_BAD_INPUT)
    assert cluster.requeues() == 0 and "the trainer ended with 2" in said
    process = cluster.start("multi_gpu.sbatch", *TINY, "-x", 1000000, environment=of_tasks(cluster, 2))
    wait_until(lambda: last_step(cluster.run, cluster.started) >= 5, process)
    tasks = call(cluster.root, "pgrep", "-s", process.pid, "-f", SIMULATOR.name, expect=0).stdout.split()
    os.kill(int(tasks[-1]), signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGKILL and cluster.requeues() == 1


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
    process = cluster.start("preemptible.sbatch", *TINY, "-x", steps, preexec_fn=no_room_for_checkpoints)
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
    nothing = call(cluster.root, "scripts/sweep_table.py", tmp_path / "empty", expect=2)
    assert "has no run" in nothing.stderr and "Traceback" not in nothing.stderr


def test_the_batch_scripts_ask_slurm_for_the_signal_and_for_requeueing(cluster):
    for name in ("train", "preemptible", "sweep", "multi_gpu"):
        text = (cluster.root / "scripts" / "slurm" / f"{name}.sbatch").read_text()
        asked = re.findall(r"^#SBATCH (\S+)", text, re.MULTILINE)
        assert "--signal=B:USR1@180" in asked and ("--requeue" in asked) == (name != "train")
        # Slurm stops to look for #SBATCH at the first command.
        assert text.index("\nset -euo pipefail\n") > text.rindex("#SBATCH")
