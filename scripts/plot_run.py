#!/usr/bin/env python3
"""Draws the curves of one or several runs: loss, gradient norm, learning rate, speed.

    scripts/plot_run.py RUN [RUN ...] [-o curve.png]

A RUN is a main.log or a directory that holds one. The picture goes beside the first log as curve.png unless -o says
otherwise. Also prints one line a run: steps, loss before and after. A log that is still being written is fine.
"""
import argparse
import json
import math
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

SMOOTHING_SHARE = 0.03  # the thick line averages over about this share of the run


class Run:
    """The numbers of one main.log: lists by name, one entry a step, and the validation points."""

    def __init__(self, path):
        self.path = os.path.join(path, "main.log") if os.path.isdir(path) else path
        self.label = "/".join(os.path.abspath(self.path).split("/")[-3:-1])
        self.steps, self.loss, self.norm, self.lr, self.speed = [], [], [], [], []
        self.val_steps, self.val_loss = [], []
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for line in file:
                self.add(line)

    def add(self, line):
        try:
            entry = json.loads(line)
            event = entry["event"]
        except (ValueError, KeyError, TypeError):
            return  # an unfinished last line, or a torn one: nothing to draw
        if event == "step":
            self.steps.append(entry["step"])
            self.loss.append(number(entry.get("loss")))
            self.norm.append(number(entry.get("norm")))
            self.lr.append(number(entry.get("lr")))
            self.speed.append(number(entry.get("tokens_per_second")))
        elif event == "validation":
            self.val_steps.append(entry["step"])
            self.val_loss.append(number(entry.get("loss")))

    def summary(self):
        parts = [self.path]
        if self.steps:
            parts.append(f"steps {self.steps[0]}..{self.steps[-1]}")
            parts.append(f"training loss {self.loss[0]:.4f} -> {self.loss[-1]:.4f}")
        if self.val_loss:
            parts.append(f"validation loss {self.val_loss[0]:.4f} -> {self.val_loss[-1]:.4f}")
        return " | ".join(parts)


def number(value):
    """A float; what JSON cannot hold (nan, inf come as null) becomes nan, which matplotlib leaves out."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def smooth(values):
    """Centred moving average over SMOOTHING_SHARE of the run; nan is passed over."""
    reach = int(SMOOTHING_SHARE * len(values) / 2)
    out = []
    for i in range(len(values)):
        side = min(reach, i, len(values) - 1 - i)  # the same on both sides, so that no end is pulled
        near = [value for value in values[i - side : i + side + 1] if math.isfinite(value)]
        out.append(sum(near) / len(near) if near else math.nan)
    return out


def draw_loss(axis, run, color, label):
    axis.plot(run.steps, run.loss, color=color, alpha=0.25, linewidth=0.8)
    axis.plot(run.steps, smooth(run.loss), color=color, linewidth=1.8, label=f"{label}training")
    if run.val_loss:
        axis.plot(run.val_steps, run.val_loss, "o-", color=color, markersize=5, linewidth=0.8, markerfacecolor="white",
                  label=f"{label}validation, last {run.val_loss[-1]:.3f}")


def draw(runs, output):
    figure = plt.figure(figsize=(11, 7.5), dpi=120, constrained_layout=True)
    grid = figure.add_gridspec(2, 3, height_ratios=(2, 1))
    loss = figure.add_subplot(grid[0, :])
    norm, lr, speed = (figure.add_subplot(grid[1, i], sharex=loss) for i in range(3))
    for i, run in enumerate(runs):
        color = f"C{i % 10}"
        draw_loss(loss, run, color, f"{run.label}: " if len(runs) > 1 else "")
        norm.plot(run.steps, run.norm, color=color, linewidth=0.9)
        lr.plot(run.steps, run.lr, color=color, linewidth=1.4)
        speed.plot(run.steps, run.speed, color=color, linewidth=0.9)
    loss.set(title=" and ".join(run.label for run in runs), xlabel="step", ylabel="loss (nats per token)")
    loss.legend(frameon=False)
    norm.set(title="gradient norm", xlabel="step")
    norm.set_yscale("log")
    norm.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    norm.yaxis.set_major_formatter("{x:g}")
    norm.yaxis.set_minor_formatter(NullFormatter())
    lr.set(title="learning rate", xlabel="step")
    lr.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    speed.set(title="tokens per second", xlabel="step")
    speed.set_ylim(bottom=0)
    speed.yaxis.set_major_formatter(EngFormatter(sep=""))
    for axis in (loss, norm, lr, speed):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(output)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("-o", "--output", help="the PNG to write")
    options = parser.parse_args()
    try:
        runs = [Run(path) for path in options.runs]
    except OSError as error:
        sys.exit(f"plot_run: {error.filename}: {error.strerror}")
    for run in runs:
        print(run.summary())
        if not run.steps and not run.val_steps:
            sys.exit(f"plot_run: {run.path} holds no steps")
    output = options.output or os.path.join(os.path.dirname(runs[0].path), "curve.png")
    draw(runs, output)
    print(f"drawn: {output}")


if __name__ == "__main__":
    main()
