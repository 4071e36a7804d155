"""A file or directory of the user's that has the name of one of ours: what is in it is still there after every command
that writes one of that name, and the user is told. Also: an output that is an input is refused.
"""
import os
import shutil
import sys

import pytest
from conftest import EXIT_BAD_INPUT, EXIT_RUN_FAILED, PREPARE, QUIET, ROOT, TINY, TRAIN_TOKENIZER, TRAINER, call, make_text

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
MINE = "a file of the user's\n"
CHOICES = PREPARE.with_name("choices")


@pytest.fixture(scope="module")
def ready(tmp_path_factory, data):
    """A run, a text, a plan and an export, to be copied."""
    place = tmp_path_factory.mktemp("ready")
    make_text(place / "text", documents=3)
    call(TRAINER, *TINY, *QUIET, *data.flags, "-x", 2, "-o", place / "run", "--export", place / "model", expect=0)
    (place / "plan.json").write_text(call(TRAINER, *TINY, "--plan", "json", expect=0).stdout)
    (place / "questions.jsonl").write_text('{"ctx": "a b", "endings": ["c", "d"], "label": 1}\n')
    shutil.copytree(data.directory, place / "shards")
    return place


@pytest.fixture
def place(ready, tmp_path):
    return shutil.copytree(ready, tmp_path / "place")


TRAIN = [TRAINER, *TINY, *QUIET, "-i", "shards/train_*.bin", "-j", "shards/val_*.bin", "-x", 1]
PLOT = [PYTHON, ROOT / "scripts/plot_run.py", "run"]
MEMORY = [PYTHON, ROOT / "scripts/plot_memory.py", "plan.json"]
# The file, the command that writes one of this name.
WRITERS = {
    "log": ("new/main.log", [*TRAIN, "-o", "new"]),
    "log_of_a_resume": ("new/main.log", [*TRAIN, "-o", "new", "-y", 1]),
    "options": ("new/options.json", [*TRAIN, "-o", "new"]),
    "options_of_a_resume": ("new/options.json", [*TRAIN, "-o", "new", "-y", 1]),
    "lock": ("new/.lock", [*TRAIN, "-o", "new"]),
    "checkpoint": ("new/step_00000001/model.safetensors", [*TRAIN, "-o", "new"]),
    "temporary_checkpoint": ("new/.tmp-step_00000001/config.json", [*TRAIN, "-o", "new"]),
    "temporary_options": ("new/options.json.tmp-old", [*TRAIN, "-o", "new"]),
    "profile": ("new/profile.json", [*TRAIN, "-o", "new", "--profile", 1]),
    "trace": ("new/profile_trace.json", [*TRAIN, "-o", "new", "--profile", 1]),
    "export": ("new/model.safetensors", [*TRAIN, "--export", "new"]),
    "export_over_a_model": ("model/config.json", [*TRAIN, "--export", "model"]),
    "export_over_tuned_weights": ("model/model.safetensors", [*TRAIN, "--export", "model"]),
    "export_to_a_file": ("new.bin", [*TRAIN, "--export", "new.bin"]),
    "manifest": ("new/manifest.json", [PREPARE, "-o", "new", "text"]),
    "tokenizer_of_shards": ("new/tokenizer.json", [PREPARE, "-o", "new", "text"]),
    "shard": ("new/train_000000.bin", [PREPARE, "-o", "new", "text", "--force"]),
    "last_shard": ("new/val_000007.bin", [PREPARE, "-o", "new", "text", "--force"]),
    "manifest_of_a_new_corpus": ("shards/manifest.json", [PREPARE, "-o", "shards", "text", "--force"]),
    "tokenizer": ("new.json", [TRAIN_TOKENIZER, "--vocab-size", 300, "-o", "new.json", "text"]),
    "choices": ("new.bin", [CHOICES, "--tokenizer", "shards", "questions.jsonl", "-o", "new.bin"]),
    "picture": ("new.png", [*PLOT, "-o", "new.png"]),
    "vector_picture": ("new.svg", [*PLOT, "-o", "new.svg"]),
    "page": ("new.html", [*PLOT, "--html", "new.html"]),
    "picture_by_default": ("run/curve.png", PLOT),
    "memory_picture": ("new.png", [*MEMORY, "-o", "new.png"]),
    "memory_page": ("new.html", [*MEMORY, "-o", "new.html"]),
    "libraries": ("new/env.sh", [ROOT / "dev/pack_deps.sh", "new"]),
}


def run(command, place):
    return call(*command, cwd=place, env={**os.environ, "PRETRAIN_CACHE": str(place / "cache")})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize("name", WRITERS)
def test_what_the_user_has_there_stays(name, kind, place):
    target, command = WRITERS[name]
    path = place / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    mine = place / "mine" if kind == "link" else path
    mine.write_text(MINE)
    if kind == "link":
        path.symlink_to(mine)
    result = run(command, place)
    assert result.returncode in (0, EXIT_RUN_FAILED, EXIT_BAD_INPUT) and "Traceback" not in result.stderr, result.stderr
    kept = [path for path in place.rglob("*") if path.is_file() and path.read_bytes() == MINE.encode()]
    assert mine in kept if kind == "link" else kept
    if path not in kept:  # moved, with everything around it if that is a directory
        moved = path if path.parent == place or f"{target}.1" in str(kept) else path.parent
        assert any(word in result.stdout + result.stderr for word in (f"{moved.name}.1", f"{path.parent.name.removeprefix('.tmp-')}.1"))
    if result.returncode == 0 and name not in ("temporary_options", "temporary_checkpoint", "checkpoint"):
        before = sorted(place.rglob("*"))
        again = run(command, place)  # over a file of ours nothing is said
        assert ".2" not in again.stderr or name in ("log", "log_of_a_resume"), again.stderr
        assert again.returncode in (0, EXIT_BAD_INPUT) and set(before) <= set(place.rglob("*"))


SAME = {
    "model_by_another_name": [TRAINER, "-e", "model", *QUIET, "-x", 0, "-v", 0, "--export", "link"],
    "log": [*PLOT, "--html", "run/main.log"],
    "log_as_a_picture": [*PLOT, "-o", "run/main.log"],
    "hard_link": [*PLOT, "-o", "log.png"],
    "plan": [*MEMORY, "-o", "plan.png"],
}


@pytest.mark.parametrize("name", SAME)
def test_an_output_that_is_an_input_is_refused(name, place):
    (place / "link").symlink_to("model")
    os.link(place / "run/main.log", place / "log.png")
    (place / "plan.png").symlink_to("plan.json")

    def contents():
        return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}

    before = contents()
    result = run(SAME[name], place)
    assert result.returncode == EXIT_BAD_INPUT and result.stderr.count("\n") == 1, result.stderr
    assert contents() == before
