"""Corpora mixed by weight: shares, weights that a resume changes, losses by source, refusals."""
import json
import re
import shutil
import struct

import pytest
from conftest import (EXIT_BAD_INPUT, QUIET, ROOT, TINY, TRAINER, call, checkpoints, cut_back, events, refused,
                      same_run, train, write_shard, write_state)

WHEREIS = TRAINER.with_name("whereis") if TRAINER.with_name("whereis").is_file() else ROOT / "data" / "whereis"
T, STEP = 32, 10  # windows of a step
SHAPE = [*TINY, "-d", T * STEP, "-s", 0, "-k", "constant", "-u", 0]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """web and code, 120 and 40 windows, with tokens of their own; and more, 40 windows."""
    where = tmp_path_factory.mktemp("corpora")
    for number, (name, windows) in enumerate([("web", 120), ("code", 40), ("more", 40)]):
        (where / name).mkdir()
        for split, count in ("train", windows), ("val", 12):
            tokens = [80 * number + (7 * i * i + i // 5 + len(split)) % 80 for i in range(T * count + 1)]
            write_shard(where / name / f"{split}_000000.bin", tokens, vocab=257, eot=256)
    return where


def mixed(where, **weights):
    return ",".join(f"{where}/{name}/train_*.bin:{weight}" for name, weight in weights.items())


def draws(run, first, last):
    """(corpus, epoch, window) of every window that these steps read."""
    found = []
    for step in range(first, last + 1):
        for line in call(WHEREIS, run, step, expect=0).stdout.splitlines()[2:]:
            words = line.split()
            found.append((words[6].split("/")[-2], int(words[2]), int(words[3])))
    assert len(found) == (last + 1 - first) * STEP
    return found


def of(name, found):
    return [draw[1:] for draw in found if draw[0] == name]


def assert_shares(found, **shares):
    for n in range(1, len(found) + 1):
        for name, share in shares.items():
            assert abs(len(of(name, found[:n])) - share * n) <= 1, (name, n)


def assert_no_repetition(sequence, windows):
    """Each epoch has every window once, in an order of its own."""
    for epoch in range(0, len(sequence), windows):
        part = sequence[epoch:epoch + windows]
        assert {number for number, _ in part} == {epoch // windows + 1}
        assert len({window for _, window in part}) == len(part)


def changes(result):
    lines = result.stdout.split("changed since the checkpoint:\n")
    return [] if len(lines) < 2 else lines[1].split("\nstep ")[0].splitlines()


# --------------------------------------------------------------------------------------------------------------- shares

def test_a_run_reads_its_corpora_in_their_shares(corpora, tmp_path):
    run = tmp_path / "run"
    said = train(*SHAPE, "-i", mixed(corpora, web=0.7, code=0.3), "-o", run, "-x", 20, "-v", 0).stdout
    assert "data        2 corpora, 5.122K tokens in 2 shards; 20 steps read" in said
    assert "            web: share 70%, 4.480K tokens of 3.841K in 1 shard, 1.17 epochs" in said
    assert "            code: share 30%, 1.920K tokens of 1.281K in 1 shard, 1.50 epochs" in said
    assert "            web: 4.480K tokens, 1.17 epochs of the whole run" in said.split("summary")[1]
    end, = events(run, "end")
    assert [(s["name"], s["windows"], s["tokens"], s["epochs"]) for s in end["sources"]] == [
        ("web", 140, 4480, 1.16667), ("code", 60, 1920, 1.5)]
    train_data = events(run, "run")[0]["train"]
    assert [(s["name"], s["share"], s["windows"]) for s in train_data["sources"]] == [("web", 0.7, 120), ("code", 0.3, 40)]
    found = draws(run, 1, 20)
    assert_shares(found, web=0.7, code=0.3)
    assert_no_repetition(of("web", found), 120)
    assert_no_repetition(of("code", found), 40)


def test_a_source_is_read_in_the_order_of_a_run_on_it_alone(corpora, tmp_path):
    train(*SHAPE, *QUIET, "-i", mixed(corpora, web=1, code=2), "-o", tmp_path / "mixed", "-x", 6)
    train(*SHAPE, *QUIET, "-i", corpora / "code" / "train_*.bin", "-o", tmp_path / "alone", "-x", 6)
    code = of("code", draws(tmp_path / "mixed", 1, 6))
    assert code == of("code", draws(tmp_path / "alone", 1, 6))[:len(code)]


# -------------------------------------------------------------------------------------------------------------- resumes

def test_other_weights_at_a_resume_continue_each_source_where_it_was(corpora, tmp_path):
    options = [*SHAPE, *QUIET, "-n", 4, "-nk", 0]
    for run in tmp_path / "a", tmp_path / "b":
        train(*options, "-i", mixed(corpora, web=0.7, code=0.3), "-x", 4, "-o", run)
        said = changes(train(*options, "-y", 1, "-i", mixed(corpora, more=0.3, web=0.2, code=0.5), "-x", 12, "-o", run))
        assert said[0].startswith("--train-data ") and "(was " in said[0]
        assert said[2:5] == ["more: share 30%, new", "web: share 20% (was 70%), continues after 28 windows",
                             "code: share 50% (was 30%), continues after 12 windows"]
        cut_back(run, kept=2)  # after step 8, in the middle of the new weights
        assert changes(train(*options, "-y", 1, "-o", run)) == []
        # And without one source, which comes back later.
        said = changes(train(*options, "-y", 1, "-i", mixed(corpora, web=1, code=1), "-x", 16, "-o", run))
        assert f"{corpora}/more/train_*.bin: left out after 24 windows" in said
        said = changes(train(*options, "-y", 1, "-i", mixed(corpora, more=1), "-x", 20, "-o", run))
        assert "more/train_*.bin: share 100% (was 0%), continues after 24 windows" in said[2]
    assert same_run(tmp_path / "a", tmp_path / "b")
    found = draws(tmp_path / "a", 1, 20)
    assert_shares(found[:40], web=0.7, code=0.3)
    assert_shares(found[40:120], more=0.3, web=0.2, code=0.5)
    assert_shares(found[120:160], web=0.5, code=0.5)
    assert_shares(found[160:], more=1)
    for name, windows in ("web", 120), ("code", 40), ("more", 40):
        assert_no_repetition(of(name, found), windows)


def test_a_run_on_one_corpus_can_become_a_mixture_and_one_corpus_again(corpora, tmp_path):
    options = [*SHAPE, *QUIET, "-o", tmp_path, "-nk", 0]
    train(*options, "-i", corpora / "code" / "train_*.bin", "-x", 3)
    said = changes(train(*options, "-y", 1, "-i", mixed(corpora, web=1, code=1), "-x", 6))
    assert said[2:] == ["web: share 50%, new", "code: share 50% (was 100%), continues after 30 windows"]
    said = changes(train(*options, "-y", 1, "-i", corpora / "code" / "train_*.bin", "-x", 9))
    assert "continues after 45 windows" in said[2] and "web/train_*.bin: left out after 15 windows" in said[3]
    assert_no_repetition(of("code", draws(tmp_path, 1, 9)), 40)


def test_a_corpus_of_a_mixture_may_grow(corpora, tmp_path):
    grown = tmp_path / "grown"
    grown.mkdir()
    for name in "web", "code":
        (grown / name).mkdir()
        (grown / name / "train_0.bin").write_bytes((corpora / name / "train_000000.bin").read_bytes())
    options = [*SHAPE, *QUIET, "-i", mixed(grown, web=1, code=1), "-o", tmp_path / "run"]
    train(*options, "-x", 2)
    (grown / "web" / "train_1.bin").write_bytes((corpora / "more" / "train_000000.bin").read_bytes())
    said = train(*options, "-y", 1, "-x", 4)
    assert "web: the shards have changed: the checkpoint has 3841 tokens" in said.stderr and "code:" not in said.stderr
    assert "continues after" not in said.stdout


def test_a_mixture_is_found_from_another_directory(corpora, tmp_path):
    pattern = "web/train_*.bin:2,code/train_*.bin:1"
    shape = [str(x) for x in [TRAINER, *SHAPE, *QUIET]]
    call(*shape, "-i", pattern, "-x", 3, "-o", tmp_path / "run", cwd=corpora, expect=0)
    said = call(*shape, "-y", 1, "-x", 6, "-o", tmp_path / "run", cwd=tmp_path, expect=0)
    assert [line for line in changes(said) if "data" in line] == []
    assert call(WHEREIS, tmp_path / "run", 5, expect=0, cwd=tmp_path).stdout.count(f"{corpora}/web/train") > 5
    again = call(*shape, "-y", 1, "-x", 9, "-i", "web/train_*.bin:2,./code/train_*.bin:1", "-o", tmp_path / "run",
                 cwd=corpora, expect=0)
    assert "share" not in "\n".join(changes(again))


def test_overfit_reads_the_first_step_of_the_mixture(corpora, tmp_path):
    train(*SHAPE, *QUIET, "-a", 1, "-i", mixed(corpora, web=0.7, code=0.3), "-o", tmp_path, "-x", 3)
    assert draws(tmp_path, 1, 1) == draws(tmp_path, 3, 3)
    train(*SHAPE, *QUIET, "-a", 1, "-y", 1, "-i", mixed(corpora, web=0.3, code=0.7), "-o", tmp_path, "-x", 6)
    assert draws(tmp_path, 4, 4) == draws(tmp_path, 6, 6) != draws(tmp_path, 1, 1)


# ----------------------------------------------------------------------------------------------------------- validation

def scalars(directory):
    """tag -> value of every scalar in the event files, the last one wins."""
    found = {}
    for path in directory.glob("events.out.tfevents.*"):
        for match in re.finditer(rb"\n.(val/[ -~]*?)\x15(....)", path.read_bytes(), re.S):
            found[match[1].decode()] = struct.unpack("<f", match[2])[0]
    return found


def test_validation_has_a_loss_for_each_source(corpora, tmp_path):
    run = tmp_path / "run"
    said = train(*SHAPE, "-i", mixed(corpora, web=0.75, code=0.25), "-o", run, "-x", 4, "-v", 2, "-m", 5).stdout
    last = events(run, "validation")[-1]
    web, code = last["sources"]
    assert (web["name"], web["share"], code["name"], code["share"]) == ("web", 0.75, "code", 0.25)
    assert last["tokens"] == web["tokens"] + code["tokens"] == 2 * 5 * T
    assert last["loss"] == pytest.approx(0.75 * web["loss"] + 0.25 * code["loss"], rel=1e-14)
    assert f"web at step 4 | loss {web['loss']:.4f}" in said and f"code at step 4 | loss {code['loss']:.4f}" in said
    shown = scalars(run)
    assert shown["val/loss/web"] == pytest.approx(web["loss"], rel=1e-6)
    assert shown["val/loss/code"] == pytest.approx(code["loss"], rel=1e-6)
    state = json.loads((checkpoints(run)[-1] / "trainer.json").read_text())
    assert state["best_val_loss"] == min(e["loss"] for e in events(run, "validation"))
    # Each is the loss that -j on it alone gives.
    for source in web, code:
        train("-e", checkpoints(run)[-1], "-x", 0, "-s", 0, "-m", 5, "-j", corpora / source["name"] / "val_*.bin",
              "-o", tmp_path / source["name"])
        assert events(tmp_path / source["name"], "validation")[0]["loss"] == source["loss"]


def test_j_has_weights_of_its_own(corpora, tmp_path):
    pattern = f"{corpora}/web/val_*.bin:1,{corpora}/more/val_*.bin:3"
    train(*SHAPE, "-i", mixed(corpora, web=0.7, code=0.3), "-j", pattern, "-o", tmp_path, "-x", 1, "-v", 1)
    score = events(tmp_path, "validation")[-1]
    assert [(s["name"], s["share"]) for s in score["sources"]] == [("web", 0.25), ("more", 0.75)]
    assert score["loss"] == pytest.approx(sum(s["share"] * s["loss"] for s in score["sources"]), rel=1e-14)


def test_a_source_without_validation_data_is_named(corpora, tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "train_0.bin").write_bytes((corpora / "more" / "train_000000.bin").read_bytes())
    pattern = mixed(corpora, web=1) + f",{tmp_path}/bare/train_*.bin:1"
    said = train(*SHAPE, "-i", pattern, "-x", 1).stdout
    assert f"validation  off: no '{tmp_path}/bare/val_*.bin' beside the training data" in said


# --------------------------------------------------------------------------------------------------------- paths, plans

def test_paths_with_commas_and_colons_are_usable(corpora, tmp_path):
    shard = (corpora / "web" / "train_000000.bin").read_bytes()
    for name in "a:0.5,b:0.5", "c,d.bin", "e:1.bin":
        (tmp_path / name).write_bytes(shard)
    for name in "a:0.5,b:0.5", "c,d.bin", "e:1.bin", "[a]:0.5,b:0.5":
        assert "2 corpora" not in train(*SHAPE, *QUIET, "-i", tmp_path / name, "-x", 1).stdout
    (tmp_path / "c,d.bin").write_bytes((corpora / "code" / "train_000000.bin").read_bytes())
    said = train(*SHAPE, *QUIET, "-i", f"{tmp_path}/c\\,d.bin:0.5,{tmp_path}/e:1.bin:0.5", "-x", 1).stdout
    assert "2 corpora" in said and "c\\,d.bin: share 50%" in said and "e:1.bin: share 50%" in said


def test_a_plan_states_the_shares(corpora):
    options = ["-e", "d12", "--gpu", "h200", "-b", 8, "-d", 65536, "-x", 1000, "-i", mixed(corpora, web=0.7, code=0.3)]
    said = train(*options, "--plan", "text").stdout
    assert "plan        web: share 70%, 45.88M tokens\nplan        code: share 30%, 19.66M tokens\n" in said
    sources = json.loads(train(*options, "--plan", "json").stdout)["run"]["sources"]
    assert sources == [{"name": "web", "share": 0.7}, {"name": "code", "share": 0.3}]


def test_whereis_refuses_another_mixture(corpora, tmp_path):
    train(*SHAPE, *QUIET, "-i", mixed(corpora, web=0.7, code=0.3), "-o", tmp_path, "-x", 1)
    said = call(WHEREIS, tmp_path, 1, corpora / "web" / "train_*.bin", expect=2).stderr
    assert "1 corpora, the run mixed 2" in said
    moved = call(WHEREIS, tmp_path, 1, mixed(corpora, web=1, code=1), expect=0).stdout.splitlines()[2:]
    assert moved == call(WHEREIS, tmp_path, 1, expect=0).stdout.splitlines()[2:]


# ---------------------------------------------------------------------------------------------- data that are the same

def test_a_copy_of_a_corpus_is_no_second_corpus_and_no_validation(corpora, tmp_path):
    shutil.copytree(corpora, tmp_path / "copy")
    shutil.copy(corpora / "code/train_000000.bin", tmp_path / "copy/web/train_000001.bin")
    refused(*SHAPE, *QUIET, "-x", 1, "-i", f"{corpora}/web/train_*.bin:1,{tmp_path}/copy/web/train_*.bin:1",
            words=["web/train_000000.bin: is the same data as", "copy", "larger weight"])
    refused(*SHAPE, "-x", 1, "-i", corpora / "web/train_*.bin", "-j", tmp_path / "copy/web/train_*.bin",
            words=["would train on validation data", "the same data as"])
    said = train(*SHAPE, "-x", 1, "-i", corpora / "code/train_*.bin", "-j", tmp_path / "copy/code/train_*.bin").stdout
    assert "the text that is trained on" in said


def test_corpora_that_exchange_places_keep_their_counts(corpora, tmp_path):
    """By their data, whatever their names are, and before a corpus of the name continues."""
    where = tmp_path / "here"
    shutil.copytree(corpora, where)
    for name in "exchanged", "moved":
        train(*SHAPE, *QUIET, "-i", mixed(where, web=0.7, code=0.3), "-o", tmp_path / name, "-x", 10)
    for old, new in ("web", "third"), ("code", "web"), ("third", "code"):
        (where / old).rename(where / new)
    said = changes(train(*SHAPE, *QUIET, "-y", 1, "-i", mixed(where, web=0.3, code=0.7), "-o", tmp_path / "exchanged", "-x", 11))
    assert "web: share 30% (was 30%), continues after 30 windows" in " ".join(said)
    assert "code: share 70% (was 70%), continues after 70 windows" in " ".join(said)
    shutil.copy(where / "more/train_000000.bin", where / "web/train_000000.bin") # code has what was web's, web others
    said = changes(train(*SHAPE, *QUIET, "-y", 1, "-i", mixed(where, web=0.3, code=0.7), "-o", tmp_path / "moved", "-x", 11))
    assert "code: share 70% (was 70%), continues after 70 windows" in " ".join(said) and "web: share 30%, new" in " ".join(said)


def test_a_change_between_the_samples_is_seen_by_a_resume_and_an_older_checkpoint_resumes(corpora, tmp_path):
    shards, run = tmp_path / "train_000000.bin", tmp_path / "run"
    write_shard(shards, [i * i % 251 for i in range(30000)], vocab=257, eot=256)
    train(*SHAPE, *QUIET, "-i", shards, "-o", run, "-x", 2)
    older = tmp_path / "older"
    shutil.copytree(run, older)
    state = json.loads((checkpoints(older)[-1] / "trainer.json").read_text())
    del state["data"]["train"]["contents"]
    write_state(checkpoints(older)[-1], state)
    assert "have changed" not in train(*SHAPE, *QUIET, "-i", shards, "-o", run, "-x", 3, "-y").stderr
    assert "have changed" not in train(*SHAPE, *QUIET, "-i", shards, "-o", older, "-x", 3, "-y").stderr
    with open(shards, "r+b") as file:
        file.seek(1024 + 2 * 5000)
        file.write(bytes(2 * 5000))
    assert "-i: the shards have changed" in train(*SHAPE, *QUIET, "-i", shards, "-o", run, "-x", 4, "-y").stderr


WRITTEN = ["A,B", "A;B", "A B", "A+B", "0.5 A 0.5 B", "0.5*A,0.5*B", "A=0.5,B=0.5", "A@0.5;B@0.5", "A:50%,B:50%", '{"A": 0.5, "B": 0.5}']


@pytest.mark.parametrize("written", WRITTEN)
def test_a_mixture_that_is_written_as_other_programs_have_it_is_shown_as_it_is_written_here(written, corpora, tmp_path):
    web, code = (f"{corpora}/{name}/train_*.bin" for name in ("web", "code"))
    weight = 50 if "%" in written else 0.5 if "0.5" in written else 1
    said = train(*SHAPE, *QUIET, "-x", 1, "-i", written.replace("A", web).replace("B", code), expect=EXIT_BAD_INPUT).stderr
    assert f"a mixture is written '{web}:{weight},{code}:{weight}'" in said
