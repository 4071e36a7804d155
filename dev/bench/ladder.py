#!/usr/bin/env python3
"""What a recipe learns from the same tokens: four sizes of model, three lengths of run, several
recipes, one corpus.

    dev/bench/ladder.py corpus DIR              text of a Debian system as token shards in DIR: at least 50 MB
    dev/bench/ladder.py run DIR [--trainer ./train_gpt2cu] [--jobs 2] [--size NAME] [--results FILE]
    dev/bench/ladder.py report FILE [--picture ladder.svg]

`run` first tries the rates of RATES at the third size, keeps the best of each recipe, and then
trains every size with it, each run with its own schedule down to 0. Seeds are fixed; runs that FILE
has already are not made again. With --jobs above 1 runs share the device, and their seconds mean
nothing. `report` prints the table, the law bits/byte = E + A N^-a + B D^-b fitted to each recipe (N
parameters, D tokens), and how many tokens the others need for the loss that the first recipe
reaches at the largest size.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
T, TOKENS_IN_STEP, VOCABULARY, VALIDATION = 256, 16384, 8192, 1024
SIZES = {"0.7M": ("L=3,C=64,NH=1", 5e6), "1.9M": ("L=4,C=128,NH=2", 10e6),
         "6.9M": ("L=6,C=256,NH=4", 20e6), "17M": ("L=8,C=384,NH=6", 40e6)}  # fmt: skip
LENGTHS = (0.25, 0.5, 1.0)  # of the tokens of a size
SWEPT, SWEPT_TOKENS = "6.9M", 6e6

ADAMW = ["--optimizer", "adamw", "--beta2", "0.95"]
MUON = ["--optimizer", "muon", "--beta2", "0.99"]
# recipe -> what it may be: (prefix of the model, options). The first of several that learns most is
# taken. A recipe is compared by its best, so each has as many tries as the others, at rates that
# double; that of a fixed rate has one.
RATES = {
    "GPT-2, AdamW, llm.c's rate": [("", [*ADAMW, "-l", "6e-4"])],
    "GPT-2, AdamW": [("", [*ADAMW, "-l", rate]) for rate in ("5e-4", "1e-3", "2e-3", "4e-3")],
    "GPT-2, Muon": [("", [*MUON, "-l", rate]) for rate in ("5e-3", "1e-2", "2e-2", "4e-2")],
    "Qwen3, Muon": [("qwen3:", [*MUON, "-k", "linear", "-l", rate, "--lr-embedding", rate])
                    for rate in ("5e-3", "1e-2", "2e-2", "4e-2")],
}  # fmt: skip
# Text that comes with Debian's packages: code, manuals, documentation without the licences.
SOURCES = [("/usr/lib/python3", "*.py"), ("/usr/lib/python3.*", "*.py"), ("/usr/share/perl", "*"), ("/usr/include", "*.h"),
           ("/usr/share/man/man[1-8]", "*"), ("/usr/share/doc", "[!c]*")]  # fmt: skip
MOST_OF_A_SOURCE, LARGEST_FILE = 40 << 20, 400 << 10  # bytes, packed


def corpus(directory):
    with tempfile.TemporaryDirectory() as links:
        for number, (folder, pattern) in enumerate(SOURCES):
            files, taken = [], 0
            for root in sorted(Path("/").glob(folder[1:])):
                files += [path for path in sorted(root.rglob(pattern)) if path.is_file() and not path.is_symlink()]
            for count, path in enumerate(path for path in files if path.stat().st_size <= LARGEST_FILE):
                taken += path.stat().st_size
                if taken > MOST_OF_A_SOURCE:
                    break
                (Path(links) / f"{number}_{count:06d}{path.suffix}").symlink_to(path)
        subprocess.run([ROOT / "data" / "prepare", "-o", directory, "--tokenizer", f"train:{VOCABULARY}",
                        "--val-fraction", "0.02", "--skip-bad", links], check=True)  # fmt: skip


class Ladder:
    def __init__(self, options):
        self.options, self.file = options, Path(options.results)
        self.rows = json.loads(self.file.read_text()) if self.file.exists() else []
        self.free, self.writing = threading.Semaphore(options.jobs), threading.Lock()

    def train(self, recipe, choice, size, tokens):
        """The row of this run; made unless it is known."""
        prefix, more = choice
        key = {"recipe": recipe, "size": size, "tokens": int(tokens), "options": " ".join([prefix, *more])}
        known = next((row for row in self.rows if key.items() <= row.items()), None)
        if known:
            return known
        steps, output = round(tokens / TOKENS_IN_STEP), Path(tempfile.mkdtemp())
        data, B = self.options.directory, TOKENS_IN_STEP // T
        command = [self.options.trainer, "-e", f"{prefix}{SIZES[size][0]},T={T}", "-b", min(B, self.options.micro_batch), "-t", T,
                   "-d", TOKENS_IN_STEP, "-x", steps, "-q", 0, "-i", f"{data}/train_*.bin", "-j", f"{data}/val_*.bin",
                   "-v", steps, "-m", VALIDATION, "-s", 0, "-n", 0, "-o", output, *more]  # fmt: skip
        with self.free:
            finished = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
        if finished.returncode != 0:
            sys.exit(f"ladder: {' '.join(map(str, command))} failed:\n{finished.stdout[-600:]}{finished.stderr[-600:]}")
        events = [json.loads(line) for line in (output / "main.log").read_text().splitlines()]
        score = [event for event in events if event["event"] == "validation"][-1]
        header = next(event for event in events if event["event"] == "run")
        times = sorted(event["ms"] for event in events if event["event"] == "step")
        row = {**key, "parameters": header["model"]["parameters"], "steps": steps, "loss": score["loss"],
               "bits_per_byte": score["bits_per_byte"], "ms": times[len(times) // 2]}  # fmt: skip
        with self.writing:
            self.rows.append(row)
            self.file.write_text(json.dumps(self.rows, indent=1) + "\n")
        print(f"{recipe}, {size}, {tokens / 1e6:.3g}M tokens, {key['options']}: {row['bits_per_byte']:.4f} bits/byte", flush=True)
        return row

    def best(self, recipe):
        choices = RATES[recipe]
        if len(choices) == 1:
            return choices[0]
        with ThreadPoolExecutor(len(choices)) as pool:
            rows = list(pool.map(lambda choice: self.train(recipe, choice, SWEPT, SWEPT_TOKENS), choices))
        return choices[min(range(len(rows)), key=lambda i: rows[i]["loss"])]

    def run(self):
        with ThreadPoolExecutor(len(RATES)) as pool:
            chosen = dict(zip(RATES, pool.map(self.best, RATES)))
        sizes = [name for name in reversed(SIZES) if self.options.size in (None, name)]
        wanted = [(recipe, choice, size, SIZES[size][1] * length)
                  for size in sizes for length in reversed(LENGTHS) for recipe, choice in chosen.items()]  # fmt: skip
        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(lambda one: self.train(*one), wanted))


# -------------------------------------------------------------------------------------------------------------- report


def of_ladder(rows):
    """Without the tries of rates that were not kept."""
    kept = {row["recipe"]: row["options"] for row in rows if row["size"] != SWEPT or row["tokens"] != int(SWEPT_TOKENS)}
    return [row for row in rows if row["options"] == kept.get(row["recipe"])
            and row["tokens"] in [int(SIZES[row["size"]][1] * length) for length in LENGTHS]]  # fmt: skip


def tries(rows, recipe):
    """How often this recipe was tried before one was kept."""
    return len({row["options"] for row in rows if row["recipe"] == recipe})


def least_squares(columns, values):
    """Coefficients c with the least |sum c_i columns_i - values|, by the normal equations."""
    n = len(columns)
    system = [[sum(a * b for a, b in zip(columns[i], columns[j])) for j in range(n)]
              + [sum(a * b for a, b in zip(columns[i], values))] for i in range(n)]  # fmt: skip
    for i in range(n):
        pivot = max(range(i, n), key=lambda row: abs(system[row][i]))
        system[i], system[pivot] = system[pivot], system[i]
        for row in range(n):
            if row != i:
                factor = system[row][i] / system[i][i]
                system[row] = [x - factor * y for x, y in zip(system[row], system[i])]
    return [system[i][n] / system[i][i] for i in range(n)]


def law(rows):
    """E, A, a, B, b, and the root of the mean squared error: the exponents from a grid, the rest by least squares."""
    best = None
    for a in (step / 50 for step in range(2, 60)):
        for b in (step / 50 for step in range(2, 60)):
            columns = [[1.0] * len(rows), [(row["parameters"] / 1e6) ** -a for row in rows],
                       [(row["tokens"] / 1e6) ** -b for row in rows]]  # fmt: skip
            values = [row["bits_per_byte"] for row in rows]
            E, A, B = least_squares(columns, values)
            error = math.sqrt(sum((E + A * x + B * y - z) ** 2 for x, y, z in zip(*columns[1:], values)) / len(rows))
            if E > 0 and A > 0 and B > 0 and (best is None or error < best[-1]):
                best = E, A, a, B, b, error
    return best


def tokens_for(rows, bits):
    """Tokens with which these runs of one size reach bits/byte, between two of them on a line over
    log tokens; those of the shortest run where it is better already; None where the longest is not
    as good."""
    points = sorted((math.log(row["tokens"]), row["bits_per_byte"]) for row in rows)
    if points and points[0][1] <= bits:
        return math.exp(points[0][0])
    for (x, y), (next_x, next_y) in zip(points, points[1:]):
        if y >= bits >= next_y:
            return math.exp(x + (next_x - x) * (y - bits) / (y - next_y))
    return None


def report(rows):
    tried, rows = rows, of_ladder(rows)
    recipes, lines = list(dict.fromkeys(row["recipe"] for row in rows)), []
    lines += ["| model | tokens | " + " | ".join(recipes) + " |", "| --- | --- |" + " --- |" * len(recipes)]
    for size, (_, most) in SIZES.items():
        for length in LENGTHS:
            found = {row["recipe"]: row["bits_per_byte"] for row in rows
                     if row["size"] == size and row["tokens"] == int(most * length)}  # fmt: skip
            if found:
                cells = [f"{found[recipe]:.4f}" if recipe in found else "-" for recipe in recipes]
                lines.append(f"| {size} | {most * length / 1e6:g}M | " + " | ".join(cells) + " |")
    lines += ["", "| recipe | options | best of tries | law of bits/byte, N and D in millions | "
              "error |", "| --- | --- | --- | --- | --- |"]
    for recipe in recipes:
        own = [row for row in rows if row["recipe"] == recipe]
        fitted = law(own) if len(own) >= 6 else None
        text = "{:.3f} + {:.3f} N^-{:.2f} + {:.3f} D^-{:.2f}".format(*fitted[:5]) if fitted else "-"
        error = f"{fitted[5]:.4f}" if fitted else "-"
        lines.append(f"| {recipe} | `{own[0]['options'].strip()}` | {tries(tried, recipe)} | {text} | {error} |")
    largest = list(SIZES)[-1]
    runs = {recipe: [row for row in rows if row["recipe"] == recipe and row["size"] == largest] for recipe in recipes}
    for held in recipes:
        if not runs[held]:
            continue
        most = max(runs[held], key=lambda row: row["tokens"])
        needs = [(recipe, tokens_for(runs[recipe], most["bits_per_byte"])) for recipe in recipes if recipe != held]
        shortest = {recipe: min((row["tokens"] for row in own), default=0) for recipe, own in runs.items()}
        shares = [f"{recipe} {'at most ' * (round(tokens) == shortest[recipe])}{100 * tokens / most['tokens']:.0f}%"
                  for recipe, tokens in needs if tokens]  # fmt: skip
        if shares:
            lines += ["", f"For the {most['bits_per_byte']:.4f} bits/byte of {held} ({largest}, {most['tokens'] / 1e6:g}M "
                      f"tokens): {', '.join(shares)} of its tokens."]  # fmt: skip
    return "\n".join(lines)


def picture(rows, path):
    """Bits/byte over tokens: a line for each recipe and size."""
    rows, colours = of_ladder(rows), ["#888888", "#1f77b4", "#2ca02c", "#d62728", "#9467bd"]
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    low, high = min(row["bits_per_byte"] for row in rows), max(row["bits_per_byte"] for row in rows)
    first, last = (math.log(choose(row["tokens"] for row in rows)) for choose in (min, max))

    def place(row):
        x, y = (math.log(row["tokens"]) - first) / (last - first), (row["bits_per_byte"] - low) / (high - low)
        return 60 + 600 * x, 380 - 340 * y

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="720" height="440" font-family="sans-serif" font-size="12">',
             '<rect width="720" height="440" fill="white"/>']  # fmt: skip
    for i in range(6):
        bits = low + (high - low) * i / 5
        y = 380 - 340 * i / 5
        parts.append(f'<line x1="60" y1="{y:.0f}" x2="660" y2="{y:.0f}" stroke="#dddddd"/>')
        parts.append(f'<text x="20" y="{y + 4:.0f}">{bits:.2f}</text>')
    for tokens in sorted({row["tokens"] for row in rows}):
        x = 60 + 600 * (math.log(tokens) - first) / (last - first)
        parts.append(f'<text x="{x:.0f}" y="400" text-anchor="middle">{tokens / 1e6:g}M</text>')
    for recipe, colour in zip(recipes, colours):
        for size in SIZES:
            own = [row for row in rows if (row["recipe"], row["size"]) == (recipe, size)]
            line = [place(row) for row in sorted(own, key=lambda row: row["tokens"])]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        number = recipes.index(recipe)
        parts.append(f'<text x="{70 + number % 3 * 210}" y="{418 + number // 3 * 16}" fill="{colour}">{recipe}</text>')
    title = '<text x="60" y="20">bits/byte over tokens; a line for each size, the largest lowest</text>'
    Path(path).write_text("\n".join([*parts, title, "</svg>"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["corpus", "run", "report"])
    parser.add_argument("directory", help="of the shards; report: the file of results")
    parser.add_argument("--trainer", default="./train_gpt2")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=TOKENS_IN_STEP // T)
    parser.add_argument("--size", choices=SIZES, help="only this one")
    parser.add_argument("--results", default="ladder.json")
    parser.add_argument("--picture")
    options = parser.parse_args()
    if options.what == "corpus":
        corpus(options.directory)
    elif options.what == "run":
        Ladder(options).run()
    else:
        rows = json.loads(Path(options.directory).read_text())
        print(report(rows))
        if options.picture:
            picture(rows, options.picture)


if __name__ == "__main__":
    main()
