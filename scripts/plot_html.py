"""The curves of runs as one HTML file that needs no network: plot_page.html with the numbers put into it.

Long runs are thinned out: of each stretch of steps the extremes of loss and norm and one more stay, so that no spike is
lost and the page stays small. Used by plot_run.py; the standard library is enough for it.
"""
import json
import math
import os

import plot_log

STRETCHES = 400  # a panel has no space for more: up to 5 steps of each are kept
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot_page.html")


def thinned(run):
    """Indices of the steps that are kept."""
    n = len(run.steps)
    if n <= 2 * STRETCHES:
        return range(n)
    kept = {0, n - 1}
    for stretch in range(STRETCHES):
        indices = range(stretch * n // STRETCHES, (stretch + 1) * n // STRETCHES)
        kept.add(indices[len(indices) // 2])
        for name in ("loss", "norm"):
            y = run.train[name].y
            known = [i for i in indices if math.isfinite(y[i])]
            if known:
                kept.update((min(known, key=y.__getitem__), max(known, key=y.__getitem__)))
    return sorted(kept)


def rounded(values, digits=6):
    """As JSON has them: values that are not finite are null."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def picked(values, indices):
    return [values[i] for i in indices]


def place(series, indices=None):
    indices = range(len(series)) if indices is None else indices
    return {"steps": picked(series.steps, indices), "tokens": picked(series.tokens, indices),
            "time": rounded(picked(series.time, indices), 7)}


def points(series):
    return {"x": place(series), "y": rounded(series.y)}


def facts(run):
    """The row of the table for a run."""
    model, device = run.facts.get("model") or {}, run.facts.get("device") or {}
    speed, mfu = (plot_log.quantile(run.train[name].y, 0.5) for name in ("speed", "mfu"))
    losses = [loss for loss in run.val.y if math.isfinite(loss)]
    train = plot_log.smooth(run.train["loss"].y)
    size = plot_log.short_count(plot_log.whole(model["parameters"])) if "parameters" in model else ""
    return {
        "model": f"{size} {model.get('dtype', '')}".strip(),
        "device": str(device.get("name", "")),
        "steps": run.steps[-1] if run.steps else None,
        "tokens": run.train["loss"].tokens[-1] if run.steps else None,
        "train": train[-1] if train and math.isfinite(train[-1]) else None,
        "best": min(losses) if losses else None,
        "speed": speed if math.isfinite(speed) else None,
        "mfu": mfu if math.isfinite(mfu) else None,
        "skipped": len(run.skipped),
    }


def data_of(run, i):
    kept = thinned(run)
    return {
        "label": run.label,
        "color": plot_log.COLORS[i % len(plot_log.COLORS)],
        "dash": "" if i < len(plot_log.COLORS) else "6 3",
        "facts": facts(run),
        "x": place(run.train["loss"], kept),
        "train": {name: {"y": rounded(picked(series.y, kept)),
                         "smooth": rounded(picked(plot_log.smooth(series.y), kept))}
                  for name, series in run.train.items() if name != "ms"},
        "val": points(run.val),
        "bits": points(run.bits),
        "choices": {name: points(series) for name, series in run.choices.items()},
        "skipped": [{"x": dict(zip(("steps", "tokens", "time"), where)), "why": why} for where, why in run.skipped],
    }


def draw(runs, output, axis="steps", log_loss=False):
    data = {"axis": axis, "log": log_loss, "runs": [data_of(run, i) for i, run in enumerate(runs)]}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")  # no end of the script
    with open(TEMPLATE, encoding="utf-8") as file:
        before, after = file.read().split("/*DATA*/")
    with open(output, "w", encoding="utf-8") as file:
        file.write(before + text + after)
