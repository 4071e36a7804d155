#!/usr/bin/env python3
"""Registers, shared memory and spills of every CUDA kernel, from the output of ptxas at build time (nvcc -Xptxas -v).

    dev/kernel_report.py build/nvcc-90/llmc/cuda/*.ptxas          (make kernel-report)
    dev/kernel_report.py --ran build/kernels FILE.ptxas ...       (a part of make test-all)
    dev/kernel_report.py --elements [--write dev/bench/README.md] build/nvcc-90/llmc/cuda/*.o

One line a kernel, one column an architecture: registers a thread; then "+N spill" bytes stored to local memory because
the registers did not suffice, or "+N local" bytes of arrays kept there. Spills cost memory traffic in the inner
loop, so they are an error: exit code 1. Kernels that may spill are in MAY_SPILL, each with a limit and its reason.
--ran: a folder of lists that programs on the simulator wrote (SIM_KERNELS), one file a program. The line then also has
the largest block, the max dynamic shared memory and the programs, and it is an error if no program ran a kernel, or
if a launch does not fit a GPU: its shared memory, its registers, or the kernel's __launch_bounds__ (from the PTX
next to FILE.ptxas). Needs only Python; c++filt, if installed, makes the names readable.
--elements: from the machine code for sm_90 (cuobjdump of the CUDA toolkit), the instructions that the memory-bound
kernels and our attention execute for each element, next to the bytes they move; --write puts the table into the page.
"""
import argparse
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
import tool  # noqa: E402

# Kernel name (without template arguments) -> why a spill there costs nothing.
MAY_SPILL = {  # kernel: (bytes a thread, reason)
    "step_control_kernel": (128, "one thread decides, once a step: a few microseconds whatever it does"),
    "flash_forward_kernel": (8, "on sm_100: two registers, stored before the loop over the keys and read after it"),
    "flash_backward_keys_kernel": (4, "on sm_75 with heads of 128: one register, stored before the loop over the queries"),
}

# Shared memory of a block in KB, registers of a block (CUDA C++ Programming Guide, technical specifications).
SHARED_KB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
REGISTERS = 65536

# What --elements counts: kernel, its instance for 124M in bf16, and parts (loop in order of its place, or None for the
# whole kernel; elements of a thread in one pass through it); bytes of device memory an element, and what it is one of.
ELEMENTS = [
    ("layernorm forward", "layernorm_forward_kernel<bf16, 24, false, false>", [(None, 24)], 4, "activation"),
    ("layernorm backward", "layernorm_backward_kernel<bf16, 24, false, false>", [(0, 24)], 8, "activation"),
    ("GELU forward", "activation_kernel<bf16, Gelu, false>", [(None, 16)], 4, "activation"),
    ("GELU backward", "activation_kernel<bf16, Gelu, true>", [(None, 16)], 6, "activation"),
    ("GELU backward, with the bias gradient", "bias_backward_kernel<bf16, 8, Gelu>", [(0, 32)], 6, "activation"),
    ("bias gradient", "bias_backward_kernel<bf16, 8, void>", [(0, 64)], 2, "activation"),
    ("cross-entropy, forward and backward", "shared_memory_kernel<bf16>", [(0, 56), (1, 16), (2, 16)], 4, "logit"),
    ("RMSNorm forward", "layernorm_forward_kernel<bf16, 24, false, true>", [(None, 24)], 4, "activation"),
    ("RMSNorm backward", "layernorm_backward_kernel<bf16, 24, false, true>", [(0, 24)], 8, "activation"),
    ("QK-norm and RoPE forward", "qk_norm_rope_kernel<bf16>", [(None, 16)], 4, "activation"),
    ("QK-norm and RoPE backward", "qk_norm_backward_kernel<bf16>", [(1, 16)], 6, "activation"),
    ("SwiGLU forward", "swiglu_forward_kernel<bf16, 8>", [(None, 8)], 6, "activation"),
    ("SwiGLU backward", "swiglu_backward_kernel<bf16, 8>", [(None, 8)], 10, "activation"),
    ("our attention, forward", "flash_forward_kernel<Ampere, bf16, 64>", [(0, 64)], 0, "score"),
    ("our attention, backward, queries", "flash_backward_queries_kernel<Ampere, bf16, 64>", [(0, 32)], 0, "score"),
    ("our attention, backward, keys", "flash_backward_keys_kernel<Ampere, bf16, 64>", [(1, 32)], 0, "score"),
]
# An H200: lanes that issue in a second (multiprocessors x 4 schedulers x 32 x clock), exponentials and the like (16 a
# clock and multiprocessor), and the bytes of a copy (79% of the datasheet: dev/bench/predict.py).
LANES, SPECIAL, COPY = 132 * 128 * 1.755e9, 132 * 16 * 1.755e9, 0.79 * 4.8e12
BEGIN, END = "<!-- made by dev/kernel_report.py -->", "<!-- end of kernels -->"

BOUNDS = re.compile(r"\.entry\s+(\w+)\s*\([^)]*\)[^{]*?\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
COMPILING = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)\w*'")
PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def read(path):
    """{((module, mangled name), architecture): {registers, shared, stack, spill, bounds}} of one file; bounds: threads."""
    found, current, bounds = {}, None, {}
    for ptx in path.parent.glob(path.stem + ".compute_*.ptx"):
        arch = int(re.search(r"compute_(\d+)", ptx.name)[1])
        for name, *size in BOUNDS.findall(ptx.read_text()):
            bounds[name, arch] = math.prod(int(n or 1) for n in size)
    for line in path.open(encoding="utf-8", errors="replace"):
        if match := COMPILING.search(line):
            name, arch = match[1], int(match[2])
            key = ((path.stem, name), arch)  # kernels are static: another file may have one of the same name
            current = found.setdefault(key, {"registers": 0, "shared": 0, "stack": 0, "spill": 0,
                                             "bounds": bounds.get((name, arch))})
        elif current is not None and (match := PROPERTIES.search(line)):
            stack, stores, loads = map(int, match.groups())
            current["stack"] = max(current["stack"], stack)
            current["spill"] = max(current["spill"], stores, loads)
        elif current is not None and (match := USED.search(line)):
            current["registers"], current["shared"] = int(match[1]), int(match[2] or 0)
            current = None
    return found


def read_launches(folder):
    """{(module, mangled name): {architecture: (threads, dynamic shared memory)}}, {(module, mangled name): programs}"""
    launches, programs = {}, {}
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            module, arch, name, _, *size = line.split()
            largest = launches.setdefault((module, name), {})
            largest[int(arch)] = tuple(map(max, map(int, size), largest.get(int(arch), (0, 0))))
            programs.setdefault((module, name), set()).add(path.name)
    return launches, programs


def misfits(kernel, arch, launches):
    """Why a GPU of this architecture would refuse the kernel's largest launch. If none was recorded there, launches on
    GPUs with no more shared memory count."""
    limit = SHARED_KB.get(arch, 99)
    counted = [launches[arch]] if arch in launches else [l for a, l in launches.items() if SHARED_KB.get(a, 99) <= limit]
    threads, dynamic = (max(l[i] for l in counted) for i in (0, 1)) if counted else (kernel["bounds"] or 0, 0)
    registers = -(-kernel["registers"] // 8) * 8 * -(-threads // 32) * 32  # in units of 8, by whole warps
    if kernel["shared"] + dynamic > limit << 10:
        yield f"{kernel['shared']} static + {dynamic} dynamic bytes of shared memory, sm_{arch} has {limit << 10}"
    if registers > REGISTERS:
        yield f"{threads} threads of {kernel['registers']} registers on sm_{arch}: {registers} of {REGISTERS}"
    if kernel["bounds"] and threads > kernel["bounds"]:
        yield f"{threads} threads, __launch_bounds__ says {kernel['bounds']}"


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


def machine_code(path):
    """{readable name: [(address, instruction)]} of the code for sm_90 in an object file."""
    dump = shutil.which("cuobjdump") or sys.exit("kernel_report.py: no cuobjdump (CUDA toolkit; wheel nvidia-cuda-cuobjdump)")
    text = subprocess.run([dump, "-sass", "-arch", "sm_90", path], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            code = found.setdefault(match[1], [])
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            code.append((int(match[1], 16), match[2]))
    names = demangled(sorted(found))
    return {names[mangled]: code for mangled, code in found.items()}


def branches(code, backward):
    """(first, last) addresses of loops, or of what a conditional branch forward leaves out."""
    for at, text in code:
        if (match := re.search(r"\bBRA\b.* (0x[0-9a-f]+)", text)) and (to := int(match[1], 16)) != at:
            if backward and to < at:
                yield to, at
            elif not backward and to > at and text.startswith("@"):
                yield at + 1, to - 1


def executed(code, loop):
    """The operations of a pass through the kernel or one of its loops. What a branch leaves out is counted, unless it
    neither touches memory nor ends the kernel: masks of a diagonal or of padding, for which few tiles enter it."""
    first, last = (code[0][0], code[-1][0]) if loop is None else sorted(branches(code, True))[loop]
    inside = [(at, text) for at, text in code if first <= at <= last]
    left_out = set()
    for begin, end in branches(inside, False):
        region = [(at, text) for at, text in inside if begin <= at <= end]
        if not any(re.search(r"\b(LD|ST|ATOM|HMMA|EXIT|BAR|SHFL)", text) for _, text in region):
            left_out |= {at for at, _ in region}
    operations = [re.sub(r"^@!?U?P\w+\s+", "", text).split()[0] for at, text in inside if at not in left_out]
    if loop is None and "EXIT" in operations:  # after the last one: an endless branch, and padding
        operations = operations[:len(operations) - operations[::-1].index("EXIT")]
    return [operation for operation in operations if operation != "NOP"]


def elements_table(paths):
    code = {}
    for path in paths:
        code.update(machine_code(path))
    lines = ["| kernel | per | bytes | instructions | special function unit | issue takes | special functions take |",
             "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for what, kernel, parts, moved, element in ELEMENTS:
        if kernel not in code:
            sys.exit(f"kernel_report.py: no {kernel} in {len(paths)} file(s)")
        count = special = 0.0
        for loop, elements in parts:
            operations = executed(code[kernel], loop)
            count += len(operations) / elements
            special += sum(operation.startswith("MUFU") for operation in operations) / elements
        share = [f"{100 * n / rate / (moved / COPY):.0f}%" if moved else "" for n, rate in ((count, LANES), (special, SPECIAL))]
        lines.append(f"| {what} | {element} | {moved or ''} | {count:.1f} | {special:.2f} | {share[0]} | {share[1]} |")
    return "\n".join(lines)


def cell(kernel):
    if kernel is None:
        return ""
    text = str(kernel["registers"])
    if kernel["spill"]:
        return f"{text} +{kernel['spill']} spill"
    return f"{text} +{kernel['stack']} local" if kernel["stack"] else text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--ran", type=Path)
    parser.add_argument("--elements", action="store_true")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args()
    if options.elements:
        table = elements_table(options.files)
        print(table)
        if options.write:
            page = options.write.read_text()
            before, after = page[:page.index(BEGIN)], page[page.index(END):]
            options.write.write_text(f"{before}{BEGIN}\n{table}\n{after}")
        return
    kernels = {}
    for path in options.files:
        kernels.update(read(path))
    if not kernels:
        sys.exit(f"no kernels in {len(options.files)} file(s); were they built with -Xptxas -v?")
    launches, programs = read_launches(options.ran) if options.ran else ({}, {})
    readable = demangled(sorted({mangled for (_, mangled), _ in kernels}))
    names = {key: readable[key[1]] for key, _ in kernels}
    archs = sorted({arch for _, arch in kernels})
    width = max(len(name) for name in names.values())
    print(f"{'kernel':{width}}  {'shared':>6}  " + "  ".join(f"{f'sm_{arch}':>14}" for arch in archs) + "   (registers a thread)")
    failures = []
    for key, name in sorted(names.items(), key=lambda item: item[1]):
        row = {arch: kernels[key, arch] for arch in archs if (key, arch) in kernels}
        shared = max(kernel["shared"] for kernel in row.values())
        line = f"{name:{width}}  {shared:6}  " + "  ".join(f"{cell(row.get(arch)):>14}" for arch in archs)
        if ran := launches.get(key):
            line += f"   {max(t for t, _ in ran.values()):4} threads + {max(d for _, d in ran.values()):6} bytes  "
            line += ", ".join(sorted(programs[key]))
        print(line)
        allowed, _ = MAY_SPILL.get(name.split("<")[0], (0, ""))
        if any(kernel["spill"] > allowed for kernel in row.values()):
            failures.append(f"{name}: spills more than it may")
        if options.ran and not ran:
            failures.append(f"{name}: not run by any test")
        failures += [f"{name}: {why}" for arch in row for why in misfits(row[arch], arch, ran or {})]
    for name, (allowed, reason) in MAY_SPILL.items():
        print(f"may spill up to {allowed} bytes: {name}: {reason}")
    print(f"{len(names)} kernels for " + ", ".join(f"sm_{arch}" for arch in archs) +
          (f", {len(names.keys() & launches)} run by tests" if options.ran else "") + f": {len(failures)} failures")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    tool.run(main)
