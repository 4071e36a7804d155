"""What the fault tests share: the library that makes calls fail and records them, tiny runs, and what must hold after."""
import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from e2e.conftest import (EXIT_BAD_INPUT, EXIT_RUN_FAILED, PREPARE, ROOT, TRAINER, checkpoints, data, losses,  # noqa: F401
                          make_text)

SANITIZED = "sanitize" in str(os.environ.get("TRAINER"))
CLASSES = ("open", "read", "write", "fsync", "rename", "readdir", "mkdir", "close", "unlink", "truncate", "stat", "lock",
           "malloc")
# The smallest model that there is, with evaluations and samples, and a schedule that does not depend on -x.
SMALL = ["-e", "L=1,C=32,NH=1,T=16", "-t", "16", "-b", "2", "-k", "constant", "-u", "2"]
# No choices of earlier runs, and no threads that wait in loops.
ENVIRONMENT = {**os.environ, "PRETRAIN_CACHE": "off", "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}


class Shim:
    """Programs under faults.c."""

    def __init__(self, directory):
        self.library = directory / "faults.so"
        source = Path(__file__).with_name("faults.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", self.library, source], check=True)

    def run(self, command, **settings):
        env = {**ENVIRONMENT, "LD_PRELOAD": str(self.library),
               **({"FAULT_CLOCK": "500"} if command[0] == TRAINER else {}), **{k: str(v) for k, v in settings.items()}}
        return subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, timeout=600,
                              errors="replace", stdin=subprocess.DEVNULL, cwd=ROOT)

    @staticmethod
    def counts(path):
        """How often each class of calls was made, and how many failed, and the file of the first that did."""
        content = path.read_bytes()
        numbers = struct.unpack_from(f"={len(CLASSES) + 1}q", content)
        return dict(zip(CLASSES, numbers)), numbers[-1], content[8 * len(numbers):].split(b"\0")[0].decode(errors="replace")


def build(directory):
    if platform.machine() != "x86_64":
        pytest.skip("faults.c knows only the system calls of x86-64")
    if SANITIZED:
        pytest.skip("its malloc cannot be replaced")
    return Shim(directory)


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    return build(tmp_path_factory.mktemp("shim"))


def state_of(checkpoint):
    """The bytes of a checkpoint that count: weights, moments, and the small files but for times."""
    return {file.name: file.read_bytes() for file in sorted(checkpoint.iterdir()) if file.name != "trainer.json"}


def copy(source, target):
    if source.exists():
        shutil.copytree(source, target)
    return target


def files_of(directory):
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in sorted(directory.rglob("*")) if path.is_file()}
