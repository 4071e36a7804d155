"""Comparisons with a peer that starts where we start: its process, its settings, and whether its
losses are ours.

A contender is a process that makes one training step for each line that it reads and answers with
one JSON line, so that contenders can take turns step by step: on a shared machine all of them meet
the same disturbance. A ratio is worth printing only if all train the same model from the same
weights on the same tokens, which their losses show.
"""

import json
import math
import os
import re
import struct
import subprocess
import tempfile

# Losses that are compared: the first shows the forward pass, the others backward pass and update.
LOSSES = 3
# A careful user of PyTorch on a CPU has an allocator that keeps freed memory: glibc's own returns
# the large tensors of a step to the system and faults every page in again.
GLIBC_THAT_KEEPS = ":".join(
    ("glibc.malloc.mmap_max=0", "glibc.malloc.trim_threshold=68719476736", "glibc.malloc.hugetlb=1")
)
# Of log-uniform tokens: as in text, some are frequent, so that the first steps lower the loss on
# unseen windows.
MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407  # Knuth's MMIX


# -------------------------------------------------------------------------------------------- start


def write_shard(path, tokens, vocab):
    """A shard of log-uniform tokens, always the same."""
    state, drawn = 1, []
    for _ in range(tokens):
        state = (state * MULTIPLIER + INCREMENT) % 2**64
        drawn.append(min(vocab, int((vocab + 1) ** ((state >> 11) / 2**53))) - 1)
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, tokens, vocab, *[0] * 252))
        file.write(struct.pack(f"<{tokens}H", *drawn))
    return path


def export_weights(trainer, model, directory):
    """The weights that the trainer begins with, as a Hugging Face directory."""
    command = [trainer, "-e", model, "-x", "0", "-v", "0", "-s", "0", "--export", directory]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return directory


# ------------------------------------------------------------------------------------------- losses


def tolerances(weights, B, T, dtype):
    """How far the losses of two right programs may lie apart, for each of the first steps.

    A number on its way to a logit is rounded r times, each time by a relative error of deviation u
    / sqrt(3), where u is the unit roundoff. Such errors are independent and add up as a random
    walk, so a logit of size 1 (deviation 0.02 sqrt(C) at the start of GPT-2) has an error of
    deviation e = sqrt(r / 3) u.
      bf16, u = 2^-9: products are summed in fp32, and r counts the tensors that are stored: ten
      a block (two norms, qkv, attention, proj, fc, activation, fcproj, twice the residual stream),
      the embedding, the last norm and the logits.
      fp32, u = 2^-24: r counts the additions of the sums, 7 C + T a block (qkv, attention, proj
      and fc are sums of C or T terms, fcproj of 4 C) and C of the head.
    The loss is the mean of N = B T logarithms, so their errors shrink to e / sqrt(N). Each update
    moves the weights by gradients with such errors and adds as much again: k e / sqrt(N) after k
    steps. Independently of the precision of the model the losses are added up in fp32, at worst one
    after the other over a row of T: loss sqrt(T / 3) 2^-24. Four deviations of the difference of
    two programs, hence the factor 4 sqrt(2).
    """
    with open(f"{weights}/config.json") as file:
        config = json.load(file)
    L, C = (
        config[name if name in config else other]
        for name, other in (("n_layer", "num_hidden_layers"), ("n_embd", "hidden_size"))
    )
    u, r = (2**-9, 10 * L + 3) if dtype == "bf16" else (2**-24, L * (7 * C + T) + C)
    of_logits = math.sqrt(r / 3) * u / math.sqrt(B * T)
    of_sums = math.log(config["vocab_size"]) * math.sqrt(T / 3) * 2**-24
    return [4 * math.sqrt(2) * (k * of_logits + of_sums) for k in range(1, LOSSES + 1)]


def difference(ours, theirs, allowed):
    """None, or how the losses of the first steps differ."""
    for step, (a, b, tolerance) in enumerate(zip(ours, theirs, allowed), 1):
        if not abs(a - b) <= tolerance:
            return f"losses differ: {a:.6f} vs {b:.6f} at step {step}, allowed {tolerance:.1e}"
    return None


# ---------------------------------------------------------------------------------------- processes


def allocator():
    """Name and environment of the allocator of the peer: that of PEER_ALLOCATOR (a library), or an
    installed tcmalloc, or glibc's with settings that keep freed memory."""
    library = os.environ.get("PEER_ALLOCATOR")
    if not library:
        cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
        found = re.search(r"=> (\S*libtcmalloc(?:_minimal)?\.so\S*)", cache)
        library = found.group(1) if found else None
    if library:
        return os.path.basename(library).split(".so")[0].removeprefix("lib"), {
            "LD_PRELOAD": library
        }
    return "glibc malloc, mmap_max=0, no trim, huge pages", {"GLIBC_TUNABLES": GLIBC_THAT_KEEPS}


class Ended(Exception):
    """A contender ended too early; its last words."""


class Contender:
    """A process that steps when it is told to."""

    def __init__(self, command, **environment):
        self.words = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.words,
            text=True,
            env=os.environ | environment,
        )

    def read(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.words.seek(0)
        said = self.words.read().strip().splitlines() or ["no word"]
        raise Ended(f"{said[-1]} (exit code {self.process.returncode})")

    def step(self):
        """{"loss": ..., "step_seconds": ..., ...} of one step."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read says why
        return self.read()

    def finish(self):
        """The last line, with the facts of the process."""
        self.process.stdin.close()
        facts = self.read()
        self.process.wait()
        return facts

    def kill(self):
        self.process.kill()
        self.process.wait()
