"""--prompt and --interactive as users run them: alone, through pipes and on a terminal (a pty).

Texts are compared at --temperature 0, where a text is a function of weights and prompt alone.
"""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest
from conftest import (EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_RUN_FAILED, PREPARE, QUIET, ROOT, TINY, TRAIN_TOKENIZER, WORDS, call,
                      checkpoints, command, events, start, train, write_shard)

T = 64
GREEDY = ["-x", 0, "-v", 0, "--temperature", 0, "--dtype", "fp32", "--threads", 1]
SPEED = r"\[\d+ tokens after \d+, [\d.]+ tokens/s\]"


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    """The checkpoint of a small model that has learnt some words."""
    out = tmp_path_factory.mktemp("generation") / "run"
    train("-e", f"L=2,C=64,NH=2,T={T}", "-b", 8, "-x", 120, "-l", 5e-3, *QUIET, *data.flags, "-o", out)
    return checkpoints(out)[-1]


def text(model, tmp_path, prompt, tokens, *more, samples=1):
    """What --prompt writes, without the prompt: of one sample, or a list."""
    out = tmp_path / "text"
    train("-e", model, *GREEDY, "-s", 1, "-o", out, "--prompt", prompt, "-g", tokens, "--samples", samples, *more)
    texts = [entry["text"] for entry in events(out, "sample")][-samples:]
    assert all(entry.startswith(prompt) for entry in texts)
    texts = [entry[len(prompt):] for entry in texts]
    return texts[0] if samples == 1 else texts


def talk(model, lines, tokens, *more, expect=0, **options):
    """What --interactive says to these bytes on stdin."""
    return train("-e", model, *GREEDY, "--interactive", "-g", tokens, *more, input=lines, text=False, expect=expect, **options)


# ------------------------------------------------------------------------------------------------------------ --prompt


def test_a_sample_is_shown_once_and_its_speed_told(model):
    said = train("-e", model, *GREEDY, "-s", 1, "-g", 30, "--prompt", "the of ").stdout
    assert said.count("the of ") == 1
    assert re.search(r"generated +30 tokens after a prompt of 8; prompt \d+ ms, then [\d.]+ tokens/s", said)


def test_a_text_ends_at_the_eos_token_that_config_json_names(model, tmp_path):
    whole = text(model, tmp_path, "the of ", 40)
    exported = tmp_path / "hf"
    train("-e", model, "-x", 0, "-v", 0, "--export", exported)
    config = json.loads((exported / "config.json").read_text())
    assert config["eos_token_id"] == 256
    (exported / "config.json").write_text(json.dumps(config | {"eos_token_id": [ord(whole[10]), 256]}))
    assert text(exported, tmp_path, "the of ", 40) == whole[:whole.index(whole[10])]


# That they are those drawn alone: test/unit/test_generate.c.
def test_samples_follow_the_options(model, tmp_path):
    drawn = ["--temperature", 1.0, "--top-k", 0, "--top-p", 0.95]
    many = text(model, tmp_path, "have ", 50, *drawn, samples=5)
    assert len(set(many)) == 5
    assert text(model, tmp_path, "have ", 50, *drawn) == many[0]
    assert text(model, tmp_path, "have ", 50, *drawn, "--seed", 2) != many[0]


def test_texts_and_prompts_longer_than_the_context_are_announced(model):
    said = train("-e", model, *GREEDY, "-s", 1, "-g", 2 * T, "--prompt", "was " * T).stdout
    # end-of-text and 4 T bytes; T - 1 count. The second token fills the context, and every T/2 + 1 later one again.
    assert re.search(rf"prompt +longer than the context: the last {T - 1} tokens are used, {4 * T + 1 - (T - 1)} are dropped",
                     said)
    assert re.search(rf"context +filled {1 + (2 * T - 3) // (T // 2 + 1)} times", said)


@pytest.mark.sanitize
def test_special_tokens_in_a_prompt_are_tokens(model):
    said = train("-e", model, *GREEDY, "-s", 1, "-g", 5, "--prompt", "one<|endoftext|>two").stdout
    assert "after a prompt of 8;" in said  # end-of-text, 3 bytes, end-of-text, 3 bytes


@pytest.mark.sanitize
def test_without_a_tokenizer_samples_are_token_numbers(data, tmp_path):
    out = tmp_path / "run"
    train("-e", "L=1,C=64,NH=2,T=32,V=300", "-b", 2, "-x", 1, *QUIET, *data.flags, "-o", out)
    (checkpoints(out)[-1] / "tokenizer.json").unlink(missing_ok=True)
    said = train("-e", checkpoints(out)[-1], *GREEDY, "-s", 1, "-g", 12).stdout
    assert re.search(r"^(\d+ ){12}$", said, re.MULTILINE)


def test_samples_that_do_not_fit_into_memory_are_refused(tmp_path):
    """A cache of 1024 sequences of 1024 tokens for 124M: 2 x 12 x 768 x 4 bytes each, 77 GB."""
    limited = ["bash", "-c", 'ulimit -v 30000000; exec "$@"', "bash"]
    arguments = command("-e", "L=12,C=768,NH=12,V=257,T=1024", *GREEDY, "-s", 1, "--samples", 1024)
    said = call(*limited, *arguments, cwd=ROOT, expect=EXIT_BAD_INPUT).stderr
    assert "not enough memory" in said and "it fits with --samples 1 (" in said


# ------------------------------------------------------------------------------------------------- --interactive, pipes


@pytest.mark.sanitize
def test_answers_alone_go_to_stdout_and_what_was_said_stays_until_new(model, tmp_path):
    first = text(model, tmp_path, "the", 10)
    second = text(model, tmp_path, f"the{first}\nof and", 10)
    said = talk(model, b"the\nof and\n/new\nthe\n", 10).stdout.decode()
    assert said == f"{first}\n{second}\n{first}\n"


# Lines and options, and lines to which the answers are the same.
@pytest.mark.parametrize("lines, options, same_as", [
    (b"of\n", ["--prompt", "the"], b"the\nof\n"),  # the prompt comes first
    (b"\n\r\n\nhis\r\n\n/quit\nthis is not read\n", [], b"his\n"),
    (b"his", [], b"his\n"),  # the last line may have no end
    (b"/quit", [], b""), (b"", [], b""),
])
def test_these_lines_are_answered_as_those(model, lines, options, same_as):
    assert talk(model, lines, 10, *options).stdout == (talk(model, same_as, 10).stdout if same_as else b"")


def test_an_unknown_command_is_no_text(model):
    said = talk(model, b"/nwe\nhis\n/a text\n", 10)
    assert said.stderr.decode().splitlines()[-1] == "/nwe: not a command; there are /new and /quit"
    assert said.stdout == talk(model, b"his\n/a text\n", 10).stdout


def test_a_prompt_that_ends_in_a_space_is_reported_where_words_have_their_space_before_them(data, tmp_path):
    words = [" ".join(WORDS)] * 40
    (tmp_path / "text.txt").write_text("\n".join(words))
    call(TRAIN_TOKENIZER, "--vocab-size", 300, tmp_path / "text.txt", "-o", tmp_path / "tokenizer.json", expect=0)
    call(PREPARE, "--tokenizer", tmp_path / "tokenizer.json", "-o", tmp_path / "shards", tmp_path / "text.txt", expect=0)
    train(*TINY, *QUIET, "-i", tmp_path / "shards/train_*.bin", "-x", 1, "--export", tmp_path / "hf")
    for prompt, reported in ("the ", True), ("the", False):
        said = train("-e", tmp_path / "hf", *GREEDY, "-s", 1, "-g", 4, "--prompt", prompt).stderr
        assert ("--prompt: it ends in a space" in said) == reported
    assert "the line ends in a space" in talk(tmp_path / "hf", b"the \n", 4).stderr.decode()


def test_a_long_conversation_slides(model):
    lines = b"".join(b"line %d of many\n" % i for i in range(20))
    assert len(talk(model, lines, 15).stdout.split(b"\n")) >= 20
    # Before the last line T - 1 tokens stand that are the same, whatever the conversation began with.
    a, b = (talk(model, start + b"the same words " * 8 + b"\nlast\n", 15).stdout for start in (b"he ", b"on "))
    assert a.endswith(b[b.index(b"\n") + 1:]) or a == b


def test_a_line_longer_than_the_context_is_cut_and_announced(model, tmp_path):
    long = "they be at this " * 50
    result = talk(model, long.encode() + b"\n", 12)
    assert result.stdout.decode() == text(model, tmp_path, long, 12) + "\n"
    assert f"the line has {len(long)} tokens, the context {T}; only the last {T - 1} are used" in result.stderr.decode()


@pytest.mark.sanitize
def test_any_bytes_may_be_on_a_line(model):
    lines = b"\xff\xfe\x80 caf\xc3\xa9 \xe2\x82\n\x00\x1b[2J\x07\n" + bytes(set(range(256)) - {10}) + b"\n"
    assert talk(model, lines, 5).stdout.count(b"\n") >= 3


def test_answers_in_a_pipe_are_utf8_even_if_their_end_is_inside_a_character(data, tmp_path):
    # Byte tokens of an untrained model: nearly all answers have bytes that are no characters.
    train(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "run")
    answers = talk(tmp_path / "run/step_00000001", b"a\n", 40, "--temperature", 1, "--top-k", 0, "--samples", 1).stdout
    assert answers.decode() and b"\\x" in answers


def test_a_reader_that_goes_away_is_an_error_and_no_crash(model):
    reader, writer = os.pipe()
    os.close(reader)
    result = talk(model, b"the\n", 5, expect=EXIT_RUN_FAILED, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert b"stdout: cannot be written: Broken pipe" in result.stderr


@pytest.mark.parametrize("when", ["at the prompt", "in a line", "in an answer"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_conversation(model, when, number):
    with start("-e", model, *GREEDY, "--interactive", "-g", 1000000 if when == "in an answer" else 8, bufsize=0,
               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"the\nof" if when == "in a line" else b"the\n")  # stdin stays open: more may come
        seen = process.stdout.read(1)
        while when != "in an answer" and len(seen) < 9:  # 8 tokens of a byte, and the end of the answer
            seen += process.stdout.read(1)
        process.send_signal(number)
        if when == "in a line":
            process.wait(timeout=300)  # communicate closes stdin, which ends the line
        said, complaint = process.communicate(timeout=300)
        assert process.returncode == EXIT_INTERRUPTED, complaint
        assert (seen + said).endswith(b"\n") and len(seen + said) < 1000000  # tokens of a byte


# ---------------------------------------------------------------------------------------------- --interactive, terminal


class Terminal:
    """The trainer as the foreground process of a terminal of its own."""

    def __init__(self, model, *more):
        arguments = command("-e", model, *GREEDY, "--interactive", *more)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execv(arguments[0], arguments)
        self.said = ""

    def read(self, deadline):
        """What was said meanwhile, if anything; False where the other side is closed."""
        assert time.monotonic() < deadline, f"waited in vain: {self.said}"
        if select.select([self.fd], [], [], 0.1)[0]:
            try:
                self.said += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")
            except OSError:
                return False
        return True

    def wait_for(self, pattern, seconds=300):
        """Reads until the pattern appears in what was not matched before; returns what stands up to it."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said)):
            assert self.read(deadline) or re.search(pattern, self.said), f"ended without '{pattern}': {self.said}"
        before, self.said = self.said[:found.end()], self.said[found.end():]
        return before

    def type(self, keys):
        os.write(self.fd, keys)

    def exit_code(self, *keys):
        """Types the keys and waits for the end."""
        for key in keys:
            self.type(key)
        deadline = time.monotonic() + 300
        while self.read(deadline):
            pass
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def test_on_a_terminal_there_is_a_prompt_sign_and_the_speed(model, tmp_path):
    expected = text(model, tmp_path, "from have", 20)
    terminal = Terminal(model, "-g", 20)
    assert "/new clears" in terminal.wait_for("\n> ")
    terminal.type(b"from have\n")
    assert terminal.wait_for(SPEED).startswith(f"from have\n{expected}\n[20 tokens after 10, ")
    terminal.wait_for("\n> ")
    assert terminal.exit_code(b"/quit\n") == 0


@pytest.mark.parametrize("keys, when, code", [(b"\x04", "at the prompt", 0), (b"\x03", "at the prompt", EXIT_INTERRUPTED),
                                              (b"\x03", "in an answer", EXIT_INTERRUPTED)])
def test_end_of_input_and_ctrl_c_on_a_terminal_end_the_program(model, keys, when, code):
    terminal = Terminal(model, "-g", 1000000)
    terminal.wait_for("> ")
    if when == "in an answer":
        terminal.type(b"the\n")
        terminal.wait_for(r"the\n.{10}")
    assert terminal.exit_code(keys) == code


def test_on_a_terminal_control_characters_are_made_visible(data, tmp_path):
    """A model that knows nothing but an escape sequence must not clear the screen."""
    shard = write_shard(tmp_path / "train_0.bin", list(b"\x1b[2J\n") * 400, vocab=257, eot=256)
    train("-e", "L=1,C=64,NH=2,T=32", "-b", 8, "-x", 60, "-l", 1e-2, *QUIET, "-i", shard, "-o", tmp_path / "run")
    terminal = Terminal(checkpoints(tmp_path / "run")[-1], "-g", 10)
    terminal.wait_for("> ")
    terminal.type(b"[2J\n")
    said = terminal.wait_for(SPEED)
    assert "\\x1B[2J" in said and "\x1b[2J" not in said
    assert terminal.exit_code(b"/quit\n") == 0
