"""Steps that end in their middle: a signal at any call on the files of a run, or data that cannot be read for a moment.
What is saved then is the last whole step, and the resume has the bits of an undisturbed run, whatever state the options have.

    python test/faults/test_half_steps.py [SIGNALS [SEED [WORKERS]]]     500 signals by default
"""
import errno
import json
import random
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for this file as a program; else pytest.ini
from faults.shim import (CLASSES, EXIT_BAD_INPUT, EXIT_RUN_FAILED, PREPARE, SMALL, TRAINER, build, checkpoints, data,  # noqa: E402, F401
                         losses, make_text, shim, state_of)
from runs import EXIT_INTERRUPTED  # noqa: E402

STEPS, MICRO_STEPS = 3, 4
TRAIN = [*SMALL, "-d", str(32 * MICRO_STEPS), "-x", str(STEPS), "-n", "1", "-s", "0"]
# Options with state of their own.
OPTIONS = {
    "adamw": [],
    "stochastic": ["--dtype", "bf16", "--grad-dtype", "compute"],
    "groups": ["--dtype", "bf16", "--grad-dtype", "compute", "--reduce-groups", "3"],
    "no master": ["--dtype", "bf16", "-w", "0"],
    "fp16": ["--dtype", "fp16"],
    "fp8": ["--dtype", "bf16", "--fp8", "1"],
    "outliers": ["-sl", "2", "-sg", "2"],
    "offload": ["--offload", "optimizer"],
    **{name: ["--optimizer", name] for name in ("adamw8bit", "adamw-bf16", "adamw-kahan", "lion", "adafactor", "sgd", "muon")},
}


class Run:
    """A run with these options, and what it ends with when nothing disturbs it."""

    def __init__(self, shim, place, shards, options, evaluations=()):
        self.shim, self.place, self.count = shim, place, 0
        self.flags = [TRAINER, *TRAIN, *shards, *options, *evaluations]
        self.whole, counts = place / "whole", place / "counts"
        result = shim.run([*self.flags, "-o", self.whole], FAULT_UNDER=self.whole, FAULT_COUNTS=counts)
        if result.returncode == EXIT_BAD_INPUT and "not available" in result.stderr:
            pytest.skip(result.stderr.strip())
        assert result.returncode == 0, result.stderr
        self.calls = shim.counts(counts)[0]

    def disturb(self, expected, **fault):
        """Runs it with the fault, then to its end without; returns the exit code of the first."""
        self.count += 1
        root = self.place / f"run{self.count}"
        fault = {name: root if value == "RUN" else value for name, value in fault.items()}
        first = self.shim.run([*self.flags, "-o", root], **fault)
        told = f"{fault}: exit code {first.returncode}, {first.stderr}"
        assert first.returncode in expected, told
        again = self.shim.run([*self.flags, "-o", root, "-y", "1"])
        assert again.returncode == 0, f"{told}; then {again.stderr}"
        for checkpoint in checkpoints(root):
            assert state_of(checkpoint) == state_of(self.whole / checkpoint.name), f"{told}; {checkpoint.name}"
            assert control_of(checkpoint) == control_of(self.whole / checkpoint.name), f"{told}; {checkpoint.name}"
        assert checkpoints(root)[-1].name == checkpoints(self.whole)[-1].name, told
        assert losses(root) == losses(self.whole), told
        shutil.rmtree(root)
        return first.returncode

    def signals(self, count, choose, workers=2):
        """So many signals, each at another call; returns the calls and the exit codes."""
        calls = [(name, at) for name in CLASSES if name != "malloc" for at in range(1, self.calls[name] + 1)]
        chosen = choose.sample(calls, min(count, len(calls)))

        def send(call):
            return self.disturb((0, EXIT_INTERRUPTED, -signal.SIGTERM), FAULT_UNDER="RUN", FAULT_CLASS=call[0],
                                FAULT_AT=call[1], FAULT_SIGNAL=int(signal.SIGTERM))

        with ThreadPoolExecutor(workers) as pool:
            return chosen, list(pool.map(send, chosen))


def control_of(checkpoint):
    """The state of the step control, and where in the data the run is."""
    state = json.loads((checkpoint / "trainer.json").read_text())
    return state["step"], state["position"], state["control"]


@pytest.mark.parametrize("name", OPTIONS)
def test_data_that_fail_in_the_middle_of_a_step_and_are_repaired_leave_no_trace(name, shim, data, tmp_path):
    run = Run(shim, tmp_path, data.flags, OPTIONS[name], ["-v", "0"])
    windows = 2 * MICRO_STEPS  # a step reads each with one call, after those by which the shards are opened
    opening = 3 * len(list(data.directory.glob("*_*.bin")))
    codes = [run.disturb((EXIT_RUN_FAILED,), FAULT_UNDER=data.directory, FAULT_CLASS="read", FAULT_ERROR=errno.EIO,
                         FAULT_AT=opening + step * windows + at) for step, at in ((1, 5), (2, 4))]
    assert codes == [EXIT_RUN_FAILED] * 2


@pytest.mark.parametrize("name", ["stochastic", "groups", "muon"])
def test_a_signal_at_any_call_on_the_files_of_a_run_leaves_no_trace(name, shim, data, tmp_path):
    run = Run(shim, tmp_path, data.flags, OPTIONS[name], ["-v", "2", "-m", "1", "-nk", "0"])
    _, codes = run.signals(12, random.Random(name))
    assert codes.count(EXIT_INTERRUPTED) > 3


if __name__ == "__main__":
    import collections
    import tempfile
    signals, seed, workers = [int(word) for word in sys.argv[1:4]] + [500, 1, 2][len(sys.argv[1:4]):]
    choose, calls, all_codes = random.Random(seed), set(), collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        library = build(place)
        library.run([PREPARE, "-o", place / "shards", make_text(place / "text")])
        shards = ["-i", str(place / "shards" / "train_*.bin"), "-j", str(place / "shards" / "val_*.bin")]
        for name, options in OPTIONS.items():
            (place / name).mkdir()
            try:
                run = Run(library, place / name, shards, options, ["-v", "2", "-m", "1", "-nk", "0"])
            except pytest.skip.Exception as reason:
                print(f"{name}: skipped: {reason}", flush=True)
                continue
            chosen, codes = run.signals(-(-signals // len(OPTIONS)), choose, workers)
            calls.update(chosen)
            all_codes.update(codes)
            print(f"{name}: {sum(run.calls.values()) - run.calls['malloc']} calls on the files of the run, "
                  f"{len(codes)} signals, exit codes {dict(sorted(collections.Counter(codes).items()))}; the same bytes", flush=True)
            shutil.rmtree(place / name)
    print(f"{all_codes.total()} signals at {len(calls)} different calls, exit codes {dict(sorted(all_codes.items()))}")
