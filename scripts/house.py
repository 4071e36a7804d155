#!/usr/bin/env python3
"""The size of the code: files and lines by module, files under 60 lines, the code that one step on a GPU runs, and public
functions that one other file calls. doc/architecture.md quotes the table.

    scripts/house.py [--files]      --files: also the names

One step: the files of the functions that train_step of train_gpt2.cu and the loader's thread call, at any depth, and the
headers that these files include. Calls are followed by name: a call counts for every public function of that name; a static
function, template or macro counts only where its file is included, a field never. Branches are ignored, so this is an upper
bound of a step in bf16 on a GPU without cuDNN, after the first steps. Left out (OFF): the other backend and the simulator;
code that an option switches on; kernels for other types and head sizes; choosing by measurement; errors; the report of a
step."""
import argparse
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("train_gpt2.cu", "llmc", "data", "scripts")
SMALL = 60

OFF = re.compile(r"llmc/cpu/|llmc/run/|llmc/store/|cudnn|muon|offload|fp8|adafactor|8bit|gradient_add|numerics|decode|decoding|"
                 r"generate|plain_attention|tuning|timing|llmc/number|base/(error|json|atomic)|nvml|nvtx|cuda/facts|memory_plan")
OFF_FUNCTIONS = re.compile(r"main|gpt2_(create|destroy|plan|observe)|abandon_step|report_numerics|\w*(muon|offload|fp8|8bit)\w*")
# The loader reads in a thread of its own.
ROOTS = [("train_gpt2.cu", "train_step", True), ("llmc/data/dataloader.c", "reader_main", True)]
KEYWORDS = set("if for while switch return sizeof do else case static const void".split())


def strip(text):
    """Without comments, and strings emptied."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
                  lambda m: '""' if m[0][0] == '"' else "0" if m[0][0] == "'" else " ", text, flags=re.S)


def functions(text):
    """(name, "public" | "hidden" | "macro", body) of every function and macro of a file."""
    text = strip(text)
    for m in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:.*\\\n)*.*)", text, re.M):
        yield m[1], "macro", m[2]
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
                    hidden = {"static", "inline", "template"} & set(head.split())
                    yield name[1], "hidden" if hidden else "public", text[body:m.start()]
                start = m.end()
        elif depth == 0:
            start = m.end()


def words_of(body):
    """The words of a body that may name a function or macro, each with whether it is called there: no fields (a.b, a->b)."""
    for m in re.finditer(r"(?<![\w.])(?<!->)(\w+)(?=(\s*(?:<[^;{}()]*>\s*)?\()?)", body):
        yield m[1], m[2] is not None


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
    for name, sums in (("llmc total", inside), ("product", product), ("total", total)):
        print(f"{name:<20}{sums[0]:>6}{sums[1]:>8}{sums[2]:>6}")
    if show:
        print("\n".join(f"  {lines_of(n):>4} {n}" for n in sources() if n.startswith("llmc") and lines_of(n) < SMALL))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="also list the files and functions")
    show = parser.parse_args().files
    modules(show)

    # RUN(op, ...) of ops.c calls backend_op.
    code = {name: re.sub(r"\bRUN\((\w+), ", r"RUN(backend_\1(), ", (ROOT / name).read_text()) for name in sources()}
    found = {name: list(functions(text)) for name, text in code.items()}
    words = {name: set(re.findall(r"\w+", strip(text))) for name, text in code.items()}

    # Public functions, and in how many files besides their own they are called.
    public, single = 0, []
    for name, defined in found.items():
        if not name.startswith("llmc") or name.startswith("llmc/cpu") or Path(name).suffix not in (".c", ".cu"):
            continue
        for function, kind, _ in defined:
            if kind != "public":
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
        for function, kind, body in defined:
            by_name[function].append((name, kind, body))
    reached, todo, bodies = {"train_gpt2.cu"}, list(ROOTS), set()
    while todo:
        where, function, is_call = todo.pop()
        own = [d for d in by_name[function] if d[0] == where]
        for name, kind, body in own or by_name[function]:
            is_meant = name == where or (kind == "public" and is_call) or (name in visible[where] and (is_call or kind == "macro"))
            if not is_meant or (name, function) in bodies or OFF.search(name) or OFF_FUNCTIONS.fullmatch(function):
                continue
            bodies.add((name, function))
            reached.add(name)
            todo += [(name, w, c) for w, c in words_of(body) if w in by_name]
    headers = {i for n in reached for i in includes[n] if n != "train_gpt2.cu" and not OFF.search(i)}
    step = sorted(reached | headers)
    for title, part in (("host", [n for n in step if "cuda/" not in n]), ("CUDA", [n for n in step if "cuda/" in n])):
        print(f"one step, {title}: {len(part)} files, {sum(map(lines_of, part))} lines")
        if show:
            print("\n".join(f"  {lines_of(n):>4} {n}" for n in part))
    print(f"one step: {len(step)} files, {sum(map(lines_of, step))} lines")


main()
