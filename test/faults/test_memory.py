"""Memory that is not there: whichever allocation of a run fails, one line says so, and what was saved is whole.
`python test/e2e/test_memory_failures.py [EVERY]` lets every allocation fail, or one of EVERY; half an hour."""
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import EXIT_BAD_INPUT, EXIT_RUN_FAILED, ROOT, TINY, checkpoints, command, train

pytestmark = pytest.mark.skipif("sanitize" in str(os.environ.get("TRAINER")), reason="its malloc cannot be replaced")
SAVING = ["-e", "L=1,C=32,NH=1,T=16", "-t", 16, "-b", 2, "-x", 2, "-n", 1, "-nk", 0, "-s", 2, "-g", 4, "-v", 2, "-m", 1]


def build(directory):
    library = directory / "failing_memory.so"
    source = Path(__file__).with_name("failing_memory.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture(scope="session")
def failing(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


def run(failing, out, data, **environment):
    env = {**os.environ, "LD_PRELOAD": str(failing), "GOMP_SPINCOUNT": "1000", "OMP_NUM_THREADS": "2", **environment}
    return subprocess.run(command(*SAVING, *data, "-o", out), env=env, capture_output=True, text=True, timeout=120,
                          errors="replace", stdin=subprocess.DEVNULL, cwd=ROOT)


def check_failures(failing, directory, data, first, every):
    """The allocations first, first + every, ... of a run fail, one by one; returns how many runs ended for it."""
    counted = directory / "count"
    assert run(failing, directory / "whole", data, FAIL_COUNT=str(counted)).returncode == 0

    def check(n):
        out = directory / str(n)
        # Every second time all that follow fail as well, as they do where a limit was reached: what the run can do
        # without is said first.
        on = n // every % 2 == 1
        result = run(failing, out, data, FAIL_AT=str(n), **({"FAIL_ON": "1"} if on else {}))
        said = f"allocation {n}: exit code {result.returncode}, {result.stderr}"
        lines = [line for line in result.stderr.splitlines() if line]  # libgomp's begins with an empty one
        assert result.returncode in (0, EXIT_RUN_FAILED, EXIT_BAD_INPUT), said
        assert all("memory" in line.lower() or "Resource temporarily" in line for line in lines), said
        assert result.returncode == 0 or len(lines) == 1 or (on and lines), said
        for saved in checkpoints(out):
            step = int(saved.name[5:])
            assert (saved / "model.safetensors").read_bytes() == \
                   (directory / "whole" / saved.name / "model.safetensors").read_bytes(), said
            assert step in (1, 2)
        if n // every % 8 == 0 and result.returncode != 0:
            train(*SAVING, *data, "-o", out, "-y", 1)  # it goes on from what is there
            assert checkpoints(out)[-1].name == "step_00000002"
        shutil.rmtree(out, ignore_errors=True)
        return result.returncode != 0

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(check, range(first, int(counted.read_text()) + 1, every)))


@pytest.mark.slow
def test_every_failed_allocation_is_one_line_and_leaves_whole_checkpoints(failing, data, tmp_path):
    assert check_failures(failing, tmp_path, data.flags, 7, 173) > 10


def test_measuring_the_machine_takes_no_more_memory_than_a_small_run(failing, data):
    """Less than two buffers of 32 MB, which are the least that the caches of a processor asked for."""
    env = {**os.environ, "LD_PRELOAD": str(failing), "FAIL_ABOVE": str(40 << 20)}
    result = train(*TINY, "-v", 0, "-s", 0, "-x", 1, *data.flags, env=env)
    assert "limits      measured now" in result.stdout and result.stderr == ""


if __name__ == "__main__":
    import tempfile

    from conftest import PREPARE, make_text
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        subprocess.run([PREPARE, "-o", place / "shards", make_text(place / "text")], check=True, capture_output=True)
        shards = ["-i", str(place / "shards" / "train_*.bin"), "-j", str(place / "shards" / "val_*.bin")]
        print(check_failures(build(place), place, shards, 1, int(sys.argv[1]) if len(sys.argv) > 1 else 1), "failed")
