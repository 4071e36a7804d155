"""dev/check_docs.py: what it accepts, and what it must not."""
import sys

import pytest
from runs import ROOT, call


def check(tmp_path, page, *flags):
    path = tmp_path / "page.md"
    path.write_text(page)
    result = call(sys.executable, ROOT / "dev" / "check_docs.py", *flags, path)
    return result.returncode, result.stdout, path.read_text()


def console(*lines):
    return "\n".join(["# Page", "```console", *lines, "```", "text", ""])


# A command and what is written below it, by whether that passes.
@pytest.mark.parametrize("passes, lines", [
    (True, ["$ printf 'a\\nb\\n'", "a", "b", "$ true"]),
    (False, ["$ echo a", "a", "b"]),  # a line too many
    (False, ["$ echo a; echo b", "a"]),  # too few
    (True, ["$ echo 'loss 3.25 | 98.1 ms | 1.2K tok/s'", "loss 17 | 2 s | 300 tok/s"]),  # numbers and units may differ
    (False, ["$ echo 'loss 3.25'", "norm 3.25"]),
    (True, ["$ seq 3; echo end", "...", "end"]),  # lines
    (True, ["$ echo one two three", "one ... three"]),  # parts of lines
    (False, ["$ seq 3", "...", "end"]),
    (True, ["$ echo no >&2; exit 2", "no", "(exit code 2)"]),
    (False, ["$ exit 2"]),
    (False, ["$ echo no; exit 2", "..."]),  # any lines, but no failure
    (False, ["$ exit 2", "(exit code 3)"]),
    (True, ["$ echo no; exit 2", "...", "(exit code 2)"]),
    (True, ["$ echo a \\", "    b", "a b"]),  # it goes on in the next line
])  # fmt: skip
def test_what_is_written_is_what_is_printed(passes, lines, tmp_path):
    code, said, _ = check(tmp_path, console(*lines))
    assert code == (not passes) and said.endswith(" 0 differ\n") == passes


def test_other_blocks_are_not_run(tmp_path):
    code, said, _ = check(tmp_path, "```sh\n$ exit 1\n```\n```\n$ exit 1\n```\n")
    assert code == 0 and said == "0 commands, 0 differ\n"


def test_update_writes_what_was_printed(tmp_path):
    code, _, page = check(tmp_path, console("$ echo new", "old"), "--update")
    assert code == 1 and page == console("$ echo new", "new")
    assert check(tmp_path, page)[0] == 0
