"""Limits of the process end in a line or are obeyed: file sizes, stacks, threads, memory, OpenMP's variables, quotas."""
import os
import re
import resource
import shutil
from pathlib import Path

import pytest
from conftest import EXIT_BAD_INPUT, EXIT_RUN_FAILED, PREPARE, QUIET, ROOT, TINY, TRAIN_TOKENIZER, TRAINER, call, checkpoints
from conftest import make_text, train, write_shard

CHOICES, SHARD = ROOT / "data/choices", ROOT / "data/shard"
ONE = ["-e", "L=1,C=64,NH=2,T=32", "-b", "4", *QUIET, "--dtype", "fp32"]


def limited(**limits):
    """A preexec_fn that sets soft and hard limits, such as STACK=65536."""
    return lambda: [resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value)) for name, value in limits.items()]


def unprivileged(*command):
    """A command without the right to raise limits, if we have it."""
    return ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", *command] if os.geteuid() == 0 else command


def threads_of(result):
    return int(re.search(r"^machine .*, (\d+) threads?\b", result.stdout, re.M)[1])


# --------------------------------------------------------------------------------------------------------- files, memory


def test_a_file_that_would_be_too_large_is_an_error_with_the_limit_in_every_program(data, tmp_path):
    text = make_text(tmp_path / "text")
    jsonl = tmp_path / "q.jsonl"
    jsonl.write_text('{"ctx": "%s", "endings": ["a", "b"], "label": 0}\n' % ("word " * 100) * 300)
    out = tmp_path / "out"
    for name, command in {
        "trainer": [TRAINER, *TINY, *QUIET, *data.flags, "-x", 2, "-o", out / "run"],
        "export": [TRAINER, *TINY, *QUIET, "-e", "L=2,C=64,NH=2,T=32,V=257", "-x", 0, "--export", out / "exported"],
        "prepare": [PREPARE, "-o", out / "shards", text],
        "train_tokenizer": [TRAIN_TOKENIZER, "--vocab", 300, "-o", out / "tokenizer.json", text],
        "choices": [CHOICES, "--tokenizer", "bytes", jsonl, "-o", out / "q.bin"],
    }.items():
        out.mkdir(exist_ok=True)
        result = call(*command, expect=EXIT_RUN_FAILED, preexec_fn=limited(FSIZE=2000))
        said = [line for line in result.stderr.splitlines() if "this log" not in line and "TensorBoard" not in line]
        assert "File too large (limit of this process: 2000 bytes, ulimit -f)" in said[-1], (name, result.stderr)
        left = [path for path in out.rglob("*") if path.suffix in (".safetensors", ".bin") or ".tmp-" in path.name]
        assert not left or name == "prepare", f"{name} left {left}"  # which resumes from what it has
        shutil.rmtree(out)


def test_address_space_counts_as_memory(data):
    result = train(*ONE, *data.flags, "-e", "L=4,C=512,NH=8,T=256", "-t", 256, "-x", 1, "--threads", 1,
                   expect=EXIT_BAD_INPUT, preexec_fn=limited(AS=200 << 20))
    needs, has = map(int, re.search(r"needs (\d+) MiB, but only (\d+) MiB is available", result.stderr).groups())
    assert needs > has and has < 200


@pytest.mark.parametrize("limit", ["AS", "DATA"])
def test_an_automatic_batch_fits_into_the_limits_of_the_process(limit, data):
    def batch(**options):
        said = train(*ONE, *data.flags, "-b", "auto", "-x", 1, "--threads", 1, **options).stdout
        return int(re.search(r"^batch .*, (\d+) at a time$", said, re.M)[1])

    assert 1 < batch(preexec_fn=limited(**{limit: 350 << 20})) < batch(preexec_fn=limited(**{limit: 500 << 20}))


def test_only_the_hard_limit_of_open_files_counts(tmp_path):
    for i in range(40):
        write_shard(tmp_path / f"train_{i:02d}.bin", [7] * 100, vocab=257)
    flags = [*ONE, "-i", tmp_path / "train_*.bin", "-x", 1, "--threads", 1]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    train(*flags, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard)))
    result = call(*unprivileged(*map(str, [TRAINER, *flags])), preexec_fn=limited(NOFILE=20), expect=EXIT_BAD_INPUT)
    assert re.search(r"Too many open files \(limit of this process: 20 files, ulimit -n\)", result.stderr)


# --------------------------------------------------------------------------------------------------------------- stacks


@pytest.mark.parametrize("kib", [64, 256])
def test_a_small_stack_is_enough_or_is_named(kib, data, tmp_path):
    programs = {"trainer": [TRAINER, *ONE, *data.flags, "-x", 1, "--threads", 2, "-o", tmp_path / "run"],
                "prepare": [PREPARE, "-o", tmp_path / "shards", make_text(tmp_path / "text")],
                "shard": [SHARD, "verify", data.train]}
    for name, command in programs.items():
        result = call(*unprivileged(*command), preexec_fn=limited(STACK=kib << 10))
        if kib == 64:
            assert result.returncode == EXIT_RUN_FAILED and "ulimit -s" in result.stderr, (name, result)
        else:
            assert result.returncode == 0, (name, result.returncode, result.stderr)


@pytest.mark.parametrize("size", ["16k", "1000G", "1", "x"])
def test_stacks_of_threads_do_not_depend_on_the_environment(size, data):
    for name in ("OMP_STACKSIZE", "GOMP_STACKSIZE"):
        train(*ONE, *data.flags, "-x", 1, "--threads", 2, env={**os.environ, name: size})


# -------------------------------------------------------------------------------------------------------------- threads


def test_absurd_openmp_variables_change_nothing_or_are_named(data, tmp_path):
    def loss(**variables):
        result = train(*ONE, *data.flags, "-x", 1, env={**os.environ, **variables})
        return re.search(r"loss ([\d.]+) \| norm ([\d.]+)", result.stdout).groups(), threads_of(result)

    expected, _ = loss(OMP_NUM_THREADS="1")
    for variables, threads in [({"OMP_NUM_THREADS": "4,2"}, 4), ({"OMP_NUM_THREADS": "3", "OMP_THREAD_LIMIT": "1"}, 1),
                               ({"OMP_NUM_THREADS": "3", "OMP_DYNAMIC": "true"}, 3),
                               ({"OMP_NUM_THREADS": "2", "OMP_MAX_ACTIVE_LEVELS": "0"}, 2),
                               ({"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "spread"}, 2),
                               ({"OMP_NUM_THREADS": "2", "OMP_PLACES": "{77}"}, 2),
                               ({"OMP_NUM_THREADS": "2", "GOMP_CPU_AFFINITY": "99"}, 2),
                               ({"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "nonsense"}, 2),
                               ({"OMP_NUM_THREADS": "0"}, None), ({"OMP_NUM_THREADS": "all"}, None)]:
        found, count = loss(**variables)
        assert found == expected and (threads is None or count == threads), (variables, found, count)


def test_threads_that_cannot_be_started_are_named_with_the_limits(data, tmp_path):
    space = {"preexec_fn": limited(AS=3 << 30)}
    result = train(*ONE, *data.flags, "-x", 1, "--threads", 1000, expect=EXIT_RUN_FAILED, **space)
    assert re.search(r"cannot start thread \d+ of 1000: .*ulimit -u.*ulimit -v.*--threads", result.stderr)
    prepared = call(PREPARE, "-o", tmp_path / "shards", "--threads", 1000, make_text(tmp_path / "text"), **space)
    assert prepared.returncode == EXIT_RUN_FAILED and re.search("cannot start a thread: .*ulimit|memory", prepared.stderr)


# --------------------------------------------------------------------------------------------------------------- quotas


@pytest.fixture
def half_a_processor():
    """The file cgroup.procs of a control group with half a processor's time, version 1 or 2."""
    first = Path("/sys/fs/cgroup/cpu")
    group = (first if first.is_dir() else Path("/sys/fs/cgroup")) / f"pretrain-{os.getpid()}"
    try:
        group.mkdir()
        if first.is_dir():
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("50000")
        else:
            (group / "cpu.max").write_text("50000 100000")
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"a control group needs the right to make one: {error}")
    yield group / "cgroup.procs"
    group.rmdir()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_a_quota_of_processor_time_is_the_default_number_of_threads(half_a_processor, data):
    unset = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    inside = {"preexec_fn": lambda: half_a_processor.write_text(str(os.getpid())), "env": unset}
    result = train(*ONE, *data.flags, "-x", 1, **inside)
    assert re.search(r"^machine .*, 1 thread \(a quota of 0.5 processors\), ", result.stdout, re.M)
    assert threads_of(train(*ONE, *data.flags, "-x", 1, "--threads", 2, **inside)) == 2
    assert threads_of(train(*ONE, *data.flags, "-x", 1, **{**inside, "env": {**unset, "OMP_NUM_THREADS": "2"}})) == 2
    assert checkpoints(data.directory) == []
