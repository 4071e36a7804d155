#!/usr/bin/env python3
"""Which tests ran which CUDA kernel: every kernel of the program, for each architecture that has run, or an error.

    scripts/kernel_coverage.py --ptx build/nvcc-75-80-90 --ran build/kernels            (a part of make test)

--ptx: where nvcc left the PTX of the kernels; --ran: a folder of lists that programs on the simulator wrote (SIM_KERNELS),
one file a test program. With --table a line for each kernel, with the architectures and the programs that ran it. Kernels
that are never launched are in NEVER. Exit code 1 when another one was not run by anybody.
"""
import argparse
import re
import sys
from pathlib import Path

from kernel_report import demangled

NEVER = {"probe_kernel": "only asked for its attributes, when the program starts"}
ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+(\w+)", re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ptx", type=Path, required=True)
    parser.add_argument("--ran", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    kernels = {name for path in options.ptx.glob("llmc/cuda/*.ptx") for name in ENTRY.findall(path.read_text())}
    archs, programs = {}, {}
    for path in options.ran.iterdir():
        for line in path.read_text().splitlines():
            _, arch, name = line.split()[:3]
            archs.setdefault(name, set()).add(int(arch))
            programs.setdefault(name, set()).add(path.name)
    names = demangled(sorted(kernels))
    missing = sorted(names[k] for k in kernels - archs.keys() if names[k] not in NEVER)
    if options.table:
        print("| kernel | architectures | run by |\n| --- | --- | --- |")
        for k in sorted(kernels & archs.keys(), key=names.get):
            print(f"| `{names[k]}` | {', '.join(map(str, sorted(archs[k])))} | {', '.join(sorted(programs[k]))} |")
    for name, reason in NEVER.items():
        print(f"never launched: {name}: {reason}")
    print(f"{len(kernels & archs.keys())} of {len(kernels)} kernels were run by a test")
    if missing or not kernels:
        sys.exit("not run by any test: " + (", ".join(missing) or "there are no kernels at all"))


if __name__ == "__main__":
    main()
