"""What a message tells the user to type works when it is pasted into a shell, whatever files are called."""
import re
import shutil

import pytest
from conftest import EXIT_BAD_INPUT, PREPARE, ROOT, TRAINER, call

TINY = ["-e", "L=1,C=64,NH=1,T=32", "-b", "4", "-s", "0", "--threads", "1"]
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


# name: how to provoke a message in a directory with shards in sh and a text in text.txt, the words of the message
# before and after the advised command, and what takes the place of its placeholders.
SHARDS = ["-i", "sh/train_*.bin"]
ADVICE = {
    "no shards": ([TRAINER, *TINY, "-i", "new/train_*.bin", "-x", 1], "from text with: ", None, {"DIR": "new", "FILE...": "text.txt"}),
    "no shards in a directory": ([TRAINER, *TINY, "-i", "empty", "-x", 1], "make some with: ", None, {"FILE...": "text.txt"}),
    "another vocabulary": ([TRAINER, *TINY, *SHARDS, "-e", "L=1,C=64,NH=1,T=32,V=384", "--tokenizer",
                           "other one.json", "-x", 1], "with this tokenizer (",
                           "), or", {"DIR": "made", "FILE...": "text.txt"}),
    "a tool's option": ([TOOLS / "prepare", "-o"], "needs a value; ", " lists", {}),
    "a tool's other option": ([TOOLS / "shard", "list", "--frobnicate"], "--frobnicate; ", " lists", {}),
    "no words": ([TOOLS / "whereis"], "RUN and STEP; ", " shows", {}),
    "no questions": ([TOOLS / "choices", "--tokenizer", "bytes", "-o", "x"], "FILE.jsonl; ", " shows", {}),
    "an unknown option": ([TRAINER, "--xyzzy"], "--xyzzy; ", " lists", {"--help": f"{TRAINER} --help"}),
}


@pytest.mark.parametrize("name", ADVICE)
def test_a_command_in_a_message_works_when_pasted(name, tmp_path):
    provoke, before, after, places = ADVICE[name]
    prepare(tmp_path, "-o", "sh")
    (tmp_path / "empty").mkdir()
    call(TOOLS / "train_tokenizer", "--vocab-size", 270, "-o", "other one.json", "text.txt", cwd=tmp_path, expect=0)
    message = said_by(*provoke, directory=tmp_path)
    assert before in message, message
    command = message.partition(before)[2].partition(after)[0] if after else message.partition(before)[2]
    for word, text in places.items():
        command = command.replace(word, text)
    paste(command, tmp_path)


# name: options of a run on the shards in sh that are refused, and what is typed in their place.
OPTIONS = {
    "training on validation data": (["-i", "sh/*.bin"], r"such as (-i '[^']*')", ["-i", "sh/*.bin"]),
    "training on validation data, without validation": (["-i", "sh/*.bin"], r"(-v 0)", None),
    "a pattern without quotes": (["-i", "sh/train_000000.bin", "sh/train_000001.bin"], r"quoted: (-i '[^']*')",
                                 ["-i", "sh/train_000000.bin", "sh/train_000001.bin"]),
    "a name with a typing error": (["-i", "sh/trian_*.bin"], r"there are ('[^']*')", ["sh/trian_*.bin"]),
    "a total batch": ([*SHARDS, "-t", "32", "-d", "100"], r"nearest: (\d+)", ["100"]),
    "an option with a typing error": ([*SHARDS, "--warmpu", "1"], r"did you mean (\S+)\?", ["--warmpu"]),
    "no directory to resume in": ([*SHARDS, "-y"], r"with (-o DIR)", None),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_in_a_message_are_accepted(name, tmp_path):
    options, advised, replaced = OPTIONS[name]
    prepare(tmp_path, "-o", "sh")
    message = said_by(TRAINER, *TINY, *options, "-x", 1, directory=tmp_path)
    found = re.search(advised, message)
    assert found, message
    words = [f"'{word}'" for word in options]
    typed = found[1].replace("DIR", "run")
    if replaced:
        at = options.index(replaced[0])
        words[at:at + len(replaced)] = [typed]
    else:
        words.append(typed)
    result = paste(f"{TRAINER} {' '.join(TINY)} {' '.join(words)} -x 1", tmp_path)
    assert "done " in result.stdout


def test_a_finished_run_names_a_number_of_steps_that_continues_it(tmp_path):
    prepare(tmp_path, "-o", "sh")
    call(TRAINER, *TINY, *SHARDS, "-v", 0, "-x", 1, "-o", "run", cwd=tmp_path, expect=0)
    said = call(TRAINER, "-o", "run", "-y", cwd=tmp_path, expect=0).stdout
    advised = re.search(r"such as (-x \d+)", said)[1]
    assert re.search(r"^step +2/2 ", paste(f"{TRAINER} -o run -y {advised}", tmp_path).stdout, re.M)


def test_a_file_whose_name_begins_with_a_dash_is_named_as_it_must_be_typed(tmp_path):
    prepare(tmp_path, "-o", "sh")
    shutil.copy(tmp_path / "text.txt", tmp_path / "-dash.txt")
    message = said_by(TOOLS / "prepare", "-o", "new", "-dash.txt", directory=tmp_path)
    assert "unknown option -dash.txt; the file of this name is ./-dash.txt" in message
    paste(f"{TOOLS}/prepare -o new {message.rpartition(' ')[2]}", tmp_path)


def test_the_files_that_whereis_names_are_shown_when_pasted(tmp_path):
    prepare(tmp_path, "-o", "[a] b")
    call(TRAINER, *TINY, "-i", "\\[a] b/train_*.bin", "-v", 0, "-x", 1, "-o", "run", cwd=tmp_path, expect=0)
    row = call(TOOLS / "whereis", "run", 1, cwd=tmp_path, expect=0).stdout.splitlines()[-1]
    token, path = re.search(r" (\d+) +\d+  (\S.*)$", row).groups()
    assert paste(f"{TOOLS}/shard show {path} --at {token} --count 2", tmp_path).stdout.count("\n") == 2
