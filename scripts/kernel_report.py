#!/usr/bin/env python3
"""Registers, shared memory and spills of every CUDA kernel, from what ptxas said when it was built (nvcc -Xptxas -v).

    scripts/kernel_report.py build/nvcc-90/llmc/cuda/*.ptxas          (make kernel-report)

One line a kernel, one column an architecture: registers a thread; then "+N spill" bytes stored to local memory because
the registers did not reach, or "+N local" bytes of arrays that are kept there. Spills cost memory traffic in the inner
loop, so they are an error: exit code 1. Kernels that may spill stand in MAY_SPILL, each with a limit and its reason.
Needs nothing but Python; c++filt, where it is installed, makes the names readable.
"""
import re
import shutil
import subprocess
import sys

# Kernel name (without template arguments) -> why a spill there costs nothing.
MAY_SPILL = {  # kernel: (bytes a thread, reason)
    "step_control_kernel": (128, "one thread decides, once a step: a few microseconds whatever it does"),
    "flash_forward_kernel": (8, "on sm_100: two registers, stored before the loop over the keys and read after it"),
    "flash_backward_keys_kernel": (8, "on sm_120: two registers, stored before the loop over the queries and read after it"),
}

COMPILING = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def read(path):
    """{((path, mangled name), architecture): {registers, shared, stack, spill}} of one file."""
    found, current = {}, None
    for line in open(path, encoding="utf-8", errors="replace"):
        if match := COMPILING.search(line):
            key = ((path, match[1]), match[2])  # kernels are static: another file may have one of the same name
            current = found.setdefault(key, {"registers": 0, "shared": 0, "stack": 0, "spill": 0})
        elif current is not None and (match := PROPERTIES.search(line)):
            stack, stores, loads = map(int, match.groups())
            current["stack"] = max(current["stack"], stack)
            current["spill"] = max(current["spill"], stores, loads)
        elif current is not None and (match := USED.search(line)):
            current["registers"], current["shared"] = int(match[1]), int(match[2] or 0)
            current = None
    return found


def demangled(names):
    """{mangled: readable, without parameters and return type}"""
    if not names or not shutil.which("c++filt"):
        return {name: name for name in names}
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return {name: shortened(line) for name, line in zip(names, text.splitlines())}


def shortened(signature):
    """'void scale<__nv_bfloat16, 4>(...)' -> 'scale<bf16, 4>'"""
    depth = 0
    for i, c in enumerate(signature):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and i > 0 and not signature.startswith("(anonymous", i):
            signature = signature[:i]
            break
    signature = re.sub(r"^(static )?void ", "", signature)
    signature = re.sub(r"\((unsigned )?(int|long|bool)\)", "", signature)  # (int)4 -> 4
    return signature.replace("(anonymous namespace)::", "").replace("__nv_bfloat16", "bf16").replace("__half", "fp16")


def cell(kernel):
    if kernel is None:
        return ""
    text = str(kernel["registers"])
    if kernel["spill"]:
        return f"{text} +{kernel['spill']} spill"
    return f"{text} +{kernel['stack']} local" if kernel["stack"] else text


def main(paths):
    if not paths:
        sys.exit(__doc__)
    kernels = {}
    for path in paths:
        kernels.update(read(path))
    if not kernels:
        sys.exit(f"no kernels in {len(paths)} file(s): were they built with -Xptxas -v?")
    readable = demangled(sorted({mangled for (_, mangled), _ in kernels}))
    names = {key: readable[key[1]] for key, _ in kernels}
    archs = sorted({arch for _, arch in kernels}, key=lambda arch: int(re.sub(r"\D", "", arch)))
    width = max(len(name) for name in names.values())
    print(f"{'kernel':{width}}  {'shared':>6}  " + "  ".join(f"{arch:>14}" for arch in archs) + "   (registers a thread)")
    failures = []
    for key, name in sorted(names.items(), key=lambda item: item[1]):
        row = [kernels.get((key, arch)) for arch in archs]
        shared = max(kernel["shared"] for kernel in row if kernel)
        print(f"{name:{width}}  {shared:6}  " + "  ".join(f"{cell(kernel):>14}" for kernel in row))
        allowed, _ = MAY_SPILL.get(name.split("<")[0], (0, ""))
        if any(kernel and kernel["spill"] > allowed for kernel in row):
            failures.append(name)
    for name, (allowed, reason) in MAY_SPILL.items():
        print(f"may spill up to {allowed} bytes: {name}: {reason}")
    print(f"{len(names)} kernels for {', '.join(archs)}; {len(failures)} spill more than they may")
    if failures:
        sys.exit("spills in: " + ", ".join(failures))


if __name__ == "__main__":
    main(sys.argv[1:])
