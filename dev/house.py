#!/usr/bin/env python3
"""Measures of how the code is cut and of how its pages read: which headers speak for too much, which names grep finds
twice, which includes run upwards; and what a reader meets on a page: functions without a blank line, failures inside
conditions, lines that are too wide, comments without a subject. A figure says where to look, no more.

    dev/house.py                             the measures, and the lines of each room
    dev/house.py --list KIND [ROOM]          the places of a kind; ROOM: llmc/run, ...
    dev/house.py --check                     as make lint: fails where a measure of the page passes its limit
    dev/house.py --tree DIR                  another checkout

The parser is a few regular expressions. Functions that a macro makes are not seen. A static function counts in its own
file, any other name in the whole tree. doc/architecture.md quotes the measures and explains the order of the rooms.
"""
import argparse
import re
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path

PRODUCT = ("train_gpt2.cu", "llmc", "data", "scripts")
CODE = (".c", ".h", ".cu", ".cuh", ".cpp", ".def")
CONTRACT = ("llmc/ops.h", "llmc/device.h")  # these may be wide

# The order of the rooms, from below. A file includes headers of its own room and of lines above this one.
ORDER = (
    ("llmc/base",),
    ("llmc/tensor",),
    ("llmc/number", "llmc/step_control"),
    ("llmc/device.h",),
    ("llmc/ops.h", "llmc/data"),
    ("llmc/text",),
    ("llmc/comm",),
    ("llmc/model/gpu_sizes",),  # scratch memory from shapes alone: for the CUDA backend, and for plans without a GPU
    ("llmc/cpu", "llmc/cuda"),
    ("llmc/ops.c", "llmc/speed"),
    ("llmc/model",),
    ("llmc/train", "llmc/store"),
    ("llmc/plan", "llmc/log"),
    ("llmc/run",),
    ("train_gpt2.cu", "data"),
)
NOT_A_NAME = set("if for while switch return sizeof do else case defined alignas _Alignas __attribute__ __launch_bounds__ "
                 "_Static_assert static_assert".split())
HEAD = re.compile(r"(\w+)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*$")
ATTRIBUTE = re.compile(r"__(?:attribute|launch_bounds)__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\balignas\s*\([^()]*\)")


# What a reader meets on a page. Each kind: its title, its limit, and in Page the places.
BOOLEAN_FAILURE = re.compile(r"\breturn\b[^;]*(\|\||&&)[^;]*\b(error_\w+|err)\b|"
                             r"\b(ok|good|fine|done) = \3 &&|\b(ok|good|fine) = .*&&.*\berr\b")
DISGUISE = re.compile(r"\b(text_if|tensor_if|text_or)\(")
FRAGMENT = re.compile(r"^\s*//+\s+(Of|For which|By which|In which|At which|From which|To which|What|Those|Them|Its|Which|"
                      r"With which|As|Not)\b")
COLUMNS, SOLID, LONGEST = 100, 25, 60  # columns of a line; lines of a function
PAGE = {
    "solid": (f"functions of {SOLID} lines and more without a blank line", 15),
    "long": (f"functions over {LONGEST} lines", 0),
    "failures": ("failures inside || and &&", 0),
    "disguised": ("ternaries in the clothes of a function", 0),
    "columns": (f"lines over {COLUMNS} columns, outside tables", 0),
    "fragments": ("comments that begin without a subject", 5),
}
MIN_BLANKS = 5.0              # blank lines per 100 lines of function bodies
MAX_BOOLS, MAX_ARGUMENTS = 3, 9  # of ops.h


class Page:
    """What a reader meets in llmc and train_gpt2.cu, line by line."""

    def __init__(self, root):
        self.places = {kind: [] for kind in PAGE}
        self.body = self.blank = 0
        for path in in_tree(root, ("llmc", "train_gpt2.cu")):
            if path.endswith(CODE):
                self.read(path, (root / path).read_text(encoding="utf-8", errors="replace").splitlines())
        ops = root / "llmc/ops.h"
        text = re.sub(r"//.*", "", ops.read_text()) if ops.exists() else ""
        calls = re.findall(r"^\w[^;{}]*\(([^;{}]*)\);", text, re.M)
        self.bools = sum(len(re.findall(r"\bbool \w+", call)) for call in calls)
        self.arguments = max((call.count(",") + 1 for call in calls), default=0)

    def read(self, path, lines):
        is_table = False  # of which clang-format keeps the columns
        for number, line in enumerate(lines, 1):
            is_table = "clang-format off" in line or (is_table and "clang-format on" not in line)
            place = f"{path}:{number}: {line.strip()[:COLUMNS]}"
            for kind, found in (("failures", BOOLEAN_FAILURE.search(line.strip())), ("disguised", DISGUISE.search(line)),
                                ("columns", len(line) > COLUMNS and not is_table), ("fragments", FRAGMENT.match(line))):
                if found:
                    self.places[kind].append(place)
        for name, first, end in bodies(lines):
            if name.isupper():  # a macro
                continue
            count, empty = end - first, sum(not line.strip() for line in lines[first:end])
            self.body, self.blank = self.body + count, self.blank + empty
            place = f"{path}:{first}: {name}, {count} lines"
            if count >= SOLID and empty == 0:
                self.places["solid"].append(place)
            if count > LONGEST:
                self.places["long"].append(place)

    def blanks(self):
        return 100 * self.blank / max(self.body, 1)

    def beyond(self):
        """What passes its limit, a line each."""
        found = [f"{title}: {len(self.places[kind])}, at most {limit}; dev/house.py --list {kind} names them"
                 for kind, (title, limit) in PAGE.items() if len(self.places[kind]) > limit]
        if self.body and self.blanks() < MIN_BLANKS:
            found.append(f"blank lines per 100 lines of function bodies: {self.blanks():.1f}, at least {MIN_BLANKS:g}")
        if self.bools > MAX_BOOLS or self.arguments > MAX_ARGUMENTS:
            found.append(f"ops.h: {self.bools} bools and {self.arguments} arguments, at most {MAX_BOOLS} and {MAX_ARGUMENTS}")
        return found


def bodies(lines):
    """(name, first line, end) of each function that begins and ends in the first column."""
    first = name = None
    for number, line in enumerate(lines):
        if first is None:
            head = " ".join(lines[max(0, number - 6):number + 1])
            if line and not line[0].isspace() and line.rstrip().endswith("{") and "(" in head:
                found = [n for n in re.findall(r"([A-Za-z_]\w*)\s*\(", head) if n not in NOT_A_NAME]
                if found and not re.match(r"(typedef|struct|union|enum|extern)\b", line) and "=" not in line:
                    first, name = number + 1, found[-1]
        elif line.startswith("}"):
            yield name, first, number
            first = None


class Function:
    def __init__(self, name, file, line, lines, is_static):
        self.name, self.file, self.line, self.lines, self.is_static = name, file, line, lines, is_static

    def __str__(self):
        return f"{self.file}:{self.line} {self.name}"


def blank(match):
    """A comment becomes its line ends, a string "" and a character 0; lines keep their numbers."""
    text = match[0]
    if text[0] == '"':
        return '""' + "\n" * text.count("\n")
    return "0" if text[0] == "'" else " " + "\n" * text.count("\n")


def without_text(code):
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, code, flags=re.S)


class File:
    """Functions defined and declared in a file, every word with its number, and what it includes."""

    def __init__(self, root, path):
        self.path = path
        raw = (root / path).read_text(encoding="utf-8", errors="replace")
        self.lines = raw.count("\n")
        self.includes = re.findall(r'^\s*#\s*include "([^"]+)"', raw, re.M)
        self.code = without_text(raw)
        # RUN(op, ...) of ops.c and the tables of the backends name backend_op.
        self.words = Counter(re.findall(r"(?<![\w.])(?<!->)[A-Za-z_]\w*", re.sub(r"\bRUN\((\w+)", r"RUN(backend_\1", self.code)))
        self.functions, self.declared, self.bodies = [], [], []
        self.parse()

    def parse(self):
        text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m[0].count("\n"), self.code, flags=re.M)
        text = re.sub(r'extern\s+""\s*\{', lambda m: ";" + "\n" * m[0].count("\n"), text)
        depth = start = body = 0
        head = ""
        for m in re.finditer(r"[{};]", text):
            if m[0] == "{":
                if depth == 0:
                    head, body = text[start:m.start()], m.end()
                depth += 1
            elif m[0] == "}":
                if depth == 1:
                    self.take_definition(head, start, body, m.start(), text)
                    start = m.end()
                depth = max(depth - 1, 0)
            elif depth == 0:
                self.take_declaration(text[start:m.start()])
                start = m.end()

    def take_definition(self, head, start, body, end, text):
        name = HEAD.search(ATTRIBUTE.sub("", head))
        if not name or name[1] in NOT_A_NAME or "=" in head.split("(")[0]:
            return
        begun = start + len(head) - len(head.lstrip())
        line = text.count("\n", 0, begun) + 1
        is_static = bool({"static", "__global__", "template"} & set(re.findall(r"\w+", head)))
        self.functions.append(Function(name[1], self.path, line, text.count("\n", begun, end) + 1, is_static))
        self.bodies.append(text[body:end])

    def take_declaration(self, text):
        text = ATTRIBUTE.sub("", text)
        name = HEAD.search(text)
        if name and name[1] not in NOT_A_NAME and not re.search(r"\btypedef\b|=|\(\s*\*", text[:name.end(1)]) and \
                len(re.findall(r"\w+", text[:name.end(1)])) > 1:
            self.declared.append(name[1])

    def comma_statements(self):
        return sum(is_comma_statement(s) for body in self.bodies for s in statements(body))


def statements(body):
    """The statements of a body that end with a semicolon, without the words and parentheses before them."""
    body = re.sub(r"<<<.*?>>>|<[\w\s,:*/<>]+>(?=\s*[\w({;:])", " ", body, flags=re.S)  # kernel launches, template arguments
    depth, start = 0, 0
    for m in re.finditer(r"[(){};\[\]]", body):
        if m[0] in "([":
            depth += 1
        elif m[0] in ")]":
            depth = max(depth - 1, 0)
        elif m[0] == ";" and depth == 0:
            yield body[start:m.start()]
            start = m.end()
        elif m[0] in "{}":
            start, depth = m.end(), 0


def is_comma_statement(text):
    while True:  # if (...), else, case N:
        rest = re.sub(r"^\s*(?:else\b|do\b|(?:if|for|while|switch)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|"
                      r"(?:case\s+[\w']+|default)\s*:)", "", text)
        if rest == text:
            break
        text = rest
    text = text.strip()
    if re.match(r"(?!return\b|goto\b)(?:[A-Za-z_]\w*(?:\s*\*+\s*(?:const\s+)?|\s+))+[A-Za-z_]\w*\s*(?:[=,;\[(]|$)", text):
        return False  # a declaration
    while re.search(r"\([^()]*\)|\[[^\[\]]*\]", text):
        text = re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", text)
    return "," in text.lstrip(",") and not text.startswith((",", "=", "."))


def in_tree(root, tops):
    for top in tops:
        paths = [root / top] if (root / top).is_file() else sorted((root / top).glob("**/*"))
        for p in paths:
            name = str(p.relative_to(root))
            if p.is_file() and not p.is_symlink() and not {"__pycache__", "results", ".git", "build"} & set(p.parts):
                yield name


def stem(path):
    return path.rsplit(".", 1)[0]


def room(path):
    parts = path.split("/")
    return "/".join(parts[:-1][:2]) or path


def rank(path):
    """(height of its room, name of its room), of the longest name in ORDER that fits; None: not in the product."""
    fits = [(len(name), height, name) for height, names in enumerate(ORDER) for name in names
            if path == name or path.startswith(name + "/") or (name.count("/") > 0 and stem(path).startswith(name))]
    return max(fits)[1:] if fits else None


class House:
    def __init__(self, root):
        self.root = root
        code = [p for p in in_tree(root, PRODUCT + ("dev", "test")) if p.endswith(CODE)]
        self.all = {p: File(root, p) for p in code}
        self.files = {p: f for p, f in self.all.items() if p.split("/")[0] in PRODUCT}
        self.functions = [g for f in self.files.values() for g in f.functions]
        self.lines = sum(f.lines for f in self.files.values())

    def twins(self):
        """Public names that llmc/cpu and llmc/cuda both define: ops.h, device.h and what they tell the planner."""
        cpu, cuda = ({g.name for g in self.functions if g.file.startswith(f"llmc/{b}/") and not g.is_static}
                     for b in ("cpu", "cuda"))
        return cpu & cuda

    def duplicates(self):
        """Names of functions that several files of llmc define; twins count once."""
        where, twins = defaultdict(set), self.twins()
        for g in self.functions:
            if g.file.startswith("llmc/"):
                where[g.name].add("a backend" if g.name in twins and not g.is_static else g.file)
        names = {name for name, files in where.items() if len(files) > 1}
        found = defaultdict(list)
        for g in self.functions:
            if g.name in names and g.file.startswith("llmc/"):
                found[g.name].append(g)
        return found

    def widths(self):
        """Functions that each header declares for its sources, the widest first; those that it defines are its own."""
        counts = {p: len(set(f.declared)) for p, f in self.files.items()
                  if p.endswith((".h", ".cuh")) and p not in CONTRACT}
        return sorted(counts.items(), key=lambda row: -row[1])

    def upwards(self):
        """Includes of a room above, or of another room on the same line."""
        found = []
        for p, f in self.files.items():
            for i in f.includes:
                here, there = rank(p), rank(i)
                if here and there and there[1] != here[1] and there[0] >= here[0]:
                    found.append((p, i))
        return found

    def seen_names(self, path):
        """Functions that the headers of a file declare or define, directly or through other headers."""
        seen, todo = set(), [path]
        while todo:
            p = todo.pop()
            if p in self.files and p not in seen:
                seen.add(p)
                todo += self.files[p].includes
        return {name for p in seen for name in self.files[p].declared} | {g.name for p in seen for g in self.files[p].functions}

    def circles(self):
        """Sets of files that need each other, by calls or includes. x.c and x.h are one."""
        home = defaultdict(set)
        for g in self.functions:
            if not g.is_static or g.file.endswith((".h", ".cuh")):
                home[g.name].add(stem(g.file))
        needs = defaultdict(set)
        for p, f in self.files.items():
            own, known = {g.name for g in f.functions}, self.seen_names(p)
            for word in (f.words.keys() & known & home.keys()) - own:
                homes = home[word]
                if len(homes) > 1:  # the one of its own room, if any
                    homes = {h for h in homes if room(h + ".c") == room(p)}
                needs[stem(p)] |= homes
            needs[stem(p)] |= {stem(i) for i in f.includes if i in self.files}
            needs[stem(p)].discard(stem(p))
        return sorted(sorted(c) for c in components(needs) if len(c) > 1)

    def options(self):
        path = self.root / "llmc/run/options.def"
        return len(re.findall(r"^OPTION\(", path.read_text(), re.M)) if path.exists() else 0


def components(needs):
    """Tarjan's strongly connected components."""
    index, low, stack, found = {}, {}, [], []

    def visit(n):
        index[n] = low[n] = len(index)
        stack.append(n)
        for m in sorted(needs.get(n, ())):
            if m not in index:
                visit(m)
            if m in stack:
                low[n] = min(low[n], low[m])
        if low[n] == index[n]:
            at = stack.index(n)
            found.append(set(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10000)
    for n in sorted(needs):
        if n not in index:
            visit(n)
    return found


def product_lines(root):
    """Lines of each room of the product, scripts in Python and shell too."""
    lines = Counter()
    for p in in_tree(root, PRODUCT):
        if p.endswith(CODE + (".py", ".sh", ".html", ".sbatch")):
            lines[room(p)] += (root / p).read_bytes().count(b"\n")
    return lines


def print_measures(house):
    page = Page(house.root)
    lines = product_lines(house.root)
    header, width = (house.widths() or [("-", 0)])[0]
    rows = [("functions in the widest header", width, header), ("function names in several files", len(house.duplicates()), ""),
            ("comma statements", sum(f.comma_statements() for f in house.files.values()), ""),
            ("includes that run upwards", len(house.upwards()), ""), ("circles between files", len(house.circles()), ""),
            ("options", house.options(), ""),
            ("blank lines per 100 lines of function bodies", f"{page.blanks():.1f}", f"at least {MIN_BLANKS:g}")]
    rows += [(title, len(page.places[kind]), f"at most {limit}") for kind, (title, limit) in PAGE.items()]
    rows += [("bools in the calls of ops.h", page.bools, f"at most {MAX_BOOLS}"),
             ("most arguments of a call of ops.h", page.arguments, f"at most {MAX_ARGUMENTS}")]
    for title, value, note in rows:
        print(f"{title:<50}{value:>8}   {note}".rstrip())
    print(f"\n{'room':<16}{'lines':>7}")
    for name in sorted(lines):
        print(f"{name:<16}{lines[name]:>7}")


def print_places(house, kind, inside):
    def is_inside(path):
        return not inside or path == inside or path.startswith(inside.rstrip("/") + "/")

    if kind in PAGE:
        for place in Page(house.root).places[kind]:
            if is_inside(place.split(":")[0]):
                print(place)
    elif kind == "duplicates":
        for name, places in sorted(house.duplicates().items()):
            if any(is_inside(g.file) for g in places):
                print(f"{name}: {', '.join(f'{g.file}:{g.line}' for g in places)}")
    elif kind == "wide":
        for path, count in house.widths():
            if is_inside(path) and count >= 10:
                print(f"{count:>4} functions  {path}")
    elif kind == "upwards":
        for path, include in house.upwards():
            if is_inside(path):
                print(f"{path} includes {include}")
    else:
        for files in house.circles():
            if any(is_inside(f) for f in files):
                print(" <-> ".join(files))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=("duplicates", "wide", "upwards", "circles", *PAGE), metavar="KIND")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1], metavar="DIR")
    parser.add_argument("room", nargs="?", default="", metavar="ROOM")
    arguments = parser.parse_args()
    if arguments.check:
        beyond = Page(arguments.tree).beyond()
        sys.exit("\n".join(beyond) if beyond else 0)
    house = House(arguments.tree)
    if arguments.list:
        print_places(house, arguments.list, arguments.room)
    else:
        print_measures(house)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
