#!/usr/bin/env python3
"""Runs the commands that README.md and doc/ show, and compares their output with the pages.

    dev/check_docs.py [--update] [FILE.md ...]        default: README.md and doc/*.md

A block that begins with ```console is a session: lines after "$ " are commands (a line that ends with \\ continues), run
by bash in the repository's root, in the order of the page; the lines below are their output, stdout and stderr
together. Numbers may differ, and their units with them (98.1 ms, 1.2K, 1m09s). A line of "..." stands for any lines,
"..." inside a line for any text. For an exit code other than 0 the last line is "(exit code N)". Other blocks are not
run: commands that need a GPU, the network or hours are in ```sh.
--update writes the output into the page, except where it has "...". Exit code 1 if anything differs.
"""
import argparse
import difflib
import glob
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "scripts"))
import tool  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
SECONDS = 600
# A number with its unit, such as 98.1 ms, 1.2K, 3.4e-05, 23.0 GiB, 1m09s.
UNIT = r" ?([KMGTP]i?)?B(/s)?(?!\w)| ?(ms|us|s|h|m|d)(?![A-Za-z])|[KMGTP](?!\w)"
QUANTITY = re.compile(rf"[-+]?(\d[\d.,]*(e[-+]?\d+)?({UNIT})?)+")


class Command:
    """A command of a page and its expected output: lines[first:last] of the page."""

    def __init__(self, text, line):
        self.text, self.line, self.first, self.last = text, line, line, line


def sessions(lines):
    """The commands of every ```console block, in order."""
    commands, inside, continued = [], False, False
    for i, line in enumerate(lines):
        if line.startswith("```"):
            inside, continued = line.strip() == "```console", False
        elif inside and line.startswith("$ "):
            commands.append(Command(line[2:], i + 1))
            continued = line.endswith("\\")
            commands[-1].first = commands[-1].last = i + 1
        elif inside and continued:
            commands[-1].text += "\n" + line
            commands[-1].first = commands[-1].last = i + 1
            continued = line.endswith("\\")
        elif inside and commands:
            commands[-1].last = i + 1
    return commands


def run(command):
    result = subprocess.run(["bash", "-c", command.text], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, timeout=SECONDS)
    text = result.stdout.decode(errors="replace")
    lines = [line.split("\r")[-1].rstrip() for line in text.splitlines()]
    return lines + ([f"(exit code {result.returncode})"] if result.returncode else [])


def same_line(expected, printed):
    """Equal except for numbers, their units, and the text at "..."."""
    def plain(text):
        return re.sub(r"\s+", " ", QUANTITY.sub("0", text)).strip()
    pattern = ".*".join(re.escape(plain(part)) for part in expected.split("..."))
    return re.fullmatch(pattern, plain(printed)) is not None


def same(expected, printed):
    """Does `printed` match `expected`, where a line "..." matches any lines, but not an exit code?"""
    written = [line for line in expected if line]
    if printed and printed[-1].startswith("(exit code ") and written[-1:] != printed[-1:]:
        return False
    reachable = {0}  # how many printed lines the expected ones so far may have used
    for line in expected:
        if line.strip() == "...":
            reachable = set(range(min(reachable), len(printed) + 1))
        else:
            reachable = {n + 1 for n in reachable if n < len(printed) and same_line(line, printed[n])}
        if not reachable:
            return False
    return len(printed) in reachable


def check(path, update):
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    failed, commands = 0, sessions(lines)
    replaced = []
    for command in commands:
        expected = [line.rstrip() for line in lines[command.first:command.last]]
        printed = run(command)
        good = same(expected, printed)
        print(f"{'ok    ' if good else 'DIFFERS'} {path}:{command.line}: {command.text.splitlines()[0]}", flush=True)
        if not good:
            failed += 1
            print("\n".join(difflib.unified_diff(expected, printed, "written", "printed", lineterm="", n=1)))
        if update and not any("..." in line for line in expected):
            replaced.append((command, printed))
    for command, printed in reversed(replaced):
        lines[command.first:command.last] = printed
    if replaced:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
    return len(commands), failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="FILE.md")
    parser.add_argument("--update", action="store_true", help="write the output into the pages")
    options = parser.parse_args()
    pages = options.pages or [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "doc", "*.md")))]
    total = [0, 0]
    for page in pages:
        for i, count in enumerate(check(page, options.update)):
            total[i] += count
    print(f"{total[0]} commands, {total[1]} differ")
    return 1 if total[1] else 0


if __name__ == "__main__":
    tool.run(main)
