#!/usr/bin/env python3
"""Draws the curves of one or several runs: loss (training, smoothed and raw, and validation), gradient norm,
learning rate, tokens per second, MFU; bits per byte and multiple-choice accuracy where the runs have them.

    scripts/plot_run.py RUN [RUN ...] [-o curve.png] [--html page.html] [-x steps|tokens|time] [--log] [--watch SECONDS]

A RUN is a main.log or a directory that has one, also one still being written. The picture is written next to the
first log as curve.png, or to -o (.png, .svg, .pdf; .html: as --html). --html writes a page instead (with -o: also): one
file that needs no network, with values under the pointer and runs to switch on and off. The axes leave out the few highest values
(first steps, spikes), marked by triangles at the upper edge; skipped updates are crosses at the bottom. Also prints one
line a run.
"""
import argparse
import os
import sys
import time

import plot_log
import tool

DEBIANS_PYTHON = "/usr/bin/python3"  # the one that Debian's matplotlib is for; another may come first in the PATH
# What matplotlib is told to put into a picture, by its suffix: the mark of ours.
MARKS = {".png": {"Software": "pretrain.cu"}, ".svg": {"Creator": "pretrain.cu"}, ".pdf": {"Creator": "pretrain.cu"}}
MARK = "pretrain.cu"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("-o", "--output", type=os.path.expanduser, help="the picture to write")
    parser.add_argument("--html", nargs="?", const="", type=os.path.expanduser, metavar="PAGE", help="write a page (default: curve.html)")
    parser.add_argument("-x", "--axis", choices=("steps", "tokens", "time"), default="steps", help="the x axis")
    parser.add_argument("--log", action="store_true", help="loss on a logarithmic axis")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="redraw every SECONDS, until Ctrl-C")
    return parser.parse_args()


def suffix(path):
    return os.path.splitext(path)[1].lower()


def check_output(options):
    """-o FILE.html is --html FILE.html."""
    if options.output and suffix(options.output) == ".html" and not options.html:
        options.output, options.html = None, options.output
    if options.output and suffix(options.output) not in MARKS:
        tool.fail(f"-o {options.output}: expected a name that ends in .png, .svg, .pdf or .html")


def outputs(options, runs):
    """(picture or None, page or None)."""
    beside = os.path.dirname(runs[0].path)
    page = None if options.html is None else options.html or os.path.join(beside, "curve.html")
    return options.output or (os.path.join(beside, "curve.png") if page is None else None), page


def need_matplotlib(instead=""):
    """Goes on in Debian's Python where this one has no matplotlib; instead: what else the user may do."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        if os.path.exists(DEBIANS_PYTHON) and not os.path.samefile(sys.executable, DEBIANS_PYTHON):
            os.execv(DEBIANS_PYTHON, [DEBIANS_PYTHON, *sys.argv])
        tool.fail(f"{error}: install it (Debian: apt-get install python3-matplotlib){instead}")


def draw_png(runs, path, options):
    import plot_png
    plot_png.draw(runs, path, options.axis, options.log, MARKS[suffix(path)])


def draw_html(runs, path, options):
    import plot_html
    plot_html.draw(runs, path, options.axis, options.log)


def draw_once(options):
    runs = plot_log.load(options.runs)
    for run in runs:
        if not run.steps and not len(run.val):
            tool.fail(f"{run.path} has no steps; is it the main.log of a run?")
        print(run.summary())
    for path, draw in zip(outputs(options, runs), (draw_png, draw_html)):
        if path:
            with tool.replacing(path, MARK, [run.path for run in runs]) as scratch:
                draw(runs, scratch, options)
            print(f"drawn: {path}", flush=True)


def main():
    options = arguments()
    check_output(options)
    if options.output or options.html is None:
        need_matplotlib(", or write a page with --html")
    try:
        draw_once(options)
        while options.watch:
            time.sleep(max(options.watch, 1.0))
            draw_once(options)
    except KeyboardInterrupt:
        if not options.watch:
            raise


if __name__ == "__main__":
    tool.run(main)
