"""What a message tells the user to type works when it is pasted into a shell, whatever files are called. Messages that
refuse, with common names: test/refusals.txt."""
import re

import pytest
from conftest import EXIT_BAD_INPUT, PREPARE, ROOT, TRAINER, call

TINY = ["-e", "L=1,C=64,NH=1,T=32", "-b", "4", "-s", "0", "--threads", "1"]
SHARDS = ["-i", "sh/train_*.bin"]
TOOLS = ROOT / "data"
# As directories: what a shell, glob or an option parser takes for something else.
NAMES = ["two words", "it's", "[a] b*?", "back\\slash", "-dash", "new\nline", "\u00fcml\u00e4ut", "$HOME", "~"]


def paste(command, directory, expect=0):
    """Runs a line as bash does, in a directory."""
    return call("bash", "-c", command, cwd=directory, expect=expect)


def prepare(directory, *arguments):
    (directory / "text.txt").write_text("to be or not to be, that is the question\n" * 400)
    return call(PREPARE, *arguments, "text.txt", cwd=directory, expect=0).stdout


def patterns(line):
    """The quoted words of a message, as they are in it."""
    return re.findall(r"""\$?'(?:[^'\\]|\\.|'\\'')*'""", line)


def said_by(*command, directory, expect=EXIT_BAD_INPUT):
    result = call(*command, cwd=directory, expect=expect)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.parametrize("name", NAMES)
def test_patterns_that_prepare_prints_match_when_pasted(name, tmp_path):
    summary = prepare(tmp_path, "-o", f"./{name}")
    found = dict(re.findall(r"^  (train|val) .*?: (.*)$", summary, re.M))
    listed = paste(f"{TOOLS}/shard list {found['train']} {found['val']}", tmp_path).stdout
    assert "train_000000.bin" in listed and "val_000000.bin" in listed


@pytest.mark.parametrize("name", NAMES)
def test_the_shards_that_a_message_names_are_read_when_pasted(name, tmp_path):
    prepare(tmp_path, "-o", f"./{name}")
    message = said_by(TRAINER, *TINY, "-i", f"./{name}", "-x", 1, "-v", 0, directory=tmp_path)
    advised = patterns(message.partition("its shards, such as ")[2])[0]
    said = paste(f"{TRAINER} {' '.join(TINY)} -i {advised} -x 1 -v 1", tmp_path).stdout
    assert "in 1 shard;" in said and "validation at step 1" in said


@pytest.mark.parametrize("name", NAMES)
def test_the_validation_data_in_the_header_are_those_beside_the_training_data(name, tmp_path):
    prepare(tmp_path, "-o", f"./{name}")
    said = call(TRAINER, *TINY, "-i", f"./{name}/train_000000.bin", "-x", 1, "-v", 1, cwd=tmp_path, expect=0).stdout
    pattern = re.search(r"^validation .* in 1 shard: (.*)$", said, re.M)[1]
    assert "val_000000.bin" in paste(f"{TOOLS}/shard list {pattern}", tmp_path).stdout


def test_a_finished_run_names_a_number_of_steps_that_continues_it(tmp_path):
    prepare(tmp_path, "-o", "sh")
    call(TRAINER, *TINY, *SHARDS, "-v", 0, "-x", 1, "-o", "run", cwd=tmp_path, expect=0)
    said = call(TRAINER, "-o", "run", "-y", cwd=tmp_path, expect=0).stdout
    advised = re.search(r"such as (-x \d+)", said)[1]
    assert re.search(r"^step +2/2 ", paste(f"{TRAINER} -o run -y {advised}", tmp_path).stdout, re.M)


def test_the_files_that_whereis_names_are_shown_when_pasted(tmp_path):
    prepare(tmp_path, "-o", "[a] b")
    call(TRAINER, *TINY, "-i", "\\[a] b/train_*.bin", "-v", 0, "-x", 1, "-o", "run", cwd=tmp_path, expect=0)
    row = call(TOOLS / "whereis", "run", 1, cwd=tmp_path, expect=0).stdout.splitlines()[-1]
    token, path = re.search(r" (\d+) +\d+  (\S.*)$", row).groups()
    assert paste(f"{TOOLS}/shard show {path} --at {token} --count 2", tmp_path).stdout.count("\n") == 2
