"""The data of the plots: main.log as numbers, smoothed lines, limits of axes that a spike does not squash.

Used by plot_run.py, plot_png.py and plot_html.py; the standard library is enough for it.
"""
import bisect
import json
import math
import os

import tool

SMOOTHING_SHARE = 0.03  # a smoothed line averages over about this share of the run
# Eight that can be told apart, on white and on black; the ninth run begins again, dashed.
COLORS = ("#2f7de1", "#e8702a", "#17a673", "#c054c4", "#d69e00", "#e04858", "#11a5b5", "#94795d")


def number(value):
    """A float; null (JSON has no nan and inf) becomes nan, which is not drawn."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else math.nan


def whole(value):
    """A count; 0 for what is none."""
    value = number(value)
    return int(value) if abs(value) < 2**53 else 0


def entries(lines):
    """The objects of these lines of main.log. An unfinished last line, or a line that is not an event, is skipped."""
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            yield entry


class Series:
    """Points of one quantity: y over three possible x."""

    def __init__(self):
        self.steps, self.tokens, self.time, self.y = [], [], [], []

    def add(self, where, value):
        for axis, x in zip((self.steps, self.tokens, self.time), where):
            axis.append(x)
        self.y.append(number(value))

    def x(self, axis):
        return getattr(self, axis)

    def __len__(self):
        return len(self.y)


class Run:
    """One main.log. Time is training time in seconds, without the time between a stop and a resume."""

    TRAINING = {"loss": "loss", "norm": "norm", "lr": "lr", "speed": "tokens_per_second", "mfu": "mfu", "ms": "ms"}

    def __init__(self, path):
        self.path = os.path.join(path, "main.log") if os.path.isdir(path) else path
        self.label = tool.shown(os.path.basename(os.path.dirname(os.path.abspath(self.path))))
        self.train = {name: Series() for name in self.TRAINING}
        self.val, self.bits = Series(), Series()
        self.choices = {}  # name -> Series of the normalised accuracy
        self.skipped = []  # (place, why)
        self.facts, self.end = {}, {}  # of the last "run" and "end" events
        self.tokens_per_step = self.base_tokens = self.base_step = self.base_time = 0
        self.session = None  # start time of the process that wrote these lines
        self.only_evaluates = False
        self.now = (0, 0, 0.0)  # step, tokens, time of the last line
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for entry in entries(file):
                self.add(entry)

    @property
    def steps(self):
        return self.train["loss"].steps

    def begin_session(self, entry):
        """Each process that trains begins with a "run" event; counting continues from the end of the one before it."""
        self.facts.update((key, value) for key, value in entry.items()
                          if key not in ("model", "device", "options") or isinstance(value, dict))
        self.only_evaluates = "train" not in entry
        self.base_time = self.now[2]
        self.session = number(entry.get("time"))
        if not self.only_evaluates:
            start = whole(entry.get("start_step"))
            self.base_tokens += (start - self.base_step) * self.tokens_per_step
            self.base_step = start
            self.tokens_per_step = whole(entry.get("tokens_per_step"))

    def place(self, entry):
        """(step, tokens, seconds) of an event."""
        step = int(entry["step"])
        if self.session is None:  # a log without a "run" event
            self.session = number(entry.get("time"))
            rate = number(entry.get("ms")) / 1e3 * number(entry.get("tokens_per_second"))
            self.tokens_per_step = round(rate) if math.isfinite(rate) else 0
        seconds = self.base_time + number(entry.get("time")) - self.session
        return step, self.base_tokens + (step - self.base_step) * self.tokens_per_step, seconds

    def add(self, entry):
        event = entry["event"]
        if event == "run":
            self.begin_session(entry)
        if event == "end":
            self.end = entry
        if event not in ("step", "validation", "choices") or type(entry.get("step")) is not int:
            return
        if not 0 <= entry["step"] < 2**53:
            return
        if self.only_evaluates and entry["step"] < self.now[0]:
            return  # an evaluation of another model in this log: not a point of its curves
        if event == "step" and self.steps and entry["step"] <= self.steps[-1]:
            return  # written twice: two processes, or a log that could not be cut
        where = self.place(entry)
        if event == "step":
            for name, key in self.TRAINING.items():
                self.train[name].add(where, entry.get(key))
            if entry.get("skip"):
                self.skipped.append((where, str(entry["skip"])))
            self.now = where
        elif event == "validation":
            self.val.add(where, entry.get("loss"))
            if "bits_per_byte" in entry:
                self.bits.add(where, entry["bits_per_byte"])
        else:
            self.choices.setdefault(str(entry.get("name")), Series()).add(where, entry.get("accuracy_normalised"))

    def summary(self):
        """One line for a terminal."""
        parts = [self.path]
        if self.steps:
            loss = self.train["loss"].y
            parts.append(f"steps {self.steps[0]}..{self.steps[-1]}")
            parts.append(f"training loss {loss[0]:.4f} -> {loss[-1]:.4f}")
        if len(self.val):
            parts.append(f"validation loss {self.val.y[0]:.4f} -> {self.val.y[-1]:.4f}")
        if len(self.bits):
            parts.append(f"{self.bits.y[-1]:.4f} bits/byte")
        for name, series in self.choices.items():
            parts.append(f"{name} {100 * series.y[-1]:.2f}%")
        if self.skipped:
            parts.append(f"{len(self.skipped)} skipped")
        return " | ".join(parts)


def load(paths):
    """The runs of these paths with labels that tell them apart."""
    runs = [Run(path) for path in paths]
    parts = [os.path.dirname(os.path.abspath(run.path)).split("/") for run in runs]
    for run, own in zip(runs, parts):
        others = [other for other in parts if other != own]
        length = 1 if others else min(2, len(own))
        while length < len(own) and any(other[-length:] == own[-length:] for other in others):
            length += 1
        run.label = shorten(tool.shown("/".join(own[-length:])))
    return runs


def shorten(text, longest=40):
    """Shortens the middle of a name too long for a legend: names of a sweep differ at their ends."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def smooth(values, share=SMOOTHING_SHARE):
    """Moving median over this share of the values: a spike leaves no mark on it; nan is skipped. The window is
    centred; at the beginning, where a loss falls fast, it is short on both sides, at the end only on the right."""
    last = len(values) - 1
    reach = int(share * len(values) / 2)
    window, first, end, out = [], 0, 0, []  # window: the finite ones of values[first:end], sorted
    for i in range(len(values)):
        side = min(reach, i)
        while end <= min(i + side, last):
            if math.isfinite(values[end]):
                bisect.insort(window, values[end])
            end += 1
        while first < i - side:
            if math.isfinite(values[first]):
                del window[bisect.bisect_left(window, values[first])]
            first += 1
        n = len(window)
        out.append((window[n // 2] + window[(n - 1) // 2]) / 2 if n else math.nan)
    return out


def quantile(values, share):
    """Of the finite values; nan if there are none."""
    known = sorted(value for value in values if math.isfinite(value))
    return known[min(len(known) - 1, int(share * len(known)))] if known else math.nan


def limits(lists, log=False, high=0.975, share=0.35):
    """Where an axis begins and ends so that the relevant part of all these lists is visible. If the values above the quantile
    `high` (the first steps of a run, spikes) would leave the others less than this share of the axis, it ends below
    them. None: no values."""
    transform = math.log if log else float
    lows, highs, fulls = [], [], []
    for values in lists:
        known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        if known:
            lows.append(transform(quantile(known, 0.001)))
            highs.append(transform(quantile(known, high)))
            fulls.append(transform(max(known)))
    if not lows:
        return None
    first, last, full = min(lows), max(highs), max(fulls)
    if last - first >= share * (full - first):
        last = full
    room = 0.06 * (last - first) or (0.05 if log else 0.05 * abs(last) or 1.0)
    return (math.exp(first - room), math.exp(last + room)) if log else (first - room, last + room)


def clipped(values, top):
    """Where values leave an axis that ends at `top`: the index of the highest of each group, groups that almost touch
    being one."""
    groups, gap = [], max(1, len(values) // 100)
    for i, value in enumerate(values):
        if not value > top:
            continue
        if groups and i - groups[-1][-1] <= gap:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [max(group, key=lambda i: values[i]) for group in groups]


def time_unit(seconds):
    """The best unit for a span of time: its name and its seconds."""
    for name, size, longest in (("seconds", 1, 180), ("minutes", 60, 180), ("hours", 3600, 72)):
        if seconds < longest * size:
            return name, size
    return "days", 86400


def short_count(value):
    """950, 20K, 2.6B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
