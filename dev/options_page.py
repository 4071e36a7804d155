#!/usr/bin/env python3
"""The table of doc/options.md, from what the trainer's --help prints, which is the option table llmc/run/options.def.

  dev/options_page.py            prints the table
  dev/options_page.py --write    puts it into doc/options.md

A test compares the page with the table. TRAINER names the trainer that is asked; default: ./train_gpt2.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
import tool  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TRAINER = os.environ.get("TRAINER", ROOT / "train_gpt2")
PAGE = ROOT / "doc" / "options.md"
BEGIN, END = "<!-- made by dev/options_page.py -->", "<!-- end -->"
TEXT_COLUMN = 36  # of --help, where the text of each option begins


def sections(text):
    """Of each section of --help its title and its options: [name and value, text, default and range]."""
    found = []
    for line in text.splitlines():
        if re.match(r"  -", line):
            named, wide = line[:TEXT_COLUMN].strip(), line[TEXT_COLUMN - 1:TEXT_COLUMN].strip()
            found[-1][1].append([line.strip(), ""] if wide else [named, line[TEXT_COLUMN:]])
        elif line.startswith(" " * TEXT_COLUMN) and found and found[-1][1]:
            found[-1][1][-1][1] += " " + line.strip()
        elif re.match(r"\w", line):
            found.append((line, []))
    for _, options in found:
        for option in options:
            words = re.fullmatch(r"(.*?)(?: \[([^][]*)\])?", option[1].strip())
            option[1:] = [words[1], words[2] or ""]
    return [section for section in found if section[1]]


def table(text):
    rows = ["| option | meaning | default; range |", "| --- | --- | --- |"]
    for title, options in sections(text):
        rows.append(f"| **{title}** | | |")
        for cells in options:
            name, meaning, default = (cell.replace("|", "\\|") for cell in cells)
            rows.append(f"| `{name}` | {meaning} | {default} |")
    return "\n".join(rows)


def printed_help():
    return subprocess.run([TRAINER, "--help"], capture_output=True, text=True, check=True).stdout


def main(arguments):
    if arguments not in ([], ["--write"]):
        print(__doc__.strip())
        return arguments not in (["--help"], ["-h"])
    made = table(printed_help())
    if not arguments:
        print(made)
    else:
        page = PAGE.read_text()
        PAGE.write_text(page[:page.index(BEGIN)] + f"{BEGIN}\n{made}\n" + page[page.index(END):])
    return 0


if __name__ == "__main__":
    tool.run(lambda: main(sys.argv[1:]))
