"""What the Makefile asks of the compilers, read from the commands that make would run."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NVCC = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin:{ROOT / '.cuda' / 'bin'}")
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")


def commands(*arguments):
    """The lines that `make` with these arguments would run, whatever is built."""
    clean = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "WERROR")}
    return subprocess.run(["make", "-nB", "VERBOSE=1", *arguments], cwd=ROOT, env=clean, check=True,
                          capture_output=True, text=True).stdout.splitlines()


@needs_nvcc
@pytest.mark.parametrize("archs, machine_code, ptx",
                         [("75", "75", ""), ("75 90", "75 90", "90"), ("80", "80", "80")])
def test_ptx_is_embedded_for_newer_gpus_but_none_of_sm_75(archs, machine_code, ptx):
    name = f"build/nvcc-{archs.replace(' ', '-')}/llmc/cuda/probe.o"
    (line,) = [line for line in commands(f"ARCHS={archs}", name) if "-gencode" in line]
    codes = [word.split("code=")[1] for word in line.split() if "code=" in word]
    assert codes == [f"sm_{a}" for a in machine_code.split()] + [f"compute_{a}" for a in ptx.split()]


def test_only_the_tests_and_lint_make_warnings_errors():
    programs = ["train_gpt2", *(["train_gpt2cu", "train_gpt2sim"] if NVCC else [])]
    compiled = [line for line in commands(*programs) if " -c " in line and "-w" not in line.split()]
    assert len(compiled) > 50 and not any("-Werror" in line for line in compiled)
    compiled = [line for line in commands(*programs, "WERROR=1") if " -c " in line and "-w" not in line.split()]
    assert all("-Werror" in line for line in compiled)
    for target in ("test", "test-sanitize", "lint"):
        made = [line for line in commands(target) if "--no-print-directory" in line]
        assert made and all("WERROR=1" in line for line in made), target
