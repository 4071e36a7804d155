"""A later command counts: of options that exclude each other the last one given is remembered, auto given after a number is
auto again, and a command that is started once more, as a queue does, goes on where it was."""
import json
import re
import shutil

import pytest
from conftest import QUIET, TINY, checkpoints, cut_back, events, kill, losses, refused, same_run, start, train, wait_for

STOP = ["--max-minutes", 0.0001]  # after one step
STEP = 4 * 32  # tokens
FLAGS = [*TINY, *QUIET, "--threads", 1]
MUON = ["--optimizer", "muon"]


def options_of(run):
    return json.loads((checkpoints(run)[-1] / "trainer.json").read_text())["options"]


def lengths_of(run):
    return [event["total_steps"] for event in events(run, "run")]


# The length of the run by the first command, by the second, and steps of the second.
EPOCH = ["-x", -1]
LENGTHS = [
    (["--tokens", 3 * STEP], ["-x", 6], 6),
    (["--tokens", 3 * STEP], EPOCH, None),
    (["-x", 3], ["--tokens", 6 * STEP], 6),
    (["--ratio", 1], ["-x", 6], 6),
    (["--ratio", 1], ["--tokens", 6 * STEP], 6),
    (["-x", 3], ["--ratio", 1], 897),  # (98,304 + 257 x 64) / 128
    (["--tokens", 3 * STEP], ["--ratio", 2], 1793),
    (["-x", 3], ["--tokens", "auto"], 17930),
    (["--tokens", "auto"], ["-x", 6], 6),
    (["--ratio", 1], ["--ratio", 2], 1793),
    (["--ratio", 2], ["--tokens", "auto"], 1793),  # whose auto the ratio is
    (["--tokens", 6 * STEP], ["--tokens", 0], None),
]


@pytest.mark.parametrize("first, second, steps", LENGTHS, ids=[f"{a[0].strip('-')} then {b[0].strip('-')} {b[1]}" for a, b, _ in LENGTHS])
def test_the_length_of_the_later_command_is_that_of_all_that_follow(first, second, steps, data, tmp_path):
    run = tmp_path / "run"
    train(*FLAGS, *data.flags, *first, *STOP, "-o", run)
    train("-o", run, "-y", *second, *STOP)
    train("-o", run, "-y", *STOP)
    _, second_length, third_length = lengths_of(run)
    if steps is None:  # the epoch of a run without a length
        train(*FLAGS, *data.flags, *STOP, "-o", tmp_path / "epoch")
        steps = lengths_of(tmp_path / "epoch")[0]
    assert (second_length, third_length) == (steps, steps)
    # What is not in force is not remembered either.
    options = options_of(run)
    assert sum([options["max-steps"] > 0, options["tokens"] > 0 and "tokens" not in options["chosen"], options["ratio"] > 0]) <= 1


def test_a_command_that_was_killed_before_it_saved_is_remembered(data, tmp_path):
    run = tmp_path / "run"
    train(*FLAGS, *data.flags, "-x", 2, "-o", run)
    process = start("-o", run, "-y", "-x", 1000000, "-n", 0)
    assert wait_for(lambda: len(losses(run)) > 3, process)
    kill(process)
    said = train("-o", run, "-y", *STOP).stdout
    assert "step       3/1000000 " in said and "--max-steps 1000000 (was 2)" in said
    # A damaged memory is no reason to stop: the checkpoint has the options of its own.
    whole = (run / "options.json").read_bytes()
    (run / "options.json").write_bytes(whole.replace(b'"seed":1337', b'"seed":1338'))
    assert "damaged" in train("-o", run, "-y", *STOP).stderr


def test_a_command_that_is_refused_is_not_remembered(data, tmp_path):
    run = tmp_path / "run"
    train(*FLAGS, *data.flags, "-x", 2, "-o", run)
    refused("-o", run, "-y", "-x", 9, "--optimizer", "sgd", words=["has the state of --optimizer adamw"])
    assert "nothing to do: the run is at step 2 of 2" in train("-o", run, "-y").stdout


@pytest.mark.parametrize("first, second, option, expected", [
    (["-l", 1e-3], ["-l", "auto"], "learning-rate", 0.00185),
    (["-l", "auto"], ["-l", 1e-3], "learning-rate", 1e-3),
    (["-l", 1e-3, *MUON], ["-l", "auto"], "lr-embedding", 0.0277),
    (["-l", "auto", *MUON], ["-l", 1e-3], "lr-embedding", -1),  # that of -l, as in a run begun so
    (["-l", 1e-3, "--lr-embedding", 2e-3, *MUON], ["-l", 2e-3], "lr-embedding", 2e-3),
    (["--lr-embedding", 2e-3, *MUON], ["--lr-embedding", "auto"], "lr-embedding", 0.0277),
    (["--lr-vectors", 2e-3, *MUON], ["--lr-vectors", "auto"], "lr-vectors", 0.015),
    (["-d", STEP], ["-d", "auto", "--tokens", "1e6"], "total-batch", 32768),
    ([], ["-d", "auto", "--tokens", "1e6"], "total-batch", 32768),
    (["-d", "auto", "--tokens", "1e6"], ["-d", STEP], "total-batch", STEP),
    (["-c", 0.3, *MUON], ["-c", "auto"], "weight-decay", 1),
    (["-c", "auto", *MUON], ["-c", 0.3], "by-group", ""),
    (["-c", "auto", *MUON], ["-c", 0], "by-group", ""),
    (["-l", "auto", *MUON], ["-l", 0], "lr-vectors", -1),
    (["-c", "auto", "--by-group", "vectors.decay=0.2", *MUON], ["-c", 0.3], "by-group", "vectors.decay=0.2"),
])
def test_auto_and_a_number_replace_each_other(first, second, option, expected, data, tmp_path):
    run, length = tmp_path / "run", [] if "--tokens" in first else ["-x", 100]
    train(*FLAGS, *data.flags, *length, *first, *STOP, "-o", run)
    train("-o", run, "-y", *second, *STOP)
    assert options_of(run)[option] == expected
    train("-o", run, "-y", *second, *STOP)  # the same words once more
    train("-o", run, "-y", *STOP)
    assert options_of(run)[option] == expected


@pytest.mark.parametrize("words", [
    ["--tokens", "auto", "--ratio", 1], ["--tokens", "auto", "-x", 100], ["--tokens", "auto"], ["--ratio", 1],
    [*MUON, "-l", "auto", "-c", "auto", "-d", "auto", "--tokens", "1e6", "--lr-embedding", "auto"],
    ["-x", 100, "--by-group", "vectors.decay=0.1", "--d-ff", 72, "-t", 16], ["-x", 100, "-b", "auto", "-r", "auto", "-d", 256],
    ["-x", 100, "-h", 0, "-w", 1, "--reduce-groups", 1, "-u", 3, "-k", "wsd", "-q", 0],
])
def test_the_words_of_the_start_resume_the_run(words, data, tmp_path):
    command = [*FLAGS, *data.flags, *words, "-y", *STOP, "-o", tmp_path / "run"]
    for step in range(1, 4):
        assert re.search(rf"^step +{step}/", train(*command).stdout, re.M)
    first, *later = [event["options"] for event in events(tmp_path / "run", "run")]
    assert later == [first, first] and len(set(lengths_of(tmp_path / "run"))) == 1


def test_another_optimizer_has_rates_of_its_own(data, tmp_path):
    run = tmp_path / "run"
    train(*FLAGS, *data.flags, "-x", 100, *STOP, "-o", run)
    train("-o", run, "-y", "weights", "--optimizer", "lion", *STOP)
    assert options_of(run)["learning-rate"] == 0.00037  # a fifth of AdamW's 0.00185
    train("-o", run, "-y", "weights", "--optimizer", "muon", *STOP)
    assert [options_of(run)[name] for name in ("learning-rate", "lr-embedding", "lr-vectors")] == [0.0156, 0.0277, 0.015]


# ------------------------------------------------------------------------------------------------------- -y weights


SAVES = ["-k", "constant", "-u", 2, "-n", 1, "-nk", 0]
WEIGHTS = ["-y", "weights", *MUON, "-l", "1e-3", "-x", 8]


def updates_of(run):
    return json.loads((checkpoints(run)[-1] / "trainer.json").read_text())["control"]["updates"]


@pytest.fixture
def begun(data, tmp_path):
    train(*FLAGS, *SAVES, *data.flags, "-x", 4, "-o", tmp_path / "begun")
    return tmp_path / "begun"


@pytest.mark.parametrize("kept", range(5, 8))
def test_a_requeued_command_begins_the_state_once(kept, begun, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    train("-o", shutil.copytree(begun, whole), *WEIGHTS)
    assert updates_of(whole) == 4
    cut_back(shutil.copytree(whole, run), kept)
    result = train("-o", run, *WEIGHTS)
    assert f"step {kept} already has the state that this command began" in result.stderr
    assert "starts with a new state" not in result.stdout
    assert same_run(run, whole) and updates_of(run) == 4


def test_bare_resumes_between_do_not_make_it_another_command(begun):
    train("-o", begun, *WEIGHTS, *STOP)
    train("-o", begun, "-y", *STOP)
    assert "already has the state" in train("-o", begun, *WEIGHTS, *STOP).stderr and updates_of(begun) == 3
    # Other words are another command.
    said = train("-o", begun, *WEIGHTS, "-l", "2e-3", *STOP).stdout
    assert "-y weights: muon starts with a new state after step 7" in said and updates_of(begun) == 1


def test_a_new_state_that_was_not_saved_is_begun_by_the_next_resume(begun, tmp_path):
    whole = tmp_path / "whole"
    train("-o", shutil.copytree(begun, whole), *WEIGHTS)
    process = start("-o", begun, *WEIGHTS[:-1], 1000000, "-n", 0)
    assert wait_for(lambda: len(losses(begun)) > 5, process)
    kill(process)
    said = train("-o", begun, "-y", "-x", 8, "-n", 1).stdout
    assert "-y weights: muon starts with a new state after step 4" in said
    assert losses(begun) == losses(whole) and updates_of(begun) == 4


def test_a_run_that_such_a_command_begins_goes_on_by_it(data, tmp_path):
    run, command = tmp_path / "run", [*FLAGS, *SAVES, *data.flags, "-y", "weights", "-x", 4]
    train(*command, *STOP, "-o", run)
    assert "already has the state" in train(*command, "-o", run).stderr and updates_of(run) == 4


# ------------------------------------------------------------------------------------------- together with earlier ones


def test_options_are_checked_against_those_of_the_run(data, tmp_path):
    run = tmp_path / "run"
    train(*FLAGS, *data.flags, "--optimizer", "adamw-bf16", "-x", 1, "-o", run)
    refused("-o", run, "-y", "-x", 2, "-w", 1, words=["-w 1: this --optimizer keeps no master weights"])
    refused("-o", run, "-y", "-x", 2, "-h", "x_*.bin", words=["-h: scored at every validation, but -v 0"])
    assert re.search("step 2/2 ", train("-o", run, "-y", "-x", 2).stdout)


# -------------------------------------------------------------------------------------------- a learning rate that rises


def rates_of(run):
    return {event["step"]: event["lr"] for event in events(run, "step")}


@pytest.mark.parametrize("first, second", [
    (["-l", "1e-2", "-x", 8], ["-x", 16]),
    (["-l", "1e-2", "-x", 8, "-k", "linear"], ["-l", "3e-2", "-x", 16]),
    (["-x", 8, *MUON], ["-x", 16]),
    (["-l", "1e-2", "-x", 8, "-k", "wsd"], ["-x", 16, "-k", "constant"]),
])
def test_a_rate_that_rises_at_a_resume_is_announced_and_can_be_avoided(first, second, data, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    train(*FLAGS, *data.flags, *first, "-o", run)
    shutil.copytree(run, other)
    said = train("-o", run, "-y", *second).stdout
    rates = rates_of(run)
    found = re.search(r"^rate  .* rises at this resume: (\S+) at step 8, (\S+) at step 9; (.*) continues at the old rate$", said, re.M)
    assert [float(found[1]), float(found[2])] == [float(f"{rates[step]:.3g}") for step in (8, 9)]
    # The options that it names are all that is needed.
    advised = found[3].split()
    train("-o", other, "-y", *[word for word in second if word not in ("-l", "3e-2")], *advised)
    assert rates_of(other)[9] == pytest.approx(rates[8], rel=0.01)
    assert ("--lr-embedding" in advised) == ("muon" in first)


def test_a_rate_that_has_fallen_to_0_is_announced_too(data, tmp_path):
    run = tmp_path / "run"
    train(*FLAGS, *data.flags, "-q", 0, "-x", 4, "-o", run)
    said = train("-o", run, "-y", "-x", 8).stdout
    assert "the learning rate rises at this resume: 0 at step 4, 0.00" in said and "a smaller -l rises less" in said


def test_a_rate_that_goes_on_as_it_was_is_not_announced(data, tmp_path):
    flags = [*FLAGS, *data.flags, "-n", 2, "-nk", 0]
    train(*flags, "-x", 8, "-u", 6, "-o", tmp_path / "warm")  # in the middle of its warm-up
    assert " rises " not in train("-o", cut_back(tmp_path / "warm", 2), "-y").stdout
    train(*flags, "-x", 8, "-k", "constant", "-o", tmp_path / "constant")
    assert " rises " not in train("-o", tmp_path / "constant", "-y", "-x", 12).stdout
    train(*flags, "-x", 8, "-o", tmp_path / "lower")
    assert " rises " not in train("-o", tmp_path / "lower", "-y", "-x", 12, "-l", "1e-6").stdout


@pytest.mark.parametrize("flags, words", [
    (["-x", 4, "-u", 4], "never reaches its end: step 4, the last, is in the warm-up of 4 steps"),
    (["-x", 4, "-u", 9, "-k", "constant"], "never reaches its end: step 4, the last, is in the warm-up of 9 steps"),
    (["-x", 1, "-q", 0], "its only step has the rate of the last, 0, and changes no weight"),
    (["-x", 1], "its only step has the rate of the last, 0.000185;"),
    (["-x", 1, "-k", "constant"], None),
    (["-x", 1, "-q", 1], None),
    (["-x", 2, "-q", 0], None),
    (["-x", 4, "-u", 3], None),
    (["-x", 0, "-u", 3, "-e", "d6", "-v", 0], None),
])
def test_a_schedule_that_leaves_out_its_peak_or_its_end_says_so(flags, words, data):
    said = train(*FLAGS, *data.flags, *flags).stdout
    assert ("the schedule never" in said) == (words is not None) and (words or "") in said
