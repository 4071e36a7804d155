#!/usr/bin/env python3
"""Draws mistakes by a seed in the host code and shows which test finds each, in one suite or two.

    dev/mutation/drawn.py [--seed N] [--count N] [--files FILE...] [--suite NAME[=REVISION]]...
                          [--tests TEST...] [--again SUITE] [--list]

A mistake is one operator, constant, bound, condition or result of one line (CHANGES). Files default
to the rooms of ROOMS, which also says which tests ask about a room: programs of test/ without a
prefix, and files of pytest, where FILE::WORDS selects by -k. --tests takes their place. A suite is
this tree, or with =REVISION the tests of that revision on the sources of this tree; a test that a
suite does not have is left out.

Suites are built in build/mutation/drawn/SUITE/, a copy of the tree in which one file at a time is
changed, compiled without optimisation and linked; the working tree is never edited. A mistake that
the compiler refuses is replaced by another draw. Tests run up to the first failure. Results are
kept in build/mutation/drawn.json: a run that was stopped resumes. The table goes to stdout.
"""
import argparse
import collections
import hashlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
SCRATCH = HERE / "build/mutation/drawn"
RESULTS = HERE / "build/mutation/drawn.json"
SOURCES = ("llmc", "data", "train_gpt2.cu")
SECONDS = 120  # that one test may run; a mistake may make it endless

# Room: its tests, the cheapest first.
FUZZ = "fuzz/test_readers"
REFUSALS = "test/e2e/test_refusals.py"
ROOMS = {
    "llmc/store": "unit/test_checkpoint unit/test_checkpoint_optimizer unit/test_weights_file "
                  "unit/test_export unit/test_gguf unit/test_safetensors "
                  "unit/test_huggingface_config " + FUZZ,
    "llmc/data": "unit/test_shards unit/test_mixture unit/test_dataloader unit/test_shuffle "
                 "unit/test_validation " + FUZZ,
    "llmc/text": "unit/test_tokenizer unit/test_tokenizer_files unit/test_find_tokenizer "
                 "unit/test_bpe unit/test_bpe_trainer unit/test_byte_source unit/test_json_line "
                 "unit/test_corpus_run unit/test_corpus_split unit/test_corpus_writer "
                 "unit/test_utf8 " + FUZZ + " test/e2e/test_prepare.py "
                 "test/e2e/test_prepare_lines.py test/e2e/test_prepare_content.py "
                 "test/e2e/test_train_tokenizer.py",
    "llmc/log": "unit/test_runlog unit/test_summary unit/test_tensorboard "
                "test/e2e/test_profile.py test/e2e/test_watching.py",
    "llmc/plan": "unit/test_recipe unit/test_gpu_table unit/test_advise unit/test_op_costs "
                 "unit/test_plan unit/test_plan_fit " + REFUSALS + " test/e2e/test_plan.py",
    "llmc/run": "unit/test_options unit/test_placement " + REFUSALS + " test/e2e/test_bad_input.py "
                "test/e2e/test_advice.py test/e2e/test_recipe.py test/e2e/test_plan.py "
                "test/e2e/test_training.py test/e2e/test_resume.py::words_or_options",
    "llmc/comm": "unit/test_launch unit/test_comm_tcp unit/test_comm_watch "
                 "unit/test_data_parallel " + FUZZ,
    "data": "unit/test_shard_tool unit/test_choices unit/test_whereis " + FUZZ + " " + REFUSALS +
            " test/e2e/test_shard_tools.py test/e2e/test_prepare.py",
    "llmc/train/choices.c": "unit/test_choices " + FUZZ,
}

# What becomes what. The first group of a pattern is replaced.
CHANGES = [
    (r" (<) ", "<="), (r" (<=) ", "<"), (r" (>) ", ">="), (r" (>=) ", ">"),
    (r" (==) ", "!="), (r" (!=) ", "=="),
    (r" (\+) ", "-"), (r" (-) ", "+"), (r" (\*) (?=[\w(])", "/"), (r" (/) ", "*"), (r" (%) ", "/"),
    (r" (&&) ", "||"), (r" (\|\|) ", "&&"), (r" (\+=) ", "-="), (r" (-=) ", "+="),
    (r"(?<![\w.'])(\d+)(?![\w.'])", None),
    (r"\b(?:if|while) \((.*)\)(?: return\b.*;| \{|)$", "!"),
    (r"\breturn (true|false);", "not"), (r"\b(min_i64|max_i64)\(", "not"),
    (r"\b(break|continue);", "not"),
]
OTHER = {"true": "false", "false": "true", "min_i64": "max_i64", "max_i64": "min_i64",
         "break": "continue", "continue": "break"}
PLAIN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

Mistake = collections.namedtuple("Mistake", "file line at old new before after")


def fail(message):
    sys.exit("drawn.py: " + message)


# ----------------------------------------------------------------------------------------- mistakes

def balanced(text):
    """Whether each parenthesis of a condition is closed in it."""
    depth = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def places(file):
    """Every mistake that a file has room for."""
    text = (HERE / file).read_text()
    # Comments and texts are hidden, and keep their lengths.
    hidden = PLAIN.sub(lambda m: re.sub(r"[^\n]", "\0", m[0]), text)
    start, found = 0, []
    for number, line in enumerate(hidden.split("\n"), 1):
        code = line.rstrip("\0 ")
        if line[:1] == " " and "assert(" not in line and "REQUIRE" not in line:
            for pattern, becomes in CHANGES:
                for m in re.finditer(pattern, code):
                    old = text[start + m.start(1):start + m.end(1)]
                    new = {"!": f"!({old})", "not": OTHER.get(old)}.get(becomes, becomes)
                    if becomes is None:
                        new = str(int(old) + 1)
                    if becomes != "!" or balanced(m[1]):
                        before = text[start:start + len(line)]
                        after = before[:m.start(1)] + new + before[m.end(1):]
                        found.append(Mistake(file, number, start + m.start(1), old, new,
                                             before.strip(), after.strip()))
        start += len(line) + 1
    return found


def room_of(file):
    fits = [room for room in ROOMS if file == room or file.startswith(room + "/")]
    return max(fits, key=len) if fits else None


def files_of(names):
    for name in names:
        path = HERE / name
        for file in sorted(path.glob("*.c")) if path.is_dir() else [path]:
            yield str(file.relative_to(HERE))


def draw(files, seed):
    """Endless draws: a file by its number of places, and then a place."""
    every = [place for file in files for place in places(file)]
    random.Random(seed).shuffle(every)
    return every


def key_of(m):
    return hashlib.sha256(f"{m.file}\0{m.before}\0{m.after}\0{m.line}".encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------- suites

def environment():
    settings = dict(os.environ, TEST_SEED="1", PRETRAIN_CACHE="off", OMP_WAIT_POLICY="passive",
                    OMP_NUM_THREADS="1")
    settings.pop("MAKEFLAGS", None)
    return settings


def run(command, cwd, seconds=SECONDS, until=None):
    """-> exit status, 124 after some seconds, and the output up to a line that matches `until`"""
    process = subprocess.Popen(command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    timed_out, lines = [], []

    def end(*_):
        timed_out.append(True)
        os.killpg(process.pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    for line in process.stdout:
        lines.append(line.decode(errors="replace"))
        if until and re.search(until, lines[-1]):
            os.killpg(process.pid, signal.SIGKILL)
            break
    status = process.wait()
    signal.alarm(0)
    return 124 if timed_out else status, "".join(lines)


def listed(*command):
    said = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE).stdout
    names = [name for name in said.decode().split("\0") if name]
    return [name for name in names if "ls-tree" in command or (HERE / name).exists()]


def put(path, content, mode):
    """Writes a file unless it is this one; says whether it was not."""
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return True


class Suite:
    """A copy of the tree with the tests of a revision."""

    def __init__(self, text):
        self.name, _, self.revision = text.partition("=")
        self.root = SCRATCH / self.name
        self.passed = self.root / ".passed"  # the tests that pass without a mistake, a name a line

    def make(self, *arguments):
        return run(["make", "--no-print-directory", "-s", "-j2", *arguments], self.root, 3600)

    def prepare(self, tests):
        """The files of the revision, with the product's sources of the working tree."""
        here = listed("git", "ls-files", "-co", "--exclude-standard", "-z")
        files = {name: HERE / name for name in here}
        if self.revision:
            files = {name: path for name, path in files.items() if name.startswith(SOURCES)}
            for name in listed("git", "ls-tree", "-r", "--name-only", "-z", self.revision):
                if not name.startswith(SOURCES):
                    files[name] = subprocess.run(["git", "show", f"{self.revision}:{name}"], cwd=HERE,
                                                 check=True, stdout=subprocess.PIPE).stdout
        changed = []  # files that are equal stay, for make
        for name, of in files.items():
            is_old = isinstance(of, bytes)
            content, mode = (of, 0o755) if is_old else (of.read_bytes(), of.stat().st_mode)
            changed.append(put(self.root / name, content, mode))
        if any(changed):
            self.passed.unlink(missing_ok=True)
        for path in self.root.glob("test/*/*"):  # that this revision does not have
            name = str(path.relative_to(self.root))
            if path.suffix in (".c", ".py") and name not in files:
                path.unlink()
        (self.root / ".gitignore").write_text("*\n")
        if (HERE / ".venv").exists() and not (self.root / ".venv").exists():
            (self.root / ".venv").symlink_to((HERE / ".venv").resolve())
        self.tests = [test for test in tests if self.has(test)]
        status, text = self.make("all", *self.programs(self.tests))
        if status:
            fail(f"{self.name}: make:\n{text}")

    def has(self, test):
        path = test.partition("::")[0]
        if test == FUZZ:
            return True
        return (self.root / (path if path.endswith(".py") else f"test/{path}.c")).exists()

    def programs(self, tests):
        return [f"build/release/test/{test}" for test in tests if ".py" not in test]

    def ask(self, test):
        """-> the name of what failed, or None"""
        if ".py" in test:
            path, _, words = test.partition("::")
            command = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
                       "-m", "not slow", path]
            words = words.replace("_or_", " or ")
            command += ["-k", words] if words else []
            status, text = run(command, self.root, 5 * SECONDS)
            if status in (0, 5):
                return None
            found = re.search(r"^(?:FAILED|ERROR) \S*?::(\S.*?)(?: - .*)?$", text, re.M)
            return f"{Path(path).stem}: {found[1] if found else f'status {status}'}"
        status, text = run([f"build/release/test/{test}"], self.root, SECONDS, r"^\[  FAILED  \] ")
        if status == 0:
            return None
        case = (re.findall(r"\[  FAILED  \] (\w+)", text)[:1] or
                re.findall(r"\[ RUN      \] (\w+)", text)[-1:] or [f"status {status}"])[0]
        return f"{test.partition('/')[2]}: {case}{' (endless)' if status == 124 else ''}"

    def check_unchanged(self, tests):
        passed = self.passed.read_text().split("\n") if self.passed.exists() else []
        for test in tests:
            if test not in passed and self.has(test):
                failed = self.ask(test)
                if failed:
                    fail(f"{self.name}: without a mistake this fails: {failed}")
                passed.append(test)
                self.passed.write_text("\n".join(passed))

    def plant(self, m, tests):
        """-> what finds it: the compiler, a test, or None"""
        source, object = self.root / m.file, f"build/release/{Path(m.file).with_suffix('.o')}"
        text = source.read_text()
        own = Path(m.file).stem
        tests = sorted(filter(self.has, tests), key=lambda test: own not in test)  # its own first
        try:
            source.write_text(text[:m.at] + m.new + text[m.at + len(m.old):])
            _, said = self.make("-n", "VERBOSE=1", "-W", m.file, object)
            compile = next(line for line in said.splitlines() if f" -c {m.file} " in line)
            status, said = run(shlex.split(compile) + ["-O0", "-w"], self.root)
            if status:
                return "the compiler"
            for part in (tests[:1], tests[1:]):  # most are found by the first
                needs_all = any(".py" in test for test in part)
                status, said = self.make(*["all"] * needs_all, *self.programs(part))
                if status:
                    return "the linker"
                found = next((failed for failed in map(self.ask, part) if failed), None)
                if found:
                    return found
            return None
        finally:
            source.write_text(text)
            (self.root / object).unlink(missing_ok=True)


# -------------------------------------------------------------------------------------------- table

def row(m, results, suites):
    change = f"`{m.old}` -> `{m.new}` in `{m.before[:100]}`"
    cells = [results.get(suite.name, {}).get(key_of(m), "") or "**not found**" for suite in suites]
    return f"| {m.file}:{m.line} | {change.replace('|', chr(92) + '|')} | {' | '.join(cells)} |"


def keep(name, known):
    """Adds what a suite found; another run may be at work with other suites."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    stored[name] = known
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    new = RESULTS.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(stored, indent=1))
    os.replace(new, RESULTS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--files", nargs="+", default=list(ROOMS), help="C files or directories")
    parser.add_argument("--suite", action="append", metavar="NAME[=REVISION]",
                        help="the tests of this tree, or of a revision")
    parser.add_argument("--tests", nargs="+", help="in place of those that ROOMS has for a file")
    parser.add_argument("--again", action="append", default=[], metavar="SUITE",
                        help="ask again what it did not find")
    parser.add_argument("--list", action="store_true", help="list the mistakes, plant none")
    arguments = parser.parse_args()
    files = list(files_of(arguments.files))
    drawn = draw(files, arguments.seed)
    if arguments.list:
        for m in drawn[:arguments.count]:
            print(f"{m.file}:{m.line}: {m.before}\n    {m.after}")
        return
    suites = [Suite(text) for text in arguments.suite or ["new"]]
    tests_of = {file: arguments.tests or ROOMS[room_of(file)].split() for file in files}
    every = list(dict.fromkeys(test for file in files for test in tests_of[file]))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in arguments.again:
        results[name] = {key: found for key, found in results.get(name, {}).items() if found}
    for suite in suites:
        suite.prepare(every)
    taken = []
    for m in drawn:
        if len(taken) == arguments.count:
            break
        for suite in suites:
            known = results.setdefault(suite.name, {})
            if known.get(key_of(m)) == "the compiler":
                break
            if key_of(m) not in known:
                suite.check_unchanged(tests_of[m.file])
                known[key_of(m)] = suite.plant(m, tests_of[m.file])
                keep(suite.name, known)
            if known[key_of(m)] == "the compiler":
                break
        else:
            taken.append(m)
            print(row(m, results, suites), flush=True)
    print(f"\n| suite | found of {len(taken)} |\n| --- | --- |")
    for suite in suites:
        print(f"| {suite.name} | {sum(bool(results[suite.name][key_of(m)]) for m in taken)} |")


if __name__ == "__main__":
    main()
