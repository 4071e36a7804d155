#!/usr/bin/env python3
"""The results of a sweep as a table: one line for each run, the best validation loss first.

    scripts/sweep_table.py DIR [--vary OPTION ...]

DIR has one directory for each run, with the trainer's main.log in it. The columns before the results are the options
in which the runs differ (except their output directory), or the ones named with --vary. A run that has not
reached its last step is marked. Needs only Python.
"""
import argparse
import math
from pathlib import Path

import plot_log
import tool

NOT_VARIED = {"output", "resume", "progress", "max-minutes"}


class Run:
    def __init__(self, log):
        self.name, self.options, self.total = tool.shown(log.parent.name), {}, 0
        self.step, self.loss, self.best, self.rates = 0, None, None, []
        for entry in plot_log.entries(log.read_text(encoding="utf-8", errors="replace").splitlines()):
            kind, loss = entry["event"], plot_log.number(entry.get("loss"))
            if kind == "run" and isinstance(entry.get("options"), dict):
                self.options, self.total = entry["options"], plot_log.whole(entry.get("total_steps"))
            elif kind == "step":
                self.step, self.loss = plot_log.whole(entry.get("step")), None if math.isnan(loss) else loss
                self.rates.append(plot_log.whole(entry.get("tokens_per_second")))
            elif kind == "validation" and not math.isnan(loss):
                self.best = min(loss, self.best if self.best is not None else loss)

    def rate(self):
        return sorted(self.rates)[len(self.rates) // 2] if self.rates else 0


def varied_options(runs):
    names = list(dict.fromkeys(name for run in runs for name in run.options if name not in NOT_VARIED))
    return [name for name in names if len({str(run.options.get(name)) for run in runs}) > 1]


def number(value, form=".4f"):
    return "-" if value is None else format(value, form)


def table(runs, names):
    rows = [names + ["steps", "train loss", "best val loss", "tok/s (median)"]]
    for run in sorted(runs, key=lambda run: (run.best is None, run.best or 0, run.name)):
        steps = f"{run.step}" if run.step >= run.total > 0 else f"{run.step} of {run.total}"
        rows.append([str(run.options.get(name, "-")) for name in names] +
                    [steps, number(run.loss), number(run.best), number(run.rate(), ".0f")])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join(lines[:1] + ["|" + "|".join("-" * (width + 2) for width in widths) + "|"] + lines[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--vary", nargs="+", metavar="OPTION", help="long names of options: learning-rate seed ...")
    arguments = parser.parse_args()
    logs = sorted(arguments.directory.glob("*/main.log"))
    if not logs:
        tool.fail(f"{arguments.directory}: has no run (DIR/*/main.log)")
    runs = [run for run in map(Run, logs) if run.options]
    if not runs:
        tool.fail(f"{arguments.directory}: no main.log has the start of its run")
    print(table(runs, arguments.vary or varied_options(runs) or ["learning-rate"]))


if __name__ == "__main__":
    tool.run(main)
