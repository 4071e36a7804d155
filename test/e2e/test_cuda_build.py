"""train_gpt2cu where there is no GPU: it is built, starts, and says what is missing."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

CUDA_TRAINER = ROOT / "train_gpt2cu"
# Where the Makefile looks for it.
NVCC = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin:{ROOT / '.cuda' / 'bin'}") or "none/bin/nvcc"
CUDA = Path(os.environ.get("CUDA", Path(NVCC).parents[1]))
needs_toolkit = pytest.mark.skipif(not (CUDA / "include" / "cuda_runtime.h").exists(), reason="no CUDA toolkit")
has_driver = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


@pytest.mark.skipif(not CUDA_TRAINER.exists(), reason="no train_gpt2cu: it is built where there is nvcc")
@pytest.mark.skipif(has_driver, reason="this machine has a GPU driver")
def test_without_a_driver_it_says_so_in_one_line_and_names_the_cpu_trainer():
    result = subprocess.run([CUDA_TRAINER, "-b", "64", "-t", "1024", "-x", "5000"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "no NVIDIA driver" in result.stderr and "./train_gpt2 " in result.stderr


def compiles(source, flag):
    flags = ["-std=c11", "-D_GNU_SOURCE", flag, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I."]
    command = ["gcc", *flags, "-isystem", CUDA / "include", ROOT / "llmc" / "cuda" / source]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


@needs_toolkit
@pytest.mark.parametrize("source", sorted(path.name for path in (ROOT / "llmc" / "cuda").glob("cudnn_*.c")) + ["attention.c"])
def test_it_compiles_without_the_headers_of_cudnn(source):
    compiles(source, "-DWITHOUT_CUDNN") # the way that a missing cudnn.h takes


@needs_toolkit
@pytest.mark.parametrize("source", sorted(path.name for path in (ROOT / "llmc" / "cuda").glob("nccl*.c")))
def test_it_compiles_without_the_header_of_nccl(source):
    compiles(source, "-DWITHOUT_NCCL") # the way that a missing nccl.h takes


@needs_toolkit
def test_nothing_is_added_by_nccl():
    for path in (ROOT / "llmc" / "cuda").iterdir():
        assert "ncclReduce" not in path.read_text() and "ncclAllReduce" not in path.read_text(), path


# What <math.h> of glibc 2.42 declares for C++.
NEWER_MATH = 'extern "C" {' + "".join(f"{kind} {name}{end}({kind}) noexcept(true);" for name in ("rsqrt", "sinpi", "cospi")
                                      for kind, end in (("double", ""), ("float", "f"))) + "}\n"


@needs_toolkit
@pytest.mark.skipif(not Path(NVCC).exists(), reason="no nvcc")
def test_the_headers_of_the_toolkit_compile_beside_those_of_a_newer_glibc(tmp_path):
    (tmp_path / "newer.h").write_text(f"#pragma once\n#ifdef __cplusplus\n{NEWER_MATH}#endif\n")
    (tmp_path / "kernel.cu").write_text("#include <cmath>\n__global__ void k(float *x) { *x = rsqrtf(*x) + sinpif(*x); }\n")
    subprocess.run([ROOT / "scripts" / "cuda_headers.sh", CUDA / "include", tmp_path / "headers"], check=True)
    command = [NVCC, "-std=c++17", f"-I{tmp_path / 'headers'}", "-include", tmp_path / "newer.h", "-c", tmp_path / "kernel.cu",
               "-o", tmp_path / "kernel.o"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
