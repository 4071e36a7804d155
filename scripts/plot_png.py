"""The curves of runs as a picture, drawn with matplotlib. Used by plot_run.py."""
import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

import plot_log

plt.rcParams.update({"font.size": 10, "axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 9.5})

X_NAMES = {"steps": "step", "tokens": "tokens"}


class Picture:
    """One figure: the loss above, the other quantities in a grid below."""

    def __init__(self, runs, axis, log_loss):
        self.runs, self.axis, self.log_loss = runs, axis, log_loss
        longest = max((series.time[-1] for run in runs for series in (run.train["loss"], run.val) if len(series)),
                      default=0)
        self.time_name, self.time_size = plot_log.time_unit(longest)
        self.panels = self.choose_panels()
        columns = 2 if len(self.panels) <= 4 else 3
        rows = math.ceil(len(self.panels) / columns)
        self.figure = plt.figure(figsize=(12, 5.4 + 2.5 * rows), dpi=110, constrained_layout=True)
        grid = self.figure.add_gridspec(1 + rows, 6, height_ratios=[2.1] + [1] * rows)
        self.loss = self.figure.add_subplot(grid[0, :])
        width = 6 // columns
        self.axes = [self.figure.add_subplot(grid[1 + i // columns, i % columns * width:(i % columns + 1) * width],
                                             sharex=self.loss) for i in range(len(self.panels))]

    def choose_panels(self):
        """(title, kind, run -> Series), without those that no run has."""
        names = sorted({name for run in self.runs for name in run.choices})
        found = [("validation bits per byte", "points", lambda run: run.bits)]
        found += [(f"{name}: accuracy (normalised)", "percent", lambda run, name=name: run.choices.get(name))
                  for name in names]
        found += [("gradient norm", "log", lambda run: run.train["norm"]),
                  ("learning rate", "lr", lambda run: run.train["lr"]),
                  ("tokens per second", "count", lambda run: run.train["speed"]),
                  ("MFU", "share", lambda run: run.train["mfu"])]
        return [panel for panel in found
                if any(math.isfinite(y) for run in self.runs for y in (panel[2](run) or plot_log.Series()).y)]

    def x(self, series):
        size = self.time_size if self.axis == "time" else 1
        return [x / size for x in series.x(self.axis)]

    def style(self, i):
        return {"color": plot_log.COLORS[i % len(plot_log.COLORS)],
                "linestyle": "-" if i < len(plot_log.COLORS) else (0, (4, 1.5))}

    def draw_loss(self):
        faint = 0.28 if len(self.runs) <= 2 else 0.13
        several = len(self.runs) > 1
        for i, run in enumerate(self.runs):
            style, loss = self.style(i), run.train["loss"]
            skipped = f", {len(run.skipped)} skipped (x)" if run.skipped else ""
            self.loss.plot(self.x(loss), loss.y, color=style["color"], alpha=faint, linewidth=0.7)
            last = f"validation {run.val.y[-1]:.4f}" if len(run.val) else f"training {loss.y[-1]:.4f}"
            label = f"{run.label}: {last}{skipped}" if several else f"training{skipped}"
            self.loss.plot(self.x(loss), plot_log.smooth(loss.y), linewidth=1.7, label=label, **style)
            if len(run.val):
                self.loss.plot(self.x(run.val), run.val.y, color=style["color"], linewidth=0.9,
                               linestyle=(0, (1, 1)) if several else "-", marker="o",
                               markersize=5 if len(run.val) <= 40 else 2.5, markerfacecolor="white",
                               label=None if several else f"validation, last {run.val.y[-1]:.4f}")
            self.mark_skipped(run, style["color"])
        self.loss.set_title(", ".join(run.label for run in self.runs) if len(self.runs) <= 2
                            else f"{len(self.runs)} runs")
        self.loss.set_ylabel("loss (nats per token)")
        # Runs are compared by how they end; a steep beginning is left out where it would squash the remainder.
        high, share = (0.93, 0.65) if several else (0.95, 0.5)
        self.set_limits(self.loss, [run.train["loss"].y or run.val.y for run in self.runs], self.log_loss, high, share)
        for i, run in enumerate(self.runs):
            self.mark_clipped(self.loss, i, run.train["loss"])
        # Loss falls: its upper right corner is free.
        self.loss.legend(loc="upper right", framealpha=0.85, edgecolor="none",
                         title="lines: training, smoothed; circles: validation" if several else None,
                         title_fontsize=9, alignment="left")

    def mark_skipped(self, run, color):
        size = self.time_size if self.axis == "time" else 1
        place = {"steps": 0, "tokens": 1, "time": 2}[self.axis]
        x = [where[place] / size for where, why in run.skipped]
        self.loss.plot(x, [0.02] * len(x), "x", color=color, markersize=6, markeredgewidth=1.4,
                       transform=self.loss.get_xaxis_transform())

    def mark_clipped(self, axis, i, series):
        """A triangle at the upper edge where values are beyond it."""
        x, where = self.x(series), plot_log.clipped(series.y, axis.get_ylim()[1])
        axis.plot([x[k] for k in where], [0.985] * len(where), "^", color=self.style(i)["color"], markersize=6,
                  transform=axis.get_xaxis_transform())

    def set_limits(self, axis, lists, log=False, high=0.975, share=0.35):
        bounds = plot_log.limits(lists, log, high, share)
        if log and bounds:
            set_log_scale(axis, bounds)
        if bounds:
            axis.set_ylim(*bounds)

    def draw_panel(self, axis, title, kind, series_of):
        lists = []
        for i, run in enumerate(self.runs):
            series = series_of(run)
            if not series or not len(series):
                continue
            y = [100 * value for value in series.y] if kind in ("percent", "share") else series.y
            lists.append(y)
            if kind in ("points", "percent"):
                axis.plot(self.x(series), y, marker="o", markersize=4, markerfacecolor="white", linewidth=1.2,
                          **self.style(i))
            elif kind == "lr":
                axis.plot(self.x(series), y, linewidth=1.4, **self.style(i))
            else:
                axis.plot(self.x(series), y, color=self.style(i)["color"], alpha=0.25, linewidth=0.7)
                axis.plot(self.x(series), plot_log.smooth(y), linewidth=1.3, **self.style(i))
        axis.set_title(title)
        if kind == "log":
            self.set_limits(axis, lists, log=True)
            for i, run in enumerate(self.runs):
                self.mark_clipped(axis, i, series_of(run))
        elif kind in ("count", "share", "lr"):
            tops = [plot_log.quantile(y, 1.0 if kind == "lr" else 0.99) for y in lists]
            axis.set_ylim(0, 1.12 * max([top for top in tops if top > 0], default=1.0))
        else:
            self.set_limits(axis, lists, high=0.93)  # of fewer points the first ones are a larger share
        if kind in ("percent", "share"):
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
        if kind == "count":
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plot_log.short_count(value)))
        if kind == "lr":
            axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))

    def draw(self, output, metadata=None):
        self.draw_loss()
        for axis, panel in zip(self.axes, self.panels):
            self.draw_panel(axis, *panel)
        for axis in (self.loss, *self.axes):
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xlabel(X_NAMES.get(self.axis, f"time of training ({self.time_name})"))
            axis.margins(x=0.01)
            axis.xaxis.set_major_locator(MaxNLocator(8 if axis is self.loss else 5, integer=self.axis != "time"))
            if self.axis != "time":
                axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plot_log.short_count(value)))
        self.figure.savefig(output, metadata=metadata)
        plt.close(self.figure)


def set_log_scale(axis, bounds):
    """Labels 1, 2, 5 if there is space for them, else powers of ten. A short stretch needs no logarithm."""
    decades = math.log10(bounds[1] / bounds[0])
    if decades < 0.5:
        return
    axis.set_yscale("log")
    subs = (1, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2.2 else (1,)
    axis.yaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())


def draw(runs, output, axis="steps", log_loss=False, metadata=None):
    Picture(runs, axis, log_loss).draw(output, metadata)
