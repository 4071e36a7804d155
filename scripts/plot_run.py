#!/usr/bin/env python3
"""Draws the curves of one or several runs: loss (training, smoothed and raw, and validation), gradient norm,
learning rate, tokens per second, MFU; bits per byte and multiple-choice accuracy where the runs have them.

    scripts/plot_run.py RUN [RUN ...] [-o curve.png] [--html page.html] [-x steps|tokens|time] [--log] [--watch SECONDS]

A RUN is a main.log or a directory that has one, also one still being written. The picture is written next to the
first log as curve.png, or to -o. --html writes a page instead (with -o: also): one file that needs no
network, with values under the pointer and runs to switch on and off. The axes leave out the few highest values
(first steps, spikes), marked by triangles at the upper edge; skipped updates are crosses at the bottom. Also prints one
line a run.
"""
import argparse
import os
import sys
import time

import plot_log

EXIT_BAD_INPUT = 2
DEBIANS_PYTHON = "/usr/bin/python3"  # the one that Debian's matplotlib is for; another may come first in the PATH


def fail(message):
    print(f"plot_run: {message}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("-o", "--output", help="the PNG to write")
    parser.add_argument("--html", nargs="?", const="", metavar="PAGE", help="write a page (default: curve.html)")
    parser.add_argument("-x", "--axis", choices=("steps", "tokens", "time"), default="steps", help="the x axis")
    parser.add_argument("--log", action="store_true", help="loss on a logarithmic axis")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="redraw every SECONDS, until Ctrl-C")
    return parser.parse_args()


def outputs(options, runs):
    """(PNG or None, page or None)."""
    beside = os.path.dirname(runs[0].path)
    page = None if options.html is None else options.html or os.path.join(beside, "curve.html")
    return options.output or (os.path.join(beside, "curve.png") if page is None else None), page


def need_matplotlib(fail, instead=""):
    """Goes on in Debian's Python where this one has no matplotlib; instead: what else the user may do."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        if os.path.exists(DEBIANS_PYTHON) and not os.path.samefile(sys.executable, DEBIANS_PYTHON):
            os.execv(DEBIANS_PYTHON, [DEBIANS_PYTHON, *sys.argv])
        fail(f"{error}: install it (Debian: apt-get install python3-matplotlib){instead}")


def draw_png(runs, path, options):
    import plot_png
    plot_png.draw(runs, path, options.axis, options.log)


def draw_html(runs, path, options):
    import plot_html
    plot_html.draw(runs, path, options.axis, options.log)


def draw_once(options):
    try:
        runs = plot_log.load(options.runs)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    for run in runs:
        if not run.steps and not len(run.val):
            fail(f"{run.path} has no steps; is it the main.log of a run?")
        print(run.summary())
    for path, draw in zip(outputs(options, runs), (draw_png, draw_html)):
        if path:
            scratch = f"{path}.tmp-{os.getpid()}{os.path.splitext(path)[1]}"  # a viewer never sees a partial file
            try:
                draw(runs, scratch, options)
                os.replace(scratch, path)
            except OSError as error:
                fail(f"{path}: cannot be written: {error.strerror}")
            finally:
                if os.path.exists(scratch):
                    os.remove(scratch)
            print(f"drawn: {path}", flush=True)


def main():
    options = arguments()
    if options.output or options.html is None:
        need_matplotlib(fail, ", or write a page with --html")
    draw_once(options)
    try:
        while options.watch:
            time.sleep(max(options.watch, 1.0))
            draw_once(options)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
