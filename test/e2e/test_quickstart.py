"""`make quickstart TEXT=...` with texts of all kinds: a vocabulary that fits them, samples while it learns, or a clear line.
Trains for a second; what it learns in sixty is in doc/recipes.md."""
import os
import random
import re
import shlex
import subprocess

import pytest
from conftest import EXIT_BAD_INPUT, ROOT, WORDS

pytestmark = pytest.mark.slow


def quickstart(directory, text, out="out", cwd=ROOT, command=()):
    """Into a directory of its own: quickstart/ may be somebody's."""
    env = {**os.environ, "QUICKSTART_DIR": str(directory / out), "QUICKSTART_SECONDS": "1", "PWD": str(cwd)}
    for name in ("MODE", "MAKEFLAGS", "MAKELEVEL", "TEXT"):
        env.pop(name, None)  # of the make that runs the tests
    return subprocess.run(command or [ROOT / "scripts/quickstart.sh", text], cwd=cwd, env=env, capture_output=True,
                          text=True, errors="replace", timeout=600, stdin=subprocess.DEVNULL)


def english(choose, count):
    return " ".join(choose.choice(WORDS) for _ in range(count))


def chinese(choose, count):
    return "".join(chr(choose.randrange(0x4E00, 0x4E00 + 600)) if i % 12 else "\u3002\n" for i in range(1, count))


@pytest.mark.parametrize("write, count, vocabulary", [(english, 5000, 257), (chinese, 60000, 512)],
                         ids=["20KB", "chinese"])
def test_a_text_of_your_own(tmp_path, write, count, vocabulary):
    text = tmp_path / "text.txt"
    text.write_text(write(random.Random(1), count))
    result = quickstart(tmp_path, text)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"vocabulary {vocabulary}" in result.stdout
    steps = int(re.search(r"^(\d+) steps$", result.stdout, re.M)[1])
    before, training = result.stdout.split("a sample before training:\n")[1].split("a step takes", 1)
    assert before.startswith("    ")
    samples = [int(n) for n in re.findall(r"^sample at step (\d+)", training, re.M)]
    assert samples == [steps // 4, steps // 2, steps * 3 // 4, steps]
    assert len(re.findall(r"^step ", training, re.M)) <= 22  # no terminal: some of the steps only
    for name in ("curve.png", "run/main.log", f"run/step_{steps:08d}/tokenizer.json"):
        assert (tmp_path / "out" / name).exists(), name
    # The last lines write the file for llama.cpp.
    export = re.search(r"^  write its file +(\./train_gpt2 .*)$", result.stdout, re.M)[1]
    exported = subprocess.run(shlex.split(export), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert exported.returncode == 0, exported.stderr
    gguf = re.search(r"llama-cli -m (\S+)", result.stdout)[1]
    with open(gguf, "rb") as file:
        assert file.read(4) == b"GGUF"


def contents(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_second_call_keeps_what_was_changed_since_the_first(tmp_path):
    (tmp_path / "text.txt").write_text(english(random.Random(1), 5000))
    for command in (["make", "-s", "-C", ROOT, "quickstart", "TEXT=text.txt"], [ROOT / "scripts/quickstart.sh", "text.txt"]):
        result = quickstart(tmp_path, None, cwd=tmp_path, command=command)
        assert result.returncode == 0, result.stdout + result.stderr
        assert sorted(os.listdir(tmp_path)) == ["out", "text.txt"]
    assert "removing what an earlier quickstart made" in result.stdout
    (tmp_path / "out/run/main.log").write_text("trained for a week")
    before = contents(tmp_path / "out")
    result = quickstart(tmp_path, "text.txt", cwd=tmp_path)
    assert result.returncode == 0 and f"it was renamed to {tmp_path}/out.1" in result.stderr
    assert contents(tmp_path / "out.1") == before


@pytest.mark.parametrize("out", ["documents", "documents/", "link", "", "text.txt", "documents/new"])
def test_a_directory_of_the_user_is_refused(tmp_path, out):
    """Also one that has the text, and one in the text."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis").write_text("mine")
    (tmp_path / "link").symlink_to("documents")
    (tmp_path / "text.txt").write_text("a text")
    before = contents(tmp_path)
    for text in ("documents",) if out == "documents/new" else ("", "text.txt", "documents"):
        result = quickstart(tmp_path, text, f"{tmp_path}/{out}", cwd=tmp_path)
        assert result.returncode == EXIT_BAD_INPUT and result.stdout == ""
        assert re.fullmatch(r"quickstart: .*QUICKSTART_DIR.*\n", result.stderr)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["binary", "empty", "short", "missing"])
def test_nothing_to_learn_from_is_a_line(tmp_path, kind):
    directory = tmp_path / "texts"
    directory.mkdir()
    if kind == "binary":
        (directory / "picture.png").write_bytes(bytes(range(256)) * 100)
    if kind == "short":
        (directory / "text.txt").write_text("to be or not to be")
    result = quickstart(tmp_path, directory if kind != "missing" else tmp_path / "no")
    assert result.returncode == EXIT_BAD_INPUT, result.stdout + result.stderr
    assert "quickstart: " in result.stderr and len(result.stderr.splitlines()) <= 2
