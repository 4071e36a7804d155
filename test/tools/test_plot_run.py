"""scripts/plot_run.py: what it reads from a log, that spikes do not squash the axes, the picture and the page."""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.dom.minidom
from html.parser import HTMLParser

import pytest
from runs import ROOT, call

SCRIPTS = str(ROOT / "scripts")
sys.path.insert(0, SCRIPTS)
import plot_html  # noqa: E402
import plot_log  # noqa: E402

# The Python that matplotlib is installed for: Debian's, as in the Makefile.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
PLOT_RUN = [PYTHON, "-u", os.path.join(SCRIPTS, "plot_run.py")]


def run_event(time, start=0, tokens=1000, **more):
    return {"event": "run", "time": time, "train": {"tokens": 10**6}, "start_step": start, "tokens_per_step": tokens,
            "model": {"parameters": 124e6, "dtype": "bf16"}, "device": {"name": "a device"}, **more}


def step_event(step, time, loss=None, **more):
    return {"event": "step", "step": step, "time": time, "loss": 5.5 * math.exp(-step / 30) if loss is None else loss,
            "norm": 1.0, "lr": 1e-3, "tokens_per_second": 1e4, "mfu": 0.5, "ms": 100.0, **more}


def write_events(directory, events, tail=""):
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(event).replace("NaN", "null") + "\n" for event in events)
    (directory / "main.log").write_text(text + tail)
    return directory


def write_log(directory, steps=50, tail="", extra=()):
    lines = [run_event(100.0)]
    for step in range(1, steps + 1):
        lines.append(step_event(step, 100.0 + step, **({"loss": math.nan, "skip": "nonfinite"} if step == 7 else {})))
    lines += [{"event": "validation", "step": steps, "time": 101.0 + steps, "loss": 1.25}, *extra]
    return write_events(directory, lines, tail)


def plot(*arguments, expect=0, **options):
    """An error is one line."""
    result = call(*PLOT_RUN, *arguments, expect=expect, **options)
    assert result.stderr.count("\n") == (expect != 0), result.stderr
    return result


# ------------------------------------------------------------------------------------------------------------- reading


def test_steps_and_validation_points_are_read(tmp_path):
    run = plot_log.Run(str(write_log(tmp_path / "a")))
    assert run.steps == list(range(1, 51))
    assert math.isnan(run.train["loss"].y[6])
    assert (run.val.steps, run.val.y) == ([50], [1.25])
    assert run.skipped == [((7, 7000, 7.0), "nonfinite")]


@pytest.mark.parametrize("tail", [
    '{"event": "step", "step": 51, "lo',  # not finished
    '[1, 2]\n{"event": 3}\n{"event": "step"}\n{"event": "step", "step": "x"}\nno json\n\xff\n',
])
def test_lines_that_are_no_events_are_passed_over(tmp_path, tail):
    assert plot_log.Run(str(write_log(tmp_path / "a", tail=tail))).steps[-1] == 50


def test_bits_per_byte_and_choices_are_read(tmp_path):
    extra = [{"event": "validation", "step": 50, "time": 152.0, "loss": 1.2, "bits_per_byte": 0.9},
             {"event": "choices", "step": 50, "time": 153.0, "name": "hellaswag_val", "accuracy_normalised": 0.2955}]
    run = plot_log.Run(str(write_log(tmp_path / "a", extra=extra)))
    assert run.bits.y == [0.9]
    assert run.choices["hellaswag_val"].y == [0.2955]
    assert "0.9000 bits/byte | hellaswag_val 29.55%" in run.summary()


def test_a_resumed_run_counts_tokens_and_time_on(tmp_path):
    # 50 steps of 1000 tokens and 1 s; after a pause of an hour it goes on from step 40 with 3000 tokens a step.
    lines = [run_event(100.0), *(step_event(i, 100.0 + i) for i in range(1, 41)),
             run_event(4000.0, start=40, tokens=3000), step_event(41, 4002.0), step_event(42, 4004.0)]
    loss = plot_log.Run(str(write_events(tmp_path, lines))).train["loss"]
    assert loss.tokens[39:] == [40000, 43000, 46000]
    assert loss.time[39:] == [40.0, 42.0, 44.0]


def test_an_evaluation_of_an_earlier_model_is_no_point_of_the_curve(tmp_path):
    evaluation = {key: value for key, value in run_event(9000.0).items() if key != "train"}
    extra = [evaluation, {"event": "validation", "step": 0, "time": 9001.0, "loss": 9.0},
             {"event": "validation", "step": 50, "time": 9002.0, "loss": 1.24}]
    run = plot_log.Run(str(write_log(tmp_path / "a", extra=extra)))
    assert run.val.y == [1.25, 1.24]


def test_a_log_without_a_run_event_is_drawn_too(tmp_path):
    loss = plot_log.Run(str(write_events(tmp_path, [step_event(i, 10.0 + i) for i in range(1, 4)]))).train["loss"]
    assert loss.tokens == [1000, 2000, 3000] and loss.time == [0.0, 1.0, 2.0]


def test_steps_that_were_written_twice_count_once(tmp_path):
    run = plot_log.Run(str(write_log(tmp_path / "a", extra=[step_event(30, 200.0), step_event(51, 221.0)])))
    assert run.steps == list(range(1, 52))


def test_labels_are_as_short_as_they_can_be_and_differ(tmp_path):
    paths = [write_log(tmp_path / name) for name in ("lr1/run", "lr2/run", "other", "n" * 60)]
    labels = [run.label for run in plot_log.load(map(str, paths))]
    assert labels == ["lr1/run", "lr2/run", "other", "n" * 18 + "..." + "n" * 18]
    assert plot_log.load([str(paths[2])])[0].label.endswith("/other")


# ------------------------------------------------------------------------------------------------- smoothing and limits


def test_smoothing_passes_over_nan_leaves_no_mark_of_a_spike_and_follows_a_slope():
    assert plot_log.smooth([3.0] * 50 + [math.nan] + [3.0] * 449) == [3.0] * 500
    slope = [10.0 - i / 100 for i in range(1000)]
    spiked = slope[:500] + [100.0] + slope[501:]
    # The median over 31 values of a slope of 0.01 a step is off by one place at most where one value is wrong.
    assert max(abs(a - b) for a, b in zip(plot_log.smooth(spiked)[:985], slope)) < 0.011
    assert plot_log.smooth(slope)[0] == 10.0


def test_an_axis_ends_below_first_steps_and_spikes_that_would_squash_it():
    falling = [3.0 + 8.0 * math.exp(-i / 100) for i in range(10000)]
    low, high = plot_log.limits([falling])
    assert low < 3.0 and high < 4.2
    low, high = plot_log.limits([[1.0 + 0.01 * (i % 10) for i in range(1000)] + [500.0]], log=True)
    assert 0.9 < low < 1.0 and 1.09 < high < 1.2


def test_values_beyond_an_axis_are_marked_once_a_group():
    values = [9.0, 8.0, 7.0] + [1.0] * 300 + [6.0, 7.0, 6.0, 1.0, 8.0] + [math.nan] * 200 + [2.0]
    assert plot_log.clipped(values, 5.0) == [0, 307]
    assert plot_log.clipped(values, 1.5) == [0, 307, 508] and plot_log.clipped(values, 9.0) == []


def test_an_axis_shows_everything_where_nothing_is_squashed():
    low, high = plot_log.limits([[5.5 - i / 100 for i in range(400)]])
    assert low < 1.51 and high > 5.5
    assert plot_log.limits([[math.nan], []]) is None
    low, high = plot_log.limits([[2.0]])
    assert low < 2.0 < high


# --------------------------------------------------------------------------------------------------------- the picture


@pytest.mark.parametrize("axis", ["steps", "tokens", "time"])
def test_two_runs_give_one_png_with_every_axis_and_a_logarithm(tmp_path, axis):
    first, second, png = write_log(tmp_path / "a"), write_log(tmp_path / "b", steps=20), tmp_path / "both.png"
    said = plot(first, second / "main.log", "-o", png, "-x", axis, "--log").stdout
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 10_000
    assert "validation loss 1.2500 -> 1.2500" in said


def test_a_run_of_one_step_and_one_that_was_only_evaluated_are_drawn(tmp_path):
    one = write_log(tmp_path / "one", steps=1)
    evaluated = write_events(tmp_path / "evaluated", [{"event": "validation", "time": 1, "step": 0, "loss": 3.5}])
    for arguments in ([one], [evaluated], [one, evaluated]):
        plot(*arguments, "-o", tmp_path / "x.png", "--html", tmp_path / "x.html")


def drawn(path, runs, then):
    """What `then` prints of the picture of these runs, which is drawn into path."""
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import plot_log, plot_png\n"
            "plot_png.plt.rcParams['svg.fonttype'] = 'none'\n"
            "picture = plot_png.Picture(plot_log.load(sys.argv[3:]), 'steps', False); picture.draw(sys.argv[2])\n")
    return json.loads(call(PYTHON, "-c", code + f"import json; print(json.dumps({then}))", SCRIPTS, path, *runs, expect=0).stdout)


def test_the_panels_do_not_lie_on_each_other(tmp_path):
    """Layout of six runs with long names: looked at once by eye, held here by the places of the axes."""
    runs = [write_log(tmp_path / f"a-rather-long-name-of-a-run-in-a-sweep-{i}") for i in range(6)]
    boxes = drawn(tmp_path / "six.png", runs, "[axis.get_position().bounds for axis in (picture.loss, *picture.axes)]")
    assert len(boxes) == 5 and boxes[0][2] > 0.85 and boxes[0][3] > 0.3
    assert all(width > 0.2 and height > 0.1 for x, y, width, height in boxes)


def test_the_loss_ends_below_its_beginning_and_spikes_are_marked(tmp_path):
    """The text of an SVG: ticks at round numbers; a triangle for the beginning and one for each spike."""
    loss = [3.2 + 7.7 * math.exp(-s / 40) + (6.0 if s in (700, 1300) else 0.0) for s in range(2000)]
    run = write_events(tmp_path / "run", [run_event(0.0), *(step_event(s + 1, s + 1.0, y) for s, y in enumerate(loss))])
    marks, top = drawn(tmp_path / "run.svg", [run], "[[[float(x) for x in line.get_xdata()] for line in picture.loss.lines "
                       "if line.get_marker() == '^'], float(picture.loss.get_ylim()[1])]")
    assert marks == [[1.0, 701.0, 1301.0]] and 3.2 < top < 5.5
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "run.svg").read_text())
    assert {"0", "500", "1K", "1.5K", "2K"} <= set(ticks)


def test_what_cannot_be_read_or_written_gets_one_line_and_leaves_nothing_behind(tmp_path):
    run = write_log(tmp_path / "a")
    (tmp_path / "main.log").write_text("")
    for arguments, words in (([tmp_path / "none"], "No such file"), ([tmp_path / "main.log"], "has no steps"),
                             ([run, "-o", tmp_path / "none" / "x.png"], "cannot be written")):
        assert words in plot(*arguments, expect=2).stderr
    assert os.listdir(run) == ["main.log"]


def test_without_matplotlib_a_page_is_drawn_and_a_picture_refused_in_one_line(tmp_path):
    run = write_log(tmp_path / "a")
    (tmp_path / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}  # for Debian's Python too
    assert "apt-get install python3-matplotlib" in plot(run, expect=2, env=environment).stderr
    plot(run, "--html", env=environment)
    assert (run / "curve.html").exists()


def test_watch_draws_again_until_it_is_interrupted(tmp_path):
    run = write_log(tmp_path / "a")
    process = subprocess.Popen([*PLOT_RUN, run, "--html", tmp_path / "x.html", "--watch", "1"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert "steps 1..50" in process.stdout.readline() and "drawn" in process.stdout.readline()
    with open(run / "main.log", "a") as log:
        log.write(json.dumps(step_event(51, 160.0)) + "\n")
    assert "steps 1..51" in process.stdout.readline() and "drawn" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 0 and process.stderr.read() == ""


# ------------------------------------------------------------------------------------------------------------- the page


class Page(HTMLParser):
    """What a browser would fetch, and the numbers of the page."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.data, self.in_data = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.in_data = dict(attributes).get("id") == "data"

    def handle_endtag(self, tag):
        self.in_data = False

    def handle_data(self, text):
        self.data += text if self.in_data else ""


def page_of(tmp_path, *runs):
    plot(*runs, "--html", tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_the_page_holds_the_numbers_and_asks_no_network(tmp_path):
    text = page_of(tmp_path, write_log(tmp_path / "a"), write_log(tmp_path / "b", steps=20))
    page = Page(text)
    assert page.fetched == []
    assert not re.search(r"https?://|@import|url\((?!#)|fetch\(|XMLHttp|WebSocket", text)
    data = json.loads(page.data)
    assert [run["label"] for run in data["runs"]] == ["a", "b"]
    first = data["runs"][0]
    assert first["x"]["steps"] == list(range(1, 51)) and first["x"]["tokens"][-1] == 50000
    assert first["train"]["loss"]["y"][6] is None
    assert first["train"]["loss"]["y"][0] == pytest.approx(5.5 * math.exp(-1 / 30), rel=1e-5)  # 6 digits
    assert first["val"] == {"x": {"steps": [50], "tokens": [50000], "time": [51.0]}, "y": [1.25]}
    assert first["facts"]["best"] == 1.25 and first["facts"]["skipped"] == 1
    assert not (tmp_path / "a" / "curve.png").exists()


def test_a_long_run_is_thinned_out_and_keeps_its_spikes(tmp_path):
    lines = [run_event(0.0)] + [step_event(i, float(i), norm=900.0 if i == 7777 else 1.0 + i % 7 / 10,
                                           loss=99.0 if i == 12345 else 3.0 + i % 11 / 100) for i in range(1, 20001)]
    text = page_of(tmp_path, write_events(tmp_path / "long", lines))
    run = json.loads(Page(text).data)["runs"][0]
    assert len(run["x"]["steps"]) <= 5 * plot_html.STRETCHES + 2 and run["x"]["steps"] == sorted(run["x"]["steps"])
    assert 7777 in run["x"]["steps"] and 12345 in run["x"]["steps"] and run["x"]["steps"][-1] == 20000
    assert len(text) < 400_000


def test_a_name_cannot_end_the_script_of_the_page(tmp_path):
    extra = [{"event": "choices", "step": 50, "time": 152.0, "name": "</script><b>", "accuracy_normalised": 0.5}]
    text = page_of(tmp_path, write_log(tmp_path / "a", extra=extra))
    assert list(json.loads(Page(text).data)["runs"][0]["choices"]) == ["</script><b>"]


PROBE = """<script>
byId("axis").value = "tokens"; byId("axis").dispatchEvent(new Event("change"));
const box = document.querySelector("svg").getBoundingClientRect();
document.querySelector("figure").dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2,
                                                                                clientY: box.top + 50}));
const before = document.querySelectorAll("figure:first-child .line").length;
document.querySelector("[data-run='1']").click();
document.title = JSON.stringify({before, after: document.querySelectorAll("figure:first-child .line").length,
  panels: document.querySelectorAll("svg").length, tip: byId("tip").innerText,
  bad: [...document.querySelectorAll("svg")].some(svg => /NaN|undefined|Infinity/.test(svg.innerHTML)),
  off: document.querySelectorAll("tr.off").length});
</script></body>"""


def test_in_a_browser_curves_are_drawn_values_shown_and_runs_switched_off(tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium here: the page's script was NOT run (apt-get install chromium)")
    text = page_of(tmp_path, write_log(tmp_path / "a"), write_log(tmp_path / "b", steps=20))
    (tmp_path / "probe.html").write_text(text.replace("</body>", PROBE))
    result = call(browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1200",
                  f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", tmp_path / "probe.html")
    title = re.search(r"<title>(.*?)</title>", result.stdout)
    assert title, result.stderr[-2000:]
    seen = json.loads(title[1].replace("&lt;", "<").replace("&amp;", "&"))
    assert (seen["before"], seen["after"], seen["off"], seen["bad"]) == (2, 1, 1, False)
    assert seen["panels"] == 5
    assert re.search(r"\ba\s+\d\.\d+\s+step 2\d\s+validation 1.25 at 50", seen["tip"]), seen["tip"]
    svg = re.search(r"<svg.*?</svg>", result.stdout, re.DOTALL)[0]
    xml.dom.minidom.parseString(svg.replace("&nbsp;", " "))
