"""What a disk may hold after a power loss, from the calls that a program made (faults.c records them).

The rules are those of POSIX and no stricter, so they allow all that ext4, XFS or btrfs do, and more:
- What was written to a file is on the disk after an fsync of the file. Of what was written since, any part may be
  missing: all of it, its end, single blocks of 4096 bytes, which then have what was there before, or zeros.
- A new name, a removed name and a rename are on the disk after an fsync of the directory (of either, if there are two).
  Before that each may be there or not, in any order; a rename is there as a whole or not at all.
"""
import hashlib
import os
import random
import struct

BLOCK = 4096
OPEN, WRITE, PWRITE, FSYNC, FTRUNCATE, RENAME, MKDIR, RMDIR, UNLINK = 2, 1, 18, 74, 77, 82, 83, 84, 87  # x86-64
RENAME_EXCHANGE = 2
RECORD = struct.Struct("=iiiIIiq")


class File:
    def __init__(self, content=b""):
        self.content, self.changes = content, []  # (time, offset, bytes), bytes None: cut to offset
        self.size, self.syncs = len(content), []


class Directory:
    def __init__(self):
        self.names, self.syncs = {}, []


class Change:
    """Names that change together: [(directory, name, node, or None: it is removed, and was this node)]."""

    def __init__(self, time, parts):
        self.time, self.parts = time, parts

    def is_durable(self, until):
        return any(self.time < sync < until for directory, *_ in self.parts for sync in directory.syncs)


class Disk:
    """A directory tree, all of it on the disk, and what was then done to it."""

    def __init__(self, root, trace):
        self.root, self.changes, self.marks = str(root), [], []
        self.base = self.read(self.root) if os.path.isdir(self.root) else None
        top = Directory()  # the directory in which root is
        self.top, self.start = top, {}
        if self.base:
            top.names["root"] = self.base
        self.remember(top)
        self.time = 0
        self.replay(trace)

    def read(self, path):
        node = Directory()
        for entry in os.scandir(path):
            node.names[entry.name] = self.read(entry.path) if entry.is_dir() else File(open(entry.path, "rb").read())
        return node

    def remember(self, directory):
        self.start[directory] = dict(directory.names)
        for node in directory.names.values():
            if isinstance(node, Directory):
                self.remember(node)

    def find(self, path):
        """The directory of a path, and the name in it."""
        parts = ["root"] + [part for part in path[len(self.root):].split("/") if part]
        at = self.top
        for part in parts[:-1]:
            at = at.names[part]
        return at, parts[-1]

    def change(self, *parts):
        for directory, name, node, *_ in parts:
            if node is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = node
        self.changes.append(Change(self.time, parts))

    def replay(self, trace):
        data, at, files = trace.read_bytes(), 0, {}
        while at < len(data):
            number, fd, flags, text, more, _, offset = RECORD.unpack_from(data, at)
            at += RECORD.size
            path, more = data[at:at + text].decode(), data[at + text:at + text + more]
            at += text + len(more)
            self.time += 1
            if number == OPEN:
                files[fd] = self.open(path, flags)
            elif number in (WRITE, PWRITE):
                if fd == 1 and fd not in files:
                    self.marks.append((self.time, more.decode(errors="replace")))
                elif files.get(fd):
                    self.write(files[fd], offset, more)
            elif number == FSYNC:
                if files.get(fd):
                    files[fd].syncs.append(self.time)
            elif number == FTRUNCATE:
                if files.get(fd):
                    self.cut(files[fd], offset)
            else:
                self.rename_or_remove(number, path, more.decode(), flags)

    def open(self, path, flags):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            return None
        directory, name = self.find(path)
        node = directory.names.get(name)
        if node is None and flags & os.O_CREAT:
            node = File()
            self.change((directory, name, node))
        elif isinstance(node, File) and flags & os.O_TRUNC and node.size:
            self.cut(node, 0)
        return node

    def write(self, file, offset, data):
        offset = file.size if offset < 0 else offset
        file.changes.append((self.time, offset, data))
        file.size = max(file.size, offset + len(data))

    def cut(self, file, size):
        file.changes.append((self.time, size, None))
        file.size = size

    def rename_or_remove(self, number, path, to, flags):
        directory, name = self.find(path)
        if number == MKDIR:
            node = Directory()
            self.start[node] = {}
            self.change((directory, name, node))
        elif number in (RMDIR, UNLINK):
            self.change((directory, name, None, directory.names[name]))
        else:
            other, there = self.find(to)
            moved, replaced = directory.names[name], other.names.get(there)
            if flags & RENAME_EXCHANGE:
                self.change((other, there, moved), (directory, name, replaced))
            else:
                self.change((directory, name, None, moved), (other, there, moved))

    # ------------------------------------------------------------------------------------------------- after a loss

    def lost_at(self, time, choose, extreme=None):
        """A tree {path below root: bytes, or None for a directory} that may be found if power is lost before the event
        `time`. `extreme`: which of the plainest cases; otherwise by chance."""
        open_changes = [c for c in self.changes if c.time < time and not c.is_durable(time)]
        kept = self.kept(open_changes, choose, extreme)
        names = {directory: dict(then) for directory, then in self.start.items()}
        place = {id(node): (directory, name) for directory, then in names.items() for name, node in then.items()}
        for change in self.changes:
            if change.time >= time or (change in open_changes and change not in kept):
                continue
            for directory, name, node, *was in change.parts:
                if node is None:
                    if names[directory].get(name) is was[0]:
                        del names[directory][name]
                        place.pop(id(was[0]), None)
                    continue
                if id(node) in place:  # it has one name
                    old, called = place[id(node)]
                    if names[old].get(called) is node:
                        del names[old][called]
                names[directory][name] = node
                place[id(node)] = (directory, name)
        tree = {}
        if "root" in names[self.top]:
            self.collect(names, names[self.top]["root"], "", time, choose, extreme, tree)
        return tree

    @staticmethod
    def kept(changes, choose, extreme):
        if extreme in ("nothing", "names lost"):
            return []
        if extreme in ("all", "data lost", "zeros"):
            return changes
        if choose.random() < 0.4:  # in order, as a journal keeps them
            return changes[:choose.randint(0, len(changes))]
        share = choose.choice((0.2, 0.5, 0.8))
        return [c for c in changes if choose.random() < share]

    def collect(self, names, directory, path, time, choose, extreme, tree):
        tree[path] = None
        for name, node in sorted(names[directory].items()):
            below = f"{path}/{name}" if path else name
            if isinstance(node, Directory):
                self.collect(names, node, below, time, choose, extreme, tree)
            else:
                tree[below] = self.content(node, time, choose, extreme)

    @staticmethod
    def content(file, time, choose, extreme):
        synced = max((sync for sync in file.syncs if sync < time), default=0)
        old, pending = bytearray(file.content), []
        for change in file.changes:
            if change[0] >= time:
                break
            if change[0] < synced:
                apply(old, change)
            else:
                pending.append(change)
        if not file.changes:
            return file.content
        if not pending or extreme in ("nothing", "data lost"):
            return bytes(old)
        new = bytearray(old)
        how = {"all": "all", "names lost": "all", "zeros": "zeros"}.get(extreme) or \
            choose.choice(("none", "all", "zeros", "cut", "cut", "blocks", "blocks"))
        if how == "none":
            return bytes(old)
        if how == "cut":
            pending = pending[:choose.randint(1, len(pending))]
        for change in pending:
            apply(new, change)
        if how == "cut":  # somewhere in the last of those that came
            _, offset, data = pending[-1]
            if data and offset + len(data) == len(new):
                less = choose.choice((choose.randint(0, len(data)), len(data) // BLOCK * BLOCK))
                del new[max(len(old), len(new) - less):]
        if how in ("zeros", "blocks"):
            share = 1 if how == "zeros" else choose.choice((0.1, 0.5, 0.9))
            for at in range(0, len(new), BLOCK):
                end = min(at + BLOCK, len(new))
                if new[at:end] != old[at:end] and choose.random() < share:
                    new[at:end] = bytes(old[at:end]).ljust(end - at, b"\0")
        return bytes(new)

    def states(self, seed, most, times=None):
        """Different trees that may be found, at most so many: (time, tree). The plainest ones of each moment, and then
        others by chance."""
        times = times or range(1, self.time + 2)
        choose = random.Random(seed)
        plain = [(time, extreme) for time in times for extreme in ("nothing", "all", "names lost", "data lost", "zeros")]
        choose.shuffle(plain)
        plain = plain[:(most + 1) // 2 if most < len(plain) else most]
        seen = set()
        for number in range(20 * most):
            if len(seen) >= most:
                return
            time, extreme = plain[number] if number < len(plain) else (choose.choice(times), None)
            tree = self.lost_at(time, choose, extreme)
            key = fingerprint(tree)
            if key not in seen:
                seen.add(key)
                yield time, tree


def apply(content, change):
    _, offset, data = change
    if data is None:
        if offset < len(content):
            del content[offset:]
        else:
            content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset:offset + len(data)] = data


def fingerprint(tree):
    digest = hashlib.sha256()
    for path, content in sorted(tree.items()):
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()


def write(tree, root):
    """Makes the tree in a directory that is not there yet."""
    for path, content in sorted(tree.items()):
        place = root / path if path else root
        if content is None:
            place.mkdir(parents=True)
        else:
            place.write_bytes(content)
