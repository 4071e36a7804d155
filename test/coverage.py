#!/usr/bin/env python3
"""`make coverage`: which lines and branches of the store and of the readers the tests execute, by gcov.

Runs the unit tests, the fuzz test and the end-to-end tests of files with programs that count (MODE=coverage), prints a table
of the files, and then for llmc/store every branch that no test takes. Each must match one of REASONS, else the exit code is 1.
"""
import argparse
import collections
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The tests of the other modules add little here, and take minutes.
END_TO_END = ["test_resume.py", "test_models.py", "test_bad_input.py", "test_refusals.py", "test_optimizers.py", "test_prepare.py",
              "test_prepare_lines.py", "test_prepare_interrupted.py", "test_shard_tools.py", "test_tokenizer.py", "test_evaluation.py"]
UNIT = ["atomic_file", "bpe", "byte_source", "checkpoint", "checkpoint_optimizer", "choices",
        "choices_file", "comm_tcp", "comm_watch", "corpus_run", "corpus_split", "corpus_writer",
        "dataloader", "export", "find_tokenizer", "foreign_file", "format", "generate", "gguf",
        "json_line", "launch", "limits", "options", "own_file", "runlog", "safetensors",
        "shard_tool", "shards", "shuffle", "signals", "tokenizer", "tokenizer_files",
        "typed_path", "utf8", "weights_file", "whereis"]
FILES = re.compile(r"llmc/(base|store|data|text)/\w+\.[ch]$|llmc/train/choices\.c$|llmc/run/(runlog|options)\.c$|"
                   r"llmc/comm/(channel_tcp|watch)\.c$")
WHOLE = "llmc/store/"  # every branch, or a reason

READS = "a read that fails after the file was opened and checked (test/faults fails every call of a resume)"
WRITES = "a write that fails (test/unit/test_checkpoint.c: a full disk; test/faults fails every call of a save)"

# What no test of a process that ends with its counts can take: (file, or "" for all, a pattern of the source line, why).
REASONS = [
    ("", r"\bREQUIRE\(", "a bug of the caller: the program ends at once (llmc/base/error.h)"),
    ("", r"\bREQUIRE_MEMORY\(", "no memory: the program ends at once, without its counts (test/faults)"),
    ("", r"no memory|^if \(!(f->matrix|text|s->places|f->entries)\b|matrix \? numel|free\(strip\)", "no memory for what a file asks for (test/faults)"),
    ("", r"cJSON_(Add|Print|Create)|made && eot|made = |root && token", "cJSON has no memory, which ends the program (llmc/base/json.c)"),
    ("", r"state of another process|get_rows", "a state that is divided among processes is gathered before it is saved"),
    ("", r"file_read_at|safetensors_read_bytes|read_fp32|state_read|, err\)\) return false;$", READS),
    ("", r"atomic_file_|writer_|_write\(|write_parts|append_fp8|if \(!w\) return|file \? |if \(!file\) return",
     WRITES),
    ("", r"cannot make the directory|mkdir\(|directory_(make|list|commit|remove|check_writable)\(|rename\(|file_exists\(temporary\)|if \(!list_steps|"
     r"if \(!probe\)|file_exists\(t->temporary\)", "a directory that cannot be made, listed, renamed or removed (test/faults)"),
]
# In a statement of a loop or of a chain of steps, what ends it early is one of the failures above.
REASONS += [
    ("", r"^(for|if|while) \(.*\bok\b|^return ok &&|^if \(ok\)|= ok \?", "what follows a failure of the kinds above"),
    ("optimizer_file.c", r"by_row|e->rank == expected->rank|saved == wanted|^if \(!e\) return", "shapes that our own models do not have"),
    ("optimizer_file.c", r"load_fp8", "--fp8 needs a GPU from sm_89: test/e2e/test_fp8.py in the simulator"),
    ("checkpoint.c", r"name\[n\] ==", "a file of ours that is being written, which only a killed write leaves"),
    ("huggingface.c", r"^if \(!f\) return", WRITES),
    ("huggingface.c", r"strncmp\(name, prefix", "every name of the table of parameters has the prefix"),
    ("huggingface.c", r"spelling", "a tokenizer without end-of-text, which data/prepare refuses"),
    ("safetensors.c", r"NUM_FILE_DTYPES|our safetensors files hold", "a bug of the caller: the program ends at once"),
    ("safetensors.c", r"^return NULL;$", WRITES),
    ("trainer_json.c", r"isfinite", "NaN and infinite values are refused by the same line"),
    ("llmc_bin.c", r"f->fd|fd >= 0", "a file that cannot be opened: root, as which CI runs, opens all"),
    ("weights_form.c", r"isinf|check_representable", "infinite weights, which no run of ours reaches, are exported as they are"),
    ("gguf.c", r"!?root\b|ArrayForEach", "a tokenizer without its JSON or an array of it: no memory, or a bug"),
    ("export.c", r"S_ISREG|seen\[HF|mount point|parent\.st_dev", "targets of --export that need a mount point or a socket"),
]
# error_set and error_prefix return false: what follows when they return true is no branch.
FALSE = re.compile(r"\|\|\s*\(?error_(set|prefix)\(")


def run_tests(build):
    for counts in build.rglob("*.gcda"):
        counts.unlink()
    programs = [build / "test/fuzz/test_readers", *(build / "test/unit" / f"test_{name}" for name in UNIT),
                build / "test/invariants/test_invariants"]
    tests = [part for name in END_TO_END for part in ("--pytest", f"test/e2e/{name}")]
    if (ROOT / "test/faults").is_dir():
        tests += ["--pytest", "test/faults"]
    command = ["dev/run_tests.py", "--jobs", str(os.cpu_count()), "--mark", "not slow", *tests, *map(str, programs)]
    environment = {**os.environ, "TRAINER": str(build / "train_gpt2")}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def counts_of(build):
    """{file: {line: [how often, [how often each branch]]}}, summed over all objects that contain it."""
    files = collections.defaultdict(dict)
    with tempfile.TemporaryDirectory() as directory:
        data = [str(p.resolve()) for p in build.rglob("*.gcda")]
        subprocess.run(["gcov", "--json-format", "--branch-probabilities", "--preserve-paths", "--hash-filenames", *data],
                       cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for path in Path(directory).glob("*.json.gz"):
            for source in json.loads(gzip.decompress(path.read_bytes()))["files"]:
                if not FILES.match(source["file"]):
                    continue
                lines = files[source["file"]]
                for line in source["lines"]:
                    branches = [b["count"] for b in line["branches"] if not b["throw"]]
                    known = lines.setdefault((line["line_number"], line.get("function_name", "")), [0, []])
                    known[0] += line["count"]
                    if len(known[1]) in (0, len(branches)):
                        known[1] = [a + b for a, b in zip(known[1] or [0] * len(branches), branches)]
    return files


def reason_for(file, text):
    return next((why for where, pattern, why in REASONS if where in file and re.search(pattern, text)), None)


def statement(lines, number):
    """The whole statement of a source line: the branches of a macro are at its last one."""
    text, first, last = lines[number - 1], number - 1, number
    while last < len(lines) and not re.search(r"[;{}]\s*(//.*)?$", lines[last - 1]):  # and those that continue it
        text, last = text + " " + lines[last].strip(), last + 1
    while first > 0 and not re.search(r"[;{}]\s*(//.*)?$", lines[first - 1]) and not lines[first - 1].lstrip().startswith(("//", "#")):
        first -= 1
        text = lines[first].strip() + " " + text.strip()
    return text.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build/coverage")
    parser.add_argument("--report", action="store_true", help="of the counts that are there; runs nothing")
    options = parser.parse_args()
    failed = 0 if options.report else run_tests(options.build)
    files, open_branches, explained = counts_of(options.build), [], collections.Counter()
    print(f"{'file':32}{'lines':>7}{'executed':>10}{'branches':>10}{'taken':>9}")
    for file in sorted(files):
        lines = files[file]
        branches = [b for _, bs in lines.values() for b in bs]
        done, taken = sum(n > 0 for n, _ in lines.values()), sum(b > 0 for b in branches)
        print(f"{file:32}{len(lines):7}{100 * done / max(1, len(lines)):9.1f}%{len(branches):10}"
              f"{100 * taken / max(1, len(branches)):8.1f}%")
        if not file.startswith(WHOLE):
            continue
        source = (ROOT / file).read_text().splitlines()
        for (number, _), (count, bs) in sorted(lines.items()):
            missing = sum(b == 0 for b in bs)
            if count > 0 and not missing:
                continue
            text = statement(source, number)
            if count > 0 and missing <= len(FALSE.findall(text)):
                explained["error_set and error_prefix only return false"] += missing
                continue
            why = reason_for(file, text)
            if why:
                explained[why] += max(1, missing)
            else:
                open_branches.append(f"{file}:{number}: {'not executed' if count == 0 else f'{missing} of {len(bs)} branches'}: {text}")
    for why, n in explained.most_common():
        print(f"{WHOLE} {n} branches: {why}")
    print(f"{WHOLE} {len(open_branches)} lines without a test or a reason", *open_branches, sep="\n  ")
    return 1 if failed or open_branches else 0


if __name__ == "__main__":
    sys.exit(main())
