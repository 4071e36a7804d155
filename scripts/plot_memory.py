#!/usr/bin/env python3
"""Draws the planned memory of one or several runs, side by side, on one scale.

    ./train_gpt2 --plan json --gpu t4 -r 0 ... >a.json
    scripts/plot_memory.py a.json [b.json ...] -o PICTURE          PICTURE ends in .png or .html

The x-axis shows the ops of a micro-step, then generation and the update; the y-axis addresses in the arena. Each
rectangle is a tensor; weights, gradients and the optimizer's state, which exist for the whole run, are at the bottom.
The dashed line and the triangle mark the op at which most bytes are in use; the list below the picture gives these
bytes by kind. In a page (.html) the pointer shows the name, size and lifetime of a tensor.
"""
import argparse
import html
import json
import os
import re

import tool
from plot_run import MARK, MARKS, need_matplotlib

# In the order of the list. What stays is grey and brown, activations have colours.
COLORS = {
    "weights": "#4d4d4d", "master": "#7a7a7a", "gradients of weights": "#a08060", "optimizer": "#c9b79c",
    "workspace": "#d9d9d9",
    "residual": "#2f7de1", "layernorm": "#8cc3f5", "qkv": "#17a673", "attention": "#9fd8a0", "mlp": "#e8702a",
    "logits": "#e04858", "gradients": "#c054c4", "micro_gradients": "#7b52ab", "fp8": "#11a5b5", "tokens": "#000000",
    "generation": "#d69e00", "optimizer_scratch": "#7d6608", "other": "#ff77aa",
}


def count(n):
    for unit in ("", "K", "M", "B"):
        if n < 999.5 or unit == "B":
            return f"{n:.4g}{unit}"
        n /= 1000


def size(n):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.3g} {unit}" if n < 999.5 else f"{n:.0f} {unit}"
        n /= 1024


def scale(top):
    """The unit of the addresses."""
    return ("GiB", 2.0 ** 30) if top > 2e8 else ("MiB", 2.0 ** 20)


def arena_of(device, plan):
    """What a panel shows: the arena of a device, with the plan that it belongs to."""
    run, arena = plan["run"], device["arena"]
    for tensor in arena["tensors"]:
        if tensor["always"] and tensor["kind"] == "gradients":  # not those of activations
            tensor["kind"] = "gradients of weights"
    return arena | {
        "device": device["name"], "parameters": count(plan["model"]["parameters"]), "B": device["batch_size"], "T": run["T"],
        "recompute": device["recompute"], "dtype": device["dtype"], "gpus": run["gpus"], "fits": device["fits"],
        "room": device["memory"]["room"], "optimizer": run["optimizer"] if run["train"] else "",
        "master": device["memory"]["master"] > 0,
        "gradients": device["dtype"] if run["grad_dtype"] == "compute" else "fp32"}


def load(path):
    """The arenas in a file: of the GPUs of --gpu, or of the machine that made the plan."""
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        arenas = [arena_of(device, plan) for device in plan["devices"] if "arena" in device]
        return arenas or tool.fail(f"{path} has no arena to draw: make it again with --plan json")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        tool.fail(f"{path} was not written by --plan json ({error})")


def at_peak(arena):
    """Bytes by kind, in the order of COLORS, with what the layout loses; 0 of a kind that lives at other times."""
    kinds = {tensor["kind"] for tensor in arena["tensors"]}
    sums = {kind: 0 for kind in COLORS if kind in kinds}
    for tensor in arena["tensors"]:
        if tensor["first"] <= arena["peak_tick"] <= tensor["last"]:
            sums[tensor["kind"]] += tensor["bytes"]
    gaps = arena["total"] - arena["peak"]
    return sums | {"gaps": gaps} if gaps else sums


def phases(ticks):
    """(name, first, last) of each part of the time axis."""
    head = ticks.index("final layernorm")
    parts = [("forward", 0, head - 1)]
    backward = [i for i, name in enumerate(ticks) if name.endswith((" backward", " recompute"))]
    if backward:  # the final layernorm's is part of the head
        parts += [("head", head, backward[0]), ("backward", backward[0] + 1, backward[-1])]
    for name in ("generation", "update"):
        if name in ticks:
            parts.append((name, ticks.index(name), len(ticks) - 1 - ticks[::-1].index(name)))
    return parts


def title(arena):
    state = arena["optimizer"] + (" with master weights" if arena["master"] else "")
    work = f"{state}, gradients in {arena['gradients']}" if arena["optimizer"] else "without training"
    return (f"{arena['parameters']} parameters, -b {arena['B']} -t {arena['T']} -r {arena['recompute']}, "
            f"{arena['dtype']}\n{work}: {size(arena['total'])}")


def draw_panel(axis, arena, top, number, tips):
    from matplotlib.patches import Rectangle
    ticks, (_, unit), end = arena["ticks"], scale(top), len(arena["ticks"])
    for i, t in enumerate(arena["tensors"]):
        gid = f"t{number}-{i}"
        width = max(t["last"] + 1 - t["first"], end / 250)  # of one op in a deep model: still to be seen
        middle = (t["first"] + t["last"] + 1) / 2
        edge = 0.25 if t["bytes"] / top > 0.008 else 0  # a thinner one would be all edge
        axis.add_patch(Rectangle((middle - width / 2, t["offset"] / unit), width, t["bytes"] / unit, gid=gid,
                                 facecolor=COLORS[t["kind"]], edgecolor="white", linewidth=edge))
        when = "the whole run" if t["always"] else f"{ticks[t['first']]} to {ticks[t['last']]}"
        tips[gid] = f"{t['name']}: {size(t['bytes'])}, {when}"
    axis.set_xlim(0, end)
    axis.set_ylim(0, 1.06 * top / unit)
    peak = arena["peak_tick"] + 0.5
    axis.plot([peak, peak], [arena["total"] / unit, 1.06 * top / unit], color="black", linewidth=1, linestyle=(0, (4, 2)))
    axis.plot([peak], [0], "^", color="black", markersize=6, clip_on=False, zorder=5)
    axis.annotate(f"peak: {ticks[arena['peak_tick']]}", (peak, 1.055 * top / unit), va="top", fontsize=8.5,
                  xytext=(4 if peak < end / 2 else -4, 0), textcoords="offset points",
                  ha="left" if peak < end / 2 else "right")
    if arena["room"] < 1.06 * top:
        axis.axhline(arena["room"] / unit, color="#c00000", linewidth=1)
    axis.set_title(title(arena), fontsize=9.5)
    fits = "fits" if arena["fits"] else "DOES NOT FIT"
    device = (f"each of {arena['gpus']} " if arena["gpus"] > 1 else "") + arena["device"]
    axis.set_xlabel(f"{fits} into {size(arena['room'])} of {device}", fontsize=9.5,
                    color="black" if arena["fits"] else "#c00000")
    parts = phases(ticks)
    for _, first, _ in parts[1:]:
        axis.axvline(first, color="#888888", linewidth=0.5)
    axis.set_xticks([(first + last + 1) / 2 for _, first, last in parts if last + 1 - first > end / 12],
                    [name for name, first, last in parts if last + 1 - first > end / 12])
    axis.tick_params(axis="x", length=0)
    axis.spines[["top", "right"]].set_visible(False)


def draw_list(axis, arena):
    from matplotlib.patches import Patch
    items = at_peak(arena)
    handles = [Patch(facecolor=COLORS.get(kind, "white"), edgecolor="#888888", linewidth=0.5, label=f"{kind}  {size(n)}")
               for kind, n in items.items()]
    axis.axis("off")
    axis.legend(handles=handles, loc="upper center", ncol=3, fontsize=8.5, frameon=False, borderaxespad=0,
                title=f"at the peak: {size(arena['peak'])}, in an arena of {size(arena['total'])}",
                title_fontsize=8.5)


def draw(arenas):
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "arena"  # the same file for the same plan
    from matplotlib import pyplot
    count, tips = len(arenas), {}
    figure, axes = pyplot.subplots(2, count, figsize=(max(9.0, 6.6 * count), 7.6), dpi=110, squeeze=False,
                                   constrained_layout=True, gridspec_kw={"height_ratios": [5, 1.3]})
    top = max(arena["total"] for arena in arenas)
    for i, arena in enumerate(arenas):
        draw_panel(axes[0][i], arena, top, i, tips)
        draw_list(axes[1][i], arena)
    axes[0][0].set_ylabel(f"addresses, {scale(top)[0]}")
    return figure, tips


def write_page(figure, tips, path):
    import io
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r'<g id="(t\d+-\d+)">', lambda m: f"{m[0]}<title>{html.escape(tips[m[1]])}</title>", svg)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><meta name="generator" content="pretrain.cu"><title>Planned memory</title>\n'
                   f"<style>svg {{ width: 100%; height: auto }} g[id^=t]:hover > path {{ stroke: black; stroke-width: 1.5 }}"
                   f"</style>\n{svg}</html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="+", metavar="PLAN")
    parser.add_argument("-o", "--output", type=os.path.expanduser, required=True, metavar="PICTURE")
    options = parser.parse_args()
    if not options.output.endswith((".png", ".html")):
        tool.fail(f"{options.output}: the name must end in .png or .html")
    arenas = [arena for path in options.plans for arena in load(path)]
    need_matplotlib()
    figure, tips = draw(arenas)
    with tool.replacing(options.output, MARK, options.plans) as scratch:
        if scratch.endswith(".html"):
            write_page(figure, tips, scratch)
        else:
            figure.savefig(scratch, metadata=MARKS[".png"])
    print(f"drawn: {options.output}")


if __name__ == "__main__":
    tool.run(main)
