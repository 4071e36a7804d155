#!/usr/bin/env python3
"""Plants mistakes in the kernels, their host side and the simulator, one at a time, and shows which test catches each.

    dev/mutation/mutate.py [--list] [--readme] [NAME...]

The mistakes are listed in mutations.py. A mutant is built in build/mutation/NAME/ with the commands that make would run,
on other paths; the working tree is never edited. Every test must first pass without a mistake, and ends at the first
case that fails with one. Results are kept: a stopped run resumes, and a mistake is planted again when it, the file it
is in or its test has changed. Exit status 1: a mistake was not caught, or the text to be edited was not found.
"""
import argparse
import glob
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time

import place
from mutations import ALL, MUTATIONS, Host, Ptx

SECONDS = 900  # that a test may run
RESULTS = "build/mutation/results.json"
README = "dev/mutation/README.md"
HEADER = "| mutation | what | test | caught by | how |\n| --- | --- | --- | --- | --- |\n"


def fail(message):
    sys.exit("mutate.py: " + message)


def run(command, env=""):
    """-> exit status, stdout and stderr together, up to the first failed test case"""
    # Without a file of measured choices: what a mutant measures is for nobody else.
    settings = dict(os.environ, TEST_SEED="1", SIM_TIMEOUT="60", PRETRAIN_CACHE="off",
                    TSAN_OPTIONS="halt_on_error=1 atexit_sleep_ms=0")
    settings.update(setting.split("=", 1) for setting in env.split())
    settings.pop("MAKEFLAGS", None)  # of the make that runs this
    p = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    timer = threading.Timer(SECONDS, p.kill)
    timer.start()
    lines = []
    for line in p.stdout:
        lines.append(line.decode(errors="replace"))
        if lines[-1].startswith("[  FAILED  ] "):
            p.kill()
    timer.cancel()
    return p.wait(), "".join(lines)


def run_test(m, test):
    env = " ".join([m.env] + ["TEST_FILTER=" + m.only] * bool(m.only))
    fault = getattr(m, "fault", "")
    return run([test] + [fault, "wrong"] * bool(fault), env)


def program(m):
    return f"build/{m.mode}-sim/test/{m.test}"


def make(m, *arguments):
    status, text = run(["make", "--no-print-directory", "-s", f"MODE={m.mode}", *arguments, program(m)])
    if status:
        fail(f"make {program(m)}:\n{text}")
    return text


def compiler_calls(m, changed):
    """What make would run for the test program after a change of that file."""
    text = make(m, "-n", "VERBOSE=1", "-W", changed)
    return [shlex.split(line.split(" >")[0]) for line in text.splitlines() if " -c " in line or f" -o {program(m)} " in line]


def one(lines, wanted):
    found = [c for c in lines if wanted(c)]
    if len(found) != 1:
        fail(f"make -n has {len(found)} of the commands that a mutant needs, not one of each")
    return found[0]


class Commands:
    """What make runs to get a module into a test program: nvcc, the C++ compiler, the linker."""

    def __init__(self, m):
        source = f"llmc/cuda/{m.module}.cu"
        lines = compiler_calls(m, source)
        words = one(lines, lambda c: source in c)
        at = words.index("llmc/cuda/nvcc.sh")
        self.nvcc = [next(word[len("NVCC="):] for word in words[:at] if word.startswith("NVCC=")), *words[at + 1:]]
        self.compile = one(lines, lambda c: c[-3].endswith(f"llmc/cuda/{m.module}.cpp"))
        self.link = one(lines, lambda c: program(m) in c)
        self.ptx = re.sub("/ptx-[^/]*/", "/", self.compile[-3][:-len(".cpp")]) + f".compute_{m.arch}.ptx"
        self.object = self.compile[-1]


# -------------------------------------------------------------------------------------------------------------- mutants

def kernel_text(m, text):
    """-> begin and end of the kernel in the text of a PTX file"""
    begins = [e.start() for e in re.finditer(r"^(?:\.(?:visible|weak)\s+)*\.entry ", text, re.M)] + [len(text)]
    found = [(b, e) for b, e in zip(begins, begins[1:]) if m.kernel in text[b:text.index("(", b)]]
    if len(found) != 1:
        fail(f"{m.name}: {len(found)} kernels are named {m.kernel}")
    return found[0]


def edited_ptx(m, text):
    begin, end = kernel_text(m, text)
    places = list(re.finditer(m.pattern, text[begin:end]))
    if not places or (m.at != ALL and m.at >= len(places)):
        fail(f"{m.name}: place {m.at} of {len(places)} does not exist: {m.pattern}")
    for found in reversed(places if m.at == ALL else [places[m.at]]):
        new = found.expand(m.replacement)
        if new == found[0]:
            fail(f"{m.name}: changes nothing: {new}")
        text = text[:begin + found.start()] + new + text[begin + found.end():]
    return text


def edited_source(m, text):
    if not m.old:
        return text
    mutant = place.replaced(m.old, m.new, text)
    if mutant is None:
        fail(f"{m.name}: {m.file} has this text {len(place.places(m.old, text))} times: {m.old}")
    return mutant


class Refused(Exception):
    """A mutant that a tool does not build, as it should."""


def tool(m, who, command):
    status, text = run(command)
    if status == 0:
        return
    reason = next((line for line in text.splitlines() if "error" in line.lower() or "unknown" in line), text)
    if who != m.refused_by:
        fail(f"{m.name}: {who} does not accept it: {reason}")
    raise Refused(f"{who}: " + reason.split(": ", 1)[-1])


def linked(m, command, old, objects):
    """-> the mutant's test program; objects before the library replace its own"""
    link, at = list(command), command.index(old)
    link[at:at + 1] = objects
    link[link.index(program(m))] = f"build/mutation/{m.name}/test"
    tool(m, "ld", link)
    return f"build/mutation/{m.name}/test"


def build_host(m):
    here, unit = f"build/mutation/{m.name}", m.unit or m.file
    calls = compiler_calls(m, unit)
    compile = list(one(calls, lambda c: unit in c and "-c" in c))
    link = one(calls, lambda c: program(m) in c and "-c" not in c)
    old = compile[compile.index("-o") + 1]
    subprocess.run(["rm", "-rf", here], check=True)
    os.makedirs(os.path.dirname(f"{here}/{m.file}"))
    with open(f"{here}/{m.file}", "w") as out:
        out.write(edited_source(m, open(m.file).read()))
    compile[compile.index("-o") + 1] = f"{here}/mutant.o"
    if unit == m.file:
        compile[compile.index(unit)] = f"{here}/{m.file}"
    compile.insert(compile.index("-I."), f"-I{here}")
    tool(m, compile[0], [c for c in compile if c not in ("-MMD", "-MP")])
    library = next((c for c in link if c.endswith("libllmc.a")), old)
    return linked(m, link, old if old in link else library, [f"{here}/mutant.o"] + [library] * (old not in link))


def build(m):
    """-> the mutant's test program"""
    if isinstance(m, Host):
        return build_host(m)
    here, c = f"build/mutation/{m.name}", Commands(m)
    base = f"{here}/llmc/cuda/{m.module}"
    subprocess.run(["rm", "-rf", here], check=True)
    os.makedirs(os.path.dirname(base))
    ptx, objects = f"{base}.compute_{m.arch}.ptx", [f"{base}.sim.o"]
    if isinstance(m, Ptx):
        with open(ptx, "w") as out:
            out.write(edited_ptx(m, open(c.ptx).read()))
        ptxas = os.path.join(os.path.dirname(c.nvcc[0]), "ptxas")
        tool(m, "ptxas", [ptxas, f"-arch=sm_{m.arch}", "-O0", ptx, "-o", "/dev/null"])
    else:
        for file in {m.file, m.module + ".cu"}:
            text = open("llmc/cuda/" + file).read()
            with open(f"{here}/llmc/cuda/{file}", "w") as out:
                out.write(edited_source(m, text) if file == m.file else text)
        code = m.gencode or f"-gencode arch=compute_{m.arch},code=compute_{m.arch}"
        flags = re.sub(r" -gencode \S+| -MMD| -MP| -[co] \S+", "", shlex.join(c.nvcc))
        tool(m, "nvcc", shlex.split(flags.replace(" -I.", f" -I{here} -I. {code}")) +
             ["--keep", "--keep-dir", os.path.dirname(base), "-c", base + ".cu", "-o", base + ".o"])
        for found in glob.glob(f"{here}/llmc/cuda/{m.module}*.ptx"):
            os.replace(found, ptx)
        objects.append(base + ".o")
    tool(m, "translate.py", [sys.executable, "dev/sim/translate.py", base + ".cpp", ptx])
    # Without optimisation, which takes longer than the tests that it makes faster.
    compile = ["-O0" if x == "-O1" and m.mode == "release" else x for x in c.compile[:-4]]
    tool(m, "g++", compile + ["-c", base + ".cpp", "-o", objects[0]])
    return linked(m, c.link, c.object, objects)


# -------------------------------------------------------------------------------------------------------------- results

# Messages in the order in which they are looked for, and what the table calls them.
SIGNS = [(r"(no translated PTX of \w+)", "{}"),
         (r"WARNING: ThreadSanitizer: (data race)", "{}"),
         (r"MemorySanitizer: ([\w-]+)", "{}"),
         (r"launch of [^\n]*?: ([^:\n]+?)(?: \(cuda\w+\))?\n", "refused launch: {}"),
         (r"bug: [^\n]*: ([^:\n]+?)(?: \(cuda\w+\))?\n", "refused launch: {}"),
         (r"sim: (?:ERROR: )?([^\n]*)", "{}")]


def verdict(status, text):
    """-> the test case that failed (None if none did) and how"""
    if status == 0:
        return None, ""
    failed = (re.findall(r"\[  FAILED  \] (\w+)", text) or re.findall(r"\[ RUN      \] (\w+)", text)[-1:] or
              ["program start"])
    for pattern, name in SIGNS:
        if found := re.search(pattern, text):
            how = re.sub(r"(, this one is)?,? at \S*llmc/[\w/.]+:\d+", "", found[1])  # the table outlives the lines
            return failed[0], name.format(re.sub(r"0x[0-9a-f]+", "0x..", how))
    return failed[0], "wrong values" if "FAILED" in text else f"exit status {status}"


def planted(m):
    """The fault's message in the table of test_faults.c: without the rule it is not printed."""
    found = re.search(r'\{"%s", "%s", "[^"]*",\s*"([^"]*)"' % (m.fault, m.mode), open("test/sim/test_faults.c").read())
    return found[1] if found else fail(f"{m.name}: test_faults.c has no {m.fault} under {m.mode}")


def read(path):
    with open(path) as f:
        return f.read()


def digest(m):
    """Of what the result depends on, as far as this is about a single mistake."""
    cuda = getattr(m, "module", "") and [f"llmc/cuda/{m.module}.cu"]
    file = getattr(m, "file", "") and [m.path]
    tests = glob.glob(f"test/{m.test}.c*") + glob.glob("test/ops/*.h") * m.test.startswith("ops/")
    text = repr(m) + "".join(read(path) for path in sorted({*(cuda or []), *(file or []), *tests}))
    return hashlib.sha256(text.encode()).hexdigest()


def result(m):
    """-> what the table says, and whether the mistake was caught"""
    fault = getattr(m, "fault", "")
    try:
        status, text = run_test(m, build(m))
        with open(f"build/mutation/{m.name}/output", "w") as out:
            out.write(text)
        case, how = verdict(status, text)
        if fault:
            last = (text.splitlines() or ["nothing"])[-1] if status else "it passes"
            case, how = (None, "") if planted(m) in text else (fault, "no longer refused: " + last)
    except Refused as x:
        case, how = "the build", str(x)
    where = " ".join([m.test, m.mode, m.env]) if case != "the build" else ""
    return dict(where=where.strip(), case=case, how=how)


def line_of(m, r):
    case, how = r["case"], r["how"]
    if case is None:
        case, how = "-", "equivalent: " + m.same if m.same else "not caught: " + m.unseen if m.unseen else "NOT CAUGHT"
    return f"| {m.name} | {m.what} | {r['where']} | {case} | {how} |"


def clean(m):
    """Only what was printed is of interest later."""
    here = f"build/mutation/{m.name}"
    for name in os.listdir(here) if os.path.isdir(here) else []:
        if name != "output":
            subprocess.run(["rm", "-rf", f"{here}/{name}"], check=True)


def check_unchanged(m, passed):
    """The test without the mistake."""
    make(m)
    key = (m.test, m.mode, m.env, m.only)
    if key in passed or getattr(m, "fault", ""):
        return
    status, text = run_test(m, program(m))
    if status or (m.only and "[       OK ]" not in text):
        fail(f"{program(m)} {m.env} {m.only} fails without any mistake:\n{text}")
    passed.add(key)


def plant(chosen, results):
    """The results of all, of which those in `results` are known. -> what could not be planted"""
    passed, failed = set(), []
    for m in chosen:
        began = time.monotonic()
        try:
            if results.get(m.name, {}).get("digest") != digest(m):
                check_unchanged(m, passed)
                results[m.name] = dict(result(m), digest=digest(m))
                clean(m)
                with open(RESULTS + ".new", "w") as f:
                    json.dump(results, f, indent=1)
                os.replace(RESULTS + ".new", RESULTS)
                print(f"  {m.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
            print(line_of(m, results[m.name]), flush=True)
        except SystemExit as x:
            results.pop(m.name, None)
            failed.append(m.name)
            print(x, file=sys.stderr)
    return failed


def write_readme(results):
    lines = [line_of(m, results[m.name]) for m in MUTATIONS]
    same = sum(bool(m.same) for m in MUTATIONS)
    caught = sum(results[m.name]["case"] is not None for m in MUTATIONS)
    count = len(MUTATIONS) - same
    text = read(README)
    with open(README, "w") as out:
        out.write(text[:text.index("Caught: ")] + f"Caught: {caught} of {count}, {100 * caught / count:.1f}%"
                  f"{f'; {same} more that no program could tell apart' if same else ''} (`make mutation`).\n\n" +
                  HEADER + "\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to plant; default: all")
    parser.add_argument("--list", action="store_true", help="list the mutations")
    parser.add_argument("--readme", action="store_true", help="put the table and the score into the README")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {m.name for m in MUTATIONS}
    if unknown:
        fail("unknown mutation " + " ".join(unknown))
    chosen = [m for m in MUTATIONS if not arguments.names or m.name in arguments.names]
    if arguments.list:
        return [print(f"{m.name:26} {m.what}") for m in chosen] and 0
    os.makedirs(os.path.dirname(RESULTS), exist_ok=True)
    results = json.loads(read(RESULTS)) if os.path.exists(RESULTS) else {}
    print(HEADER, end="", flush=True)
    failed = plant(chosen, results)
    if failed:
        fail("not planted: " + " ".join(failed))
    if arguments.readme:
        write_readme(results)
    survivors = [m.name for m in chosen if results[m.name]["case"] is None and not m.unseen and not m.same]
    if survivors:
        fail("not caught: " + " ".join(survivors))


if __name__ == "__main__":
    sys.exit(main())
