"""scripts/check_docs.py: what it accepts, and what it must not."""
import subprocess
import sys
from pathlib import Path

CHECK_DOCS = Path(__file__).resolve().parents[2] / "scripts" / "check_docs.py"


def check(tmp_path, page, *flags):
    path = tmp_path / "page.md"
    path.write_text(page)
    result = subprocess.run([sys.executable, CHECK_DOCS, *flags, path], capture_output=True, text=True)
    return result.returncode, result.stdout, path.read_text()


def console(*lines):
    return "\n".join(["# Page", "```console", *lines, "```", "text", ""])


def test_a_command_that_prints_what_is_written_passes(tmp_path):
    code, said, _ = check(tmp_path, console("$ printf 'a\\nb\\n'", "a", "b", "$ true"))
    assert code == 0 and said.endswith("2 commands, 0 differ\n")


def test_numbers_and_their_units_may_differ_and_words_may_not(tmp_path):
    assert check(tmp_path, console("$ echo 'loss 3.25 | 98.1 ms | 1.2K tok/s'", "loss 17 | 2 s | 300 tok/s"))[0] == 0
    assert check(tmp_path, console("$ echo 'loss 3.25'", "norm 3.25"))[0] == 1


def test_dots_stand_for_lines_and_for_parts_of_lines(tmp_path):
    assert check(tmp_path, console("$ seq 3; echo end", "...", "end"))[0] == 0
    assert check(tmp_path, console("$ echo one two three", "one ... three"))[0] == 0
    assert check(tmp_path, console("$ seq 3", "...", "end"))[0] == 1


def test_a_line_too_many_or_too_few_is_found(tmp_path):
    assert check(tmp_path, console("$ echo a", "a", "b"))[0] == 1
    assert check(tmp_path, console("$ echo a; echo b", "a"))[0] == 1


def test_a_failing_command_shows_its_exit_code(tmp_path):
    assert check(tmp_path, console("$ echo no >&2; exit 2", "no", "(exit code 2)"))[0] == 0
    assert check(tmp_path, console("$ exit 2"))[0] == 1


def test_commands_may_go_on_in_the_next_line_and_other_blocks_are_not_run(tmp_path):
    assert check(tmp_path, console("$ echo a \\", "    b", "a b"))[0] == 0
    code, said, _ = check(tmp_path, "```sh\n$ exit 1\n```\n```\n$ exit 1\n```\n")
    assert code == 0 and said == "0 commands, 0 differ\n"


def test_update_writes_what_was_printed(tmp_path):
    code, _, page = check(tmp_path, console("$ echo new", "old"), "--update")
    assert code == 1 and page == console("$ echo new", "new")
    assert check(tmp_path, page)[0] == 0
