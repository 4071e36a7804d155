"""Power that goes: what a save, a prepare and an export do to their files is recorded, and whatever part of it reached
the disk, the next run finds the state before or the one after, never a mixture.

    python test/faults/test_power_loss.py [STATES [SEED [WORKERS [NAME ...]]]]     10000 states each by default
"""
import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for this file as a program; else pytest.ini
from faults import disk  # noqa: E402
from faults.shim import PREPARE, SMALL, TRAINER, build, checkpoints, data, files_of, losses, make_text, shim, state_of  # noqa: E402, F401

TRAIN = [*SMALL, "-v", "2", "-m", "1", "-s", "0", "-n", "1", "-nk", "2"]


class Scenario:
    """Something that is done in directory `root`, after something else; what is found after a loss of power."""

    UNREAD = r"\.tmp-\d+$"  # names of files that the next run removes and never reads

    def __init__(self, shim, place, shards):
        self.shim, self.place, self.shards = shim, place, shards
        self.disk = place / "disk"  # on which nothing is pending
        self.root = self.disk / "run"

    def record(self):
        """Does it, and returns the disk."""
        before, trace = self.place / "before", self.place / "trace"
        self.disk.mkdir(exist_ok=True)
        shutil.copytree(self.disk, before)
        result = self.shim.run(self.command(self.root), TRACE=trace, FAULT_UNDER=self.disk)
        assert result.returncode == 0, result.stderr
        shutil.copytree(self.root, self.place / "after")
        shutil.rmtree(self.disk)
        before.rename(self.disk)
        return disk.Disk(self.disk, trace)

    def key(self, time, tree):
        """The same for states that are the same to the next run."""
        seen = {path: b"" if content and re.search(self.UNREAD, path) else content for path, content in tree.items()}
        return disk.fingerprint(seen), self.promise(time)

    def check_states(self, seed, most, workers=2):
        """Returns how many different states were tried, and how many of them differ to the next run."""
        recorded, states = self.record(), {}
        self.look(recorded)
        tried = 0
        for number, (time, tree) in enumerate(recorded.states(seed, most)):
            states.setdefault(self.key(time, tree), (number, (time, tree)))
            tried += 1

        def check(numbered):
            number, (time, tree) = numbered
            place = self.place / f"state{number}"
            disk.write(tree, place)
            try:
                self.check(place / self.root.name, time)
            except AssertionError as error:
                return f"state {number} of seed {seed}, power lost before call {time} of {recorded.time}: {error}"
            finally:
                shutil.rmtree(place)

        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(check, states.values()))
        wrong = [problem for problem in found if problem]
        assert wrong == [], "\n".join([f"{len(wrong)} of {len(found)} states:", *wrong[:10]])
        return tried, len(found)


class Training(Scenario):
    """A run with checkpoints up to step `first` goes on to step `last`; `lost`: it begins before that one again."""

    def __init__(self, shim, place, shards, first, last, lost=()):
        super().__init__(shim, place, shards)
        self.first, self.last, self.lost = first, last, lost
        if first:
            result = shim.run(self.command(self.root, first))
            assert result.returncode == 0, result.stderr
        self.end = last + 1
        for step in lost:  # a bit of it is flipped: the run saves this step again, over it
            file = self.root / f"step_{step:08d}" / "optimizer.safetensors"
            content = bytearray(file.read_bytes())
            content[-5] ^= 1
            file.write_bytes(content)

    UNREAD = r"\.tmp-\d+$|^run/\.tmp-step_\d+/|tfevents|\.lock$"

    def promise(self, time):
        """The step that no loss of power takes away."""
        return max([step for then, step in self.promised if then < time] + [self.first - len(self.lost)])

    def command(self, root, last=None):
        return [TRAINER, *TRAIN, *self.shards, "-o", root, "-x", last or self.last, "-y", "1"]

    def look(self, recorded):
        """From what moment on is each checkpoint promised? What do undisturbed runs end with?"""
        self.promised = [(time, int(line.split("step_")[1].split()[0]))
                         for time, text in recorded.marks for line in text.splitlines() if line.startswith("saved")]
        assert [step for _, step in self.promised] == list(range(self.first + 1 - len(self.lost), self.last + 1))
        whole = self.place / "whole"
        assert self.shim.run(self.command(whole, self.end)).returncode == 0
        self.expected, self.steps = state_of(checkpoints(whole)[-1]), losses(whole)

    def check(self, run, time):
        least = self.promise(time)
        result = self.shim.run(self.command(run, self.end))
        assert result.returncode == 0, result.stderr
        resumed = [int(line.split("resuming after step ")[1]) for line in result.stdout.splitlines()
                   if "resuming after step " in line] or [0]
        assert least <= resumed[0] <= self.last, f"resumed after {resumed[0]}, promised {least}\n{result.stderr}"
        assert state_of(checkpoints(run)[-1]) == self.expected, f"other bytes, resumed after {resumed[0]}"
        damaged = [line for line in (run / "main.log").read_bytes().splitlines() if not is_json(line)]
        assert damaged == [], f"the log has {damaged[0][:60]} (of {len(damaged[0])} bytes), resumed after {resumed[0]}"
        assert losses(run) == self.steps, f"the log has steps {list(losses(run))}, resumed after {resumed[0]}"
        unknown = [path.name for path in run.iterdir() if path not in checkpoints(run) and
                   path.name not in (".lock", "main.log", "options.json") and "tfevents" not in path.name and
                   not path.name.startswith("DONE_") and
                   (resumed[0] or not path.name.startswith("main.log."))]
        assert unknown == [], f"left over: {unknown}, resumed after {resumed[0]}"


def is_json(line):
    try:
        return bool(json.loads(line))
    except ValueError:
        return False


class Export(Scenario):
    """A model is exported over another one, or where there was none."""

    def __init__(self, shim, place, shards, over):
        super().__init__(shim, place, shards)
        run = place / "model"
        assert shim.run([TRAINER, *TRAIN, *shards, "-o", run, "-x", "2"]).returncode == 0
        self.models = checkpoints(run)
        self.over = over
        self.root = self.disk / "exports"
        if over:
            assert shim.run(self.command(self.root, self.models[0])).returncode == 0

    UNREAD = r"^exports/\.tmp-model-\d+/"

    def promise(self, time):
        return time > self.promised

    def command(self, root, model=None):
        return [TRAINER, "-e", model or self.models[1], "-x", "0", "-v", "0", "-s", "0", "--export", root / "model"]

    def look(self, recorded):
        self.promised = next(time for time, text in recorded.marks if "exported" in text)
        self.before = files_of(self.root) if self.over else None
        self.after = files_of(self.place / "after")

    def check(self, exports, time):
        place = exports / "model"
        found = {f"model/{name}": content for name, content in files_of(place).items()} if place.exists() else None
        assert found == self.after or (not self.promise(time) and found == self.before), \
            f"{place} has {found and {name: len(content) for name, content in found.items()}}"
        result = self.shim.run(self.command(exports))
        assert result.returncode == 0, result.stderr
        assert files_of(exports) == self.after


class Prepare(Scenario):
    """A corpus is prepared, over another one or where there was none."""

    def __init__(self, shim, place, shards, over):
        super().__init__(shim, place, shards)
        self.text, self.over = make_text(place / "text", 12, 60), over
        self.root = self.disk / "shards"
        if over:
            other = make_text(place / "other", 5, 150)
            assert shim.run([*self.command(self.root)[:-1], other]).returncode == 0

    def promise(self, time):
        return time > self.end

    def command(self, root):
        return [PREPARE, "-o", root, "--force", "--shard-tokens", "1024", "--threads", "1", "--tokenizer", "train:270",
                self.text]

    def look(self, recorded):
        self.before = files_of(self.root) if self.over else None
        self.after = files_of(self.place / "after")
        self.end = recorded.time

    def check(self, root, time):
        assert not self.promise(time) or files_of(root) == self.after
        if (root / "manifest.json").exists():  # it is complete: that of the one or of the other
            found = {name: content for name, content in files_of(root).items() if not name.startswith(".tmp-prepare")}
            assert found in (self.before, self.after), f"a mixture: {sorted(found)}"
        result = self.shim.run(self.command(root))
        assert result.returncode == 0, result.stderr
        assert files_of(root) == self.after, f"the next run ends with {sorted(files_of(root))}"


# Name, and how the scenario is made.
SCENARIOS = {
    "first save": lambda *place: Training(*place, 0, 2),
    "save": lambda *place: Training(*place, 2, 4),
    "save again": lambda *place: Training(*place, 2, 3, lost=(2,)),
    "export": lambda *place: Export(*place, over=False),
    "export again": lambda *place: Export(*place, over=True),
    "prepare": lambda *place: Prepare(*place, over=False),
    "prepare again": lambda *place: Prepare(*place, over=True),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_after_a_loss_of_power_there_is_the_state_before_or_the_one_after(name, shim, data, tmp_path):
    scenario = SCENARIOS[name](shim, tmp_path, data.flags)
    assert scenario.check_states(1, 40)[0] > 15  # an export has fewer


if __name__ == "__main__":
    import tempfile
    most, seed, workers = [int(word) for word in sys.argv[1:4]] + [10000, 1, 2][len(sys.argv[1:4]):]
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        library = build(place)
        made = library.run([PREPARE, "-o", place / "shards", make_text(place / "text")])
        flags = ["-i", str(place / "shards" / "train_*.bin"), "-j", str(place / "shards" / "val_*.bin")]
        for name in sys.argv[4:] or SCENARIOS:
            (place / name).mkdir()
            scenario = SCENARIOS[name](library, place / name, flags)
            tried, different = scenario.check_states(seed, most, workers)
            print(f"{name}: {tried} states of seed {seed}, {different} of them different to the next run: none lost",
                  flush=True)
            shutil.rmtree(place / name)
