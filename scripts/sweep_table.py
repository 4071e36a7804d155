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


def varied_options(runs):
    names = list(dict.fromkeys(name for run in runs for name in run.facts["options"] if name not in NOT_VARIED))
    return [name for name in names if len({str(run.facts["options"].get(name)) for run in runs}) > 1]


def number(value, form=".4f"):
    return format(value, form) if math.isfinite(value) else "-"


def best_loss(run):
    return min((loss for loss in run.val.y if math.isfinite(loss)), default=math.inf)


def table(runs, names):
    rows = [names + ["steps", "train loss", "best val loss", "tok/s (median)"]]
    for run in sorted(runs, key=lambda run: (best_loss(run), run.label)):
        step, total = (run.steps or [0])[-1], plot_log.whole(run.facts.get("total_steps"))
        rows.append([str(run.facts["options"].get(name, "-")) for name in names] +
                    [f"{step}" if step >= total > 0 else f"{step} of {total}",
                     number((run.train["loss"].y or [math.nan])[-1]), number(best_loss(run)),
                     number(plot_log.quantile(run.train["speed"].y, 0.5), ".0f")])
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
    runs = [run for run in map(plot_log.Run, logs) if "options" in run.facts]
    if not runs:
        tool.fail(f"{arguments.directory}: no main.log has the start of its run")
    print(table(runs, arguments.vary or varied_options(runs) or ["learning-rate"]))


if __name__ == "__main__":
    tool.run(main)
