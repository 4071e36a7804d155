#!/usr/bin/env python3
"""Assembles the PTX that nvcc left with the ptxas of the oldest toolkit that the trainer is said to build with, 12.4:
the only check of that without the whole toolkit, whose front end stays unproven. Newer versions of the PTX ISA only add
to older ones, so a file that uses nothing new passes with its version line lowered.

    dev/oldest_ptxas.py build/nvcc-90/llmc/cuda/*.compute_90.ptx

ptxas is a file of a Python wheel of NVIDIA's (22 MB), fetched by pip into build/ptxas-12.4. Fails where a file is
refused, or with a warning, such as that of a spill.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WHEEL, PTX_ISA = "nvidia-cuda-nvcc-cu12==12.4.131", "8.4"
FOLDER = Path(__file__).resolve().parents[1] / "build" / "ptxas-12.4"


def fetch():
    program = FOLDER / "ptxas"
    if program.exists():
        return program
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", directory, WHEEL],
                       check=True)
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unfinished = FOLDER / f"ptxas.{os.getpid()}"
            unfinished.write_bytes(archive.read("nvidia/cuda_nvcc/bin/ptxas"))
    unfinished.chmod(0o755)
    return unfinished.rename(program)


def assemble(ptxas, path):
    """What ptxas says against a file; "": nothing."""
    (arch,) = re.findall(r"\.compute_(\d+)\.ptx$", path.name)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as lowered:
        lowered.write(re.sub(r"^\.version .*", f".version {PTX_ISA}", path.read_text(), count=1, flags=re.MULTILINE))
        lowered.flush()
        done = subprocess.run([ptxas, f"-arch=sm_{arch}", "-o", "/dev/null", lowered.name], capture_output=True, text=True)
    return "" if done.returncode == 0 and not done.stderr.strip() else f"{path}: {done.stderr.strip() or done.stdout.strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="PTX", help="NAME.compute_ARCH.ptx; ARCH is at most 90")
    parser.add_argument("--ptxas", help="the program, instead of the one that is fetched")
    options = parser.parse_args()
    ptxas = options.ptxas or fetch()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        said = [text for text in pool.map(lambda path: assemble(ptxas, path), options.files) if text]
    print("\n".join(said) if said else f"ptxas of CUDA 12.4 takes {len(options.files)} files")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
