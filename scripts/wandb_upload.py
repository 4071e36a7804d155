#!/usr/bin/env python3
"""Uploads a run to Weights & Biases: its options as config, every number of main.log, samples, and the summary.

    scripts/wandb_upload.py RUN [--project NAME] [--follow] [--offline]

RUN is the directory of a run (or its main.log). Calling it again continues the same W&B run: its id and the progress of
the upload are in RUN/wandb_id. --follow keeps uploading until the run is done, or until Ctrl-C.
--offline writes into RUN/wandb and sends nothing; `wandb sync` sends it later. Needs the package wandb, and once
`wandb login`. Charts have the names that TensorBoard shows, over the step. Steps that a resumed run repeats are
not sent again: W&B cannot take points back, and pretrain.cu repeats them to the bit.
"""
import argparse
import html
import math
import os
import secrets
import signal
import sys
import time

import plot_log
from tool import EXIT_FAILED, fail, run as run_tool, shown

POLL_SECONDS = 5.0
GROUPS = {"step": "train", "validation": "val", "gpu": "gpu", "numerics": "numerics", "end": "whole_run"}
NAMES = {"val/ppl": "val/perplexity"}
NOT_NUMBERS = ("event", "time", "step", "index")


class Progress:
    """RUN/wandb_id: the id of the W&B run; a line "KIND STEP" for each kind of event, the last one uploaded; and
    "rows N", how many rows W&B has: it numbers them, and drops one whose number it knows."""

    def __init__(self, path):
        self.path, self.id, self.steps, self.rows = path, "", {}, 0
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except FileNotFoundError:
            lines = [""]
        self.id = lines[0].strip() or secrets.token_hex(4)
        if not self.id.replace("-", "").replace("_", "").isalnum() or len(self.id) > 64:
            fail(f"{path}: the first line is not an id of a W&B run: {self.id[:40]!r}; remove the file to start a new one")
        for number, line in enumerate(lines[1:], 2):
            if line.strip():
                kind, _, step = line.rpartition(" ")
                if not kind or not step.isdigit():
                    fail(f"{path}: line {number} is not 'KIND STEP': {line[:40]!r}; remove the file to upload anew")
                self.steps[kind] = int(step)
        self.rows = self.steps.pop("rows", 0)

    def is_new(self, kind, step):
        return step > self.steps.get(kind, -1)

    def save(self):
        scratch = f"{self.path}.tmp-{os.getpid()}"
        with open(scratch, "w", encoding="utf-8") as file:
            last = {"rows": self.rows, **dict(sorted(self.steps.items()))}
            file.write("\n".join([self.id, *(f"{kind} {step}" for kind, step in last.items())]) + "\n")
        os.replace(scratch, self.path)


class Log:
    """main.log as it grows: new_entries gives the events since the last call, from the beginning after a cut."""

    def __init__(self, path):
        self.path, self.offset, self.last_line = path, 0, b""

    def new_entries(self):
        with open(self.path, "rb") as file:
            file.seek(self.offset - len(self.last_line))
            if file.read(len(self.last_line)) != self.last_line:  # the run was resumed, and its log cut
                self.offset, self.last_line = 0, b""
            file.seek(self.offset)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        if whole:
            self.offset += sum(map(len, whole))
            self.last_line = whole[-1]
        return plot_log.entries(line.decode("utf-8", errors="replace") for line in whole)


def kind_of(entry):
    """The kind of an event, which is counted separately: within each kind, steps only grow."""
    if entry["event"] == "choices":
        return "choices/" + " ".join(str(entry.get("name")).split())  # one line of wandb_id
    return f"sample/{entry.get('index', 1)}" if entry["event"] == "sample" else entry["event"]


def row_of(entry):
    """The numbers of an event by the names of their charts. Nulls (nan, inf, not known) are left out."""
    group = GROUPS.get(entry["event"], kind_of(entry))
    tags = {key: NAMES.get(f"{group}/{key}", f"{group}/{key}") for key in entry if key not in NOT_NUMBERS}
    return {tag: entry[key] for key, tag in tags.items() if math.isfinite(plot_log.number(entry[key]))}


def upload(wandb, run, progress, entry):
    """Sends one event, unless it was sent already."""
    event, step = entry["event"], entry.get("step")
    if event == "run" and "train" in entry:  # not of an evaluation
        config = {key: value for key, value in entry.items() if key not in ("event", "time")}
        run.config.update(config, allow_val_change=True)
    if not isinstance(step, int) or event not in (*GROUPS, "choices", "sample"):
        return
    kind = kind_of(entry)
    if not progress.is_new(kind, step):
        return
    progress.steps[kind] = step
    if event == "end":
        run.summary.update(row_of(entry))
        return
    row = {"step": step, **row_of(entry)}
    if event == "sample":
        text = html.escape(str(entry.get("text", "")))
        row[kind] = wandb.Html(f"<pre style='white-space: pre-wrap'>{text}</pre>", inject=False)
    if entry.get("skip"):
        row["train/was_skipped"] = 1
    run.log(row, step=progress.rows)
    progress.rows += 1


def follow(wandb, run, progress, log, options):
    """Until the run is done (or, without --follow, once): how many events were sent."""
    total, done, sent = None, False, 0
    while True:
        for entry in log.new_entries():
            before = dict(progress.steps)
            upload(wandb, run, progress, entry)
            sent += progress.steps != before
            if entry["event"] == "run":
                total, done = entry.get("total_steps"), False
            if entry["event"] == "end" and isinstance(total, int):
                done = entry.get("step", 0) >= total
        if not options.follow or done:
            return sent
        time.sleep(POLL_SECONDS)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--project", default="pretrain.cu", help="default: %(default)s")
    parser.add_argument("--entity", help="user or team; default: the logged-in user")
    parser.add_argument("--name", help="name of the run; default: its directory")
    parser.add_argument("--follow", action="store_true", help="keep uploading until the run is done")
    parser.add_argument("--offline", action="store_true", help="write into RUN/wandb, send nothing")
    return parser.parse_args()


def import_wandb():
    try:
        import wandb
        wandb.init, wandb.Html  # a directory wandb/ next to a script also imports
    except (ImportError, AttributeError):
        fail(f"the Python package wandb is not installed for {sys.executable}: pip install wandb, then wandb login")
    return wandb


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    options = arguments()
    log_path = os.path.join(options.run, "main.log") if os.path.isdir(options.run) else options.run
    directory = os.path.dirname(os.path.abspath(log_path))
    if not os.path.isfile(log_path):
        fail(f"{log_path}: no such file; RUN is the directory given with -o")
    progress = Progress(os.path.join(directory, "wandb_id"))
    wandb = import_wandb()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        run = wandb.init(project=options.project, entity=options.entity, id=progress.id, resume="allow", dir=directory,
                         name=options.name or shown(os.path.basename(directory)),
                         mode="offline" if options.offline else "online", settings=wandb.Settings(console="off"))
    except Exception as error:  # not logged in, no network: wandb says what
        fail(f"W&B does not accept the run: {error}", EXIT_FAILED)
    progress.save()
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    try:
        sent = follow(wandb, run, progress, Log(log_path), options)
    except KeyboardInterrupt:
        sent = None
    run.finish()
    progress.save()  # now it is there: a kill before this line sends some points twice, and loses none
    said = "stopped" if sent is None else f"{sent} events sent"
    later = f" | to send it: wandb sync {directory}/wandb/offline-run-*" if options.offline else ""
    print(f"wandb_upload: {said} | run {progress.id} of project {options.project}{later}")


if __name__ == "__main__":
    run_tool(main)
