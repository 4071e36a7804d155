"""multi_gpu.sbatch under a real Slurm: slurmctld, slurmd and munged of the user who runs the tests, on this machine, with
files and ports of their own. They are Debian's slurmctld, slurmd, slurm-client and munge."""
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest
from tiny_run import (EXIT_BAD_INPUT, SIMULATOR, TINY, call, checkpoints, clean_environment, events, last_step, make_root,
                      same_weights, wait_for)

DAEMONS = ["munged", "slurmctld", "slurmd"]
missing = [name for name in [*DAEMONS, "sbatch", "srun"] if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}: scripts/install_deps.sh test-all"),
              pytest.mark.skipif(not SIMULATOR.exists(), reason="train_gpt2sim is not built: that takes a CUDA toolkit")]

# One node of 8 GPUs, whose device files are plain files: Slurm only counts them. Queued again, a job waits until it is told to
# start: see resume_now.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={here}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
GresTypes=gpu
KillWait=5
NodeName=localhost NodeAddr=127.0.0.1 CPUs=64 RealMemory=1000000 Gres=gpu:8
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Slurm:
    def __init__(self, directory):
        self.here, self.root, self.daemons = directory, make_root(directory / "root"), []
        self.restarts = 0
        self.run = self.root / "runs" / "gpt2_124M"
        directory.chmod(0o755)  # of the socket; pytest's own directory above is closed to others
        for name in ("state", "spool"):
            (directory / name).mkdir()
        (directory / "munge.key").write_bytes(os.urandom(1024))
        (directory / "munge.key").chmod(0o400)
        for i in range(8):
            (directory / f"gpu{i}").touch()
        (directory / "gres.conf").write_text(f"Name=gpu File={directory}/gpu[0-7]\n")
        (directory / "slurm.conf").write_text(CONFIGURATION.format(
            here=directory, user=pwd.getpwuid(os.getuid()).pw_name, controller=free_port(), node=free_port()))
        self.environment = clean_environment(PATH=f"{os.environ['PATH']}:/usr/sbin", SLURM_CONF=directory / "slurm.conf",
                                             PRETRAIN_CACHE=directory / "tuning", TRAINER=SIMULATOR, SIM_GPUS=8)

    def begin(self):
        files = [f"--{name}={self.here}/munge.{end}" for name, end in (
            ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]
        self.daemon("munged", "--foreground", "--force", *files)
        wait_for((self.here / "munge.socket").exists, self.daemons[-1])
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D", "-N", "localhost")
        assert wait_for(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T").stdout, self.daemons[-1], 60)

    def daemon(self, *command):
        output = open(self.here / f"{command[0]}.out", "wb")
        self.daemons.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                                             stderr=output, start_new_session=True))

    def end(self):
        self.ask("scancel", "--user", pwd.getpwuid(os.getuid()).pw_name)
        for process in self.daemons[::-1]:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ask(self, *command, **options):
        return call(self.root, *command, environment=self.environment, **options)

    def submit(self, *arguments, tasks=2):
        said = self.ask("sbatch", f"--ntasks-per-node={tasks}", f"--gpus-per-node={tasks}",
                        "scripts/slurm/multi_gpu.sbatch", *TINY, *arguments, expect=0).stdout
        self.job = said.split()[-1]

    def shown(self, name):
        found = re.search(rf"\b{name}=(\S+)", self.ask("scontrol", "show", "job", self.job).stdout)
        return found and found[1]

    def output(self):
        return (self.root / f"slurm-gpt2_124M-{self.job}.out").read_text()

    def wait_for_state(self, *states):
        assert wait_for(lambda: self.shown("JobState") in states), self.shown("JobState")

    def resume_now(self):
        """A job that is queued again is eligible after two minutes: now it is. Slurm sets the time more than once."""
        self.restarts += 1
        assert wait_for(lambda: self.output().count("queued again") == self.restarts)
        assert wait_for(lambda: self.shown("JobState") == "PENDING")
        time.sleep(3)  # started within the second in which it ended, it is refused: "Job credential revoked"

        def started():
            if self.shown("JobState") == "PENDING":
                self.ask("scontrol", "update", f"jobid={self.job}", "StartTime=now")
            assert self.shown("JobState") != "FAILED", self.output()
            return self.shown("JobState") == "RUNNING" and self.shown("Restarts") == str(self.restarts)

        assert wait_for(started)


@pytest.fixture
def slurm(tmp_path):
    slurm = Slurm(tmp_path)
    try:
        slurm.begin()
        yield slurm
    finally:
        slurm.end()


@pytest.mark.parametrize("tasks", [2, 4])
def test_a_job_of_several_gpus_is_interrupted_and_goes_on_to_the_bits_of_one_gpu(slurm, tasks):
    steps = 200
    slurm.submit("-x", steps, tasks=tasks)
    # What --signal=B: sends before the time is up; TERM to the batch shell; and to the tasks, as when a job is preempted.
    for flags in (["--batch", "--signal=USR1"], ["--batch", "--signal=TERM"], ["--signal=TERM"]):
        before = last_step(slurm.run)
        assert wait_for(lambda: last_step(slurm.run) >= before + 20)
        slurm.ask("scancel", *flags, slurm.job, expect=0)
        slurm.resume_now()
    slurm.wait_for_state("COMPLETED", "FAILED", "TIMEOUT")
    said = slurm.output()
    assert slurm.shown("JobState") == "COMPLETED" and said.count("the trainer ended with 75") == 3, said
    assert re.search(rf"^processes +{tasks} on 1 machine \(srun\)", said, re.MULTILINE), said
    assert last_step(slurm.run) == steps and len(checkpoints(slurm.run)) >= 2
    assert [entry["step"] for entry in events(slurm.run, "step")] == list(range(1, steps + 1))
    alone = slurm.environment | {"OUT": str(slurm.root / "whole")}
    call(slurm.root, "scripts/run_gpt2_124M.sh", *TINY, "-x", steps, "--reduce-groups", tasks, expect=0, environment=alone)
    assert same_weights(slurm.run, slurm.root / "whole")


def test_a_job_that_is_cancelled_is_saved_and_not_brought_back(slurm):
    slurm.submit("-x", 100000)
    assert wait_for(lambda: last_step(slurm.run) >= 20)
    slurm.ask("scancel", slurm.job, expect=0)
    assert wait_for(lambda: "not queued again" in slurm.output()), slurm.output()
    slurm.wait_for_state("CANCELLED")
    assert [path.name for path in checkpoints(slurm.run)] == [f"step_{last_step(slurm.run):08d}"]


def test_bad_options_end_the_job_for_good(slurm):
    slurm.submit("-d", 33)
    slurm.wait_for_state("COMPLETED", "FAILED")
    assert slurm.shown("ExitCode") == f"{EXIT_BAD_INPUT}:0", slurm.output()


def test_a_task_that_dies_ends_the_others_and_the_job_is_queued_again(slurm):
    slurm.submit("-x", 100000)
    assert wait_for(lambda: last_step(slurm.run) >= 5)
    pids = slurm.ask("scontrol", "listpids", f"{slurm.job}.0", expect=0).stdout.splitlines()[1:]
    tasks = [int(line.split()[0]) for line in pids if line.split()[3] == "1"]
    os.kill(tasks[0], signal.SIGKILL)
    slurm.resume_now()
    assert "the trainer ended with 137" in slurm.output()
