#!/usr/bin/env python3
"""The size of the house: files and lines by module, files under 60 lines, what one step on a GPU is read in, and public
functions that one other file calls. doc/architecture.md quotes the table.

    scripts/house.py [--files]      --files: also the names

One step: the files that hold what train_step of train_gpt2.cu and the loader's thread call (functions and macros, by name, through all floors),
and the headers that these include; bf16 on a GPU, without cuDNN and without what is off unless asked for (OFF)."""
import argparse
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("train_gpt2.cu", "llmc", "data", "scripts")
SMALL = 60

# Not part of a plain step: the other backend and the simulator; what an option switches on; the ends of errors.
OFF = re.compile(r"llmc/cpu/|llmc/run/|llmc/store/|cudnn|muon|offload|fp8|adafactor|numerics|statistics|decode|decoding|"
                 r"generate|tuning|tensor_stats|dynamic8|base/(error|json|atomic)|nvml|nvtx|gpu_facts|memory_plan")
ROOTS = ["train_step", "dataloader_create"]  # the loader reads in a thread of its own
OFF_FUNCTIONS = {"main", "gpt2_create", "gpt2_destroy", "gpt2_plan"}
KEYWORDS = set("if for while switch return sizeof do else case static const void".split())


def strip(text):
    """Without comments, and strings emptied."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
                  lambda m: '""' if m[0][0] == '"' else "0" if m[0][0] == "'" else " ", text, flags=re.S)


def functions(text):
    """(name, is static, body) of every function and macro of a file."""
    text = strip(text)
    for m in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:.*\\\n)*.*)", text, re.M):
        yield m[1], True, m[2]
    text = re.sub(r"^[ \t]*#(?:.*\\\n)*.*", "", text, flags=re.M)
    text = re.sub(r'extern\s+""\s*\{', "", text)
    depth, start, head = 0, 0, ""
    for m in re.finditer(r"[{};]", text):
        if m[0] == "{":
            if depth == 0:
                head, body = text[start:m.start()], m.end()
            depth += 1
        elif m[0] == "}":
            depth = max(depth - 1, 0)
            if depth == 0:
                name = re.search(r"(\w+)\s*\((?:[^()]|\([^()]*\))*\)\s*$", re.sub(r"__\w+__\s*(\([^)]*\)+)?", "", head))
                if name and name[1] not in KEYWORDS and "=" not in head:
                    yield name[1], "static" in head.split() or "inline" in head.split(), text[body:m.start()]
                start = m.end()
        elif depth == 0:
            start = m.end()


def sources():
    for p in sorted(ROOT.glob("**/*")):
        name = str(p.relative_to(ROOT))
        if p.is_file() and p.suffix in (".c", ".h", ".cu", ".cuh", ".def") and name.split("/")[0] in PRODUCT:
            yield name


def lines_of(name):
    return (ROOT / name).read_bytes().count(b"\n")


def modules(show):
    rows = defaultdict(list)
    for p in sorted(ROOT.glob("**/*")):
        name = str(p.relative_to(ROOT))
        parts = name.split("/")
        if not p.is_file() or p.suffix not in (".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh", ".def", ".mk") or \
                parts[0] not in PRODUCT + ("dev", "test") or "results" in parts or "__pycache__" in parts:
            continue
        module = "/".join(parts[:-1][:2]) or name
        rows[module].append(lines_of(name))
    print(f"{'module':<20}{'files':>6}{'lines':>8}{'< 60':>6}")
    total, inside = [0, 0, 0], [0, 0, 0]
    product = [0, 0, 0]
    for module, found in sorted(rows.items()):
        counts = len(found), sum(found), sum(n < SMALL for n in found)
        print(f"{module:<20}{counts[0]:>6}{counts[1]:>8}{counts[2]:>6}")
        for sums, applies in ((total, True), (product, module.split("/")[0] in PRODUCT), (inside, module.startswith("llmc"))):
            for i in range(3):
                sums[i] += counts[i] if applies else 0
    for name, sums in (("llmc in all", inside), ("product", product), ("in all", total)):
        print(f"{name:<20}{sums[0]:>6}{sums[1]:>8}{sums[2]:>6}")
    if show:
        print("\n".join(f"  {lines_of(n):>4} {n}" for n in sources() if n.startswith("llmc") and lines_of(n) < SMALL))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="name the files and functions, too")
    show = parser.parse_args().files
    modules(show)

    code = {name: (ROOT / name).read_text() for name in sources()}
    found = {name: list(functions(text)) for name, text in code.items()}
    words = {name: set(re.findall(r"\w+", strip(text))) for name, text in code.items()}

    # Public functions, and in how many files besides their own they are called.
    public, single = 0, []
    for name, defined in found.items():
        if not name.startswith("llmc") or name.startswith("llmc/cpu") or Path(name).suffix not in (".c", ".cu"):
            continue
        for function, hidden, _ in defined:
            if hidden:
                continue
            public += 1
            callers = [n for n in code if n != name and not n.endswith(".h") and function in words[n]]
            if len(callers) == 1:
                single.append((function, name, callers[0]))
    print(f"\npublic functions (without llmc/cpu): {public}, called by one other file: {len(single)}")
    if show:
        print("\n".join(f"  {f}: {a} <- {b}" for f, a, b in single))

    # The step.
    includes = {n: {i for i in re.findall(r'^#include "([^"]+)"', t, re.M) if i in code} for n, t in code.items()}

    def seen_by(name, known=None):
        known = {name} if known is None else known
        for i in includes[name] - known:
            known.add(i)
            seen_by(i, known)
        return known

    visible = {n: seen_by(n) for n in code}
    by_name = defaultdict(list)
    for name, defined in found.items():
        for function, hidden, body in defined:
            by_name[function].append((name, hidden, body))
    reached, todo, bodies = {"train_gpt2.cu"}, [("train_gpt2.cu", r) for r in ROOTS], set()
    while todo:
        where, function = todo.pop()
        for name, hidden, body in by_name[function]:
            if (name, function) in bodies or OFF.search(name) or function in OFF_FUNCTIONS or \
                    hidden and name not in visible[where]:
                continue
            bodies.add((name, function))
            reached.add(name)
            todo += [(name, w) for w in set(re.findall(r"\w+", body)) if w in by_name]
    headers = {i for n in reached for i in includes[n] if n != "train_gpt2.cu" and not OFF.search(i)}
    step = sorted(reached | headers)
    for title, part in (("host", [n for n in step if "cuda/" not in n]), ("CUDA", [n for n in step if "cuda/" in n])):
        print(f"one step, {title}: {len(part)} files, {sum(map(lines_of, part))} lines")
        if show:
            print("\n".join(f"  {lines_of(n):>4} {n}" for n in part))
    print(f"one step: {len(step)} files, {sum(map(lines_of, step))} lines")


main()
