"""Compilers other than that of the build under test, each with a build directory of its own.

A whole build takes a minute on two cores. So it is made with the oldest GCC and the newest of each
family: no warning, the same shards, and with each vector code of this machine the same bits after
some steps. The oldest clang reads the sources and writes nothing.

A compiler that is not installed is skipped by name; `scripts/install_deps.sh compilers` installs
what the distribution has. Debian has LLVM's OpenMP installed for one version only: that of another
clang is unpacked into the test's directory.
"""
import os
import re
import shutil
from pathlib import Path

import pytest
from runs import ROOT, TRAINER, call
from test_build import CODES, commands, make

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(os.environ.get("OTHER_COMPILERS") == "0",
                                 reason="the Makefile and llmc/base/*.h are those of 20 commits ago: make test-release")]

BUILT = ["gcc-11", "gcc-14", "clang-19"]
READ = ["clang-14"]
PROGRAMS = ["train_gpt2", *(path.stem for path in (ROOT / "data").glob("*.c") if path.stem != "tool")]
MODEL = "-e L=2,C=64,NH=2,T=64 -b 4 -x 5 -l 1e-3 -v 0 -s 0 --threads 2".split()


def settings(compiler, directory):
    """The variables of make for this compiler, if it is here."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    variables = [f"CC={compiler}", f"BUILD=build/{compiler}", "CUDA=none", "MPICC=none", "WERROR=1"]
    family, _, version = compiler.partition("-")
    omp = "lib/clang/*/include/omp.h"
    if family == "clang" and not any(Path(f"/usr/lib/llvm-{version}").glob(omp)):
        packages = [f"libomp-{version}-dev", f"libomp5-{version}"]
        if call("apt-get", "download", *packages, cwd=directory).returncode:
            pytest.skip(f"{compiler}: apt-get downloads no {' and '.join(packages)}")
        for package in directory.glob("*.deb"):
            call("dpkg", "-x", package, directory, expect=0)
        llvm = directory / "usr" / "lib" / f"llvm-{version}"
        (header,) = llvm.glob(omp)
        variables += [f"CPPFLAGS=-idirafter {header.parent}",
                      f"LDFLAGS=-L{llvm}/lib -Wl,-rpath,{llvm}/lib"]
    return variables


@pytest.mark.parametrize("compiler", READ)
def test_no_compiler_warns(compiler, tmp_path):
    programs = [f"build/{compiler}/{program}" for program in PROGRAMS]
    lines = [line for line in commands(*settings(compiler, tmp_path), *programs) if " -c " in line]
    read = [re.sub(r" -MMD -MP (-x c )?-c (\S+) -o .*", r" \1-fsyntax-only \2", line)
            for line in lines]
    assert len(read) > 100 and all("-fsyntax-only" in line for line in read)
    call("xargs", "-d", "\\n", "-P", os.cpu_count(), "-I{}", "sh", "-c", "{}",
         input="\n".join(read), cwd=ROOT, timeout=3600, expect=0)


def results(trainer, prepare, directory):
    """{name: bytes} of what the programs make: shards, and weights and moments after some steps."""
    directory.mkdir()
    text = ROOT / "llmc" / "base"
    call(prepare, "--tokenizer", "bytes", "-o", "shards", text, cwd=directory, expect=0)
    for code in CODES:
        for dtype in ("fp32", "bf16"):
            run = call(trainer, *MODEL, "--dtype", dtype, "-i", "shards/train_*.bin",
                       "-o", f"{code}-{dtype}", cwd=directory, env={**os.environ, "PRETRAIN_CPU": code})
            # Not every processor runs the others.
            assert run.returncode == 0 or code != "baseline", run.stderr
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*")
            if path.suffix in (".bin", ".safetensors")}


@pytest.mark.parametrize("compiler", BUILT)
def test_a_build_has_no_warning_and_trains_to_the_same_bits(compiler, tmp_path):
    build = Path("build", compiler)
    programs = [build / program for program in PROGRAMS]
    made = make("-s", f"-j{os.cpu_count()}", *settings(compiler, tmp_path), *programs, timeout=3600)
    assert made.returncode == 0, made.stderr
    want = results(TRAINER, ROOT / "data" / "prepare", tmp_path / "want")
    found = results(ROOT / build / "train_gpt2", ROOT / build / "prepare", tmp_path / "found")
    assert "baseline-fp32/step_00000005/optimizer.safetensors" in want
    assert sorted(found) == sorted(want)
    assert [name for name in want if found[name] != want[name]] == []
