#!/usr/bin/env python3
"""Plants mistakes by which a run would not keep its bits, one at a time, and shows which row of test/invariants finds each.

    dev/mutation/same_bits.py [--program test/invariants/test_invariants] [NAME...]

Each is an edit of one place in a copy of the sources in build/mutation/same_bits, which make builds like any other; the
working tree is never edited. Exit status 1: a mistake was not found, or its place does not exist any more.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import place

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build/mutation/same_bits"

# (name, what, file, old, new)
MISTAKES = [
    ("position", "a checkpoint says one window less than was read", "train_gpt2.cu",
     "state->position = dataloader_position(run->loader);", "state->position = dataloader_position(run->loader) - 1;"),
    ("schedule", "a resumed run begins its schedule again", "train_gpt2.cu",
     "schedule_lr(&setup->schedule, step)", "schedule_lr(&setup->schedule, step - setup->first_step)"),
    ("updates", "every resume counts updates from 0", "llmc/run/run_setup.c",
     "if (starts_new) s->state.control.updates = 0;", "s->state.control.updates = 0;"),
    ("rounding_seed", "random bits depend on where the run began", "llmc/run/run_setup.c",
     ".momentum = (float)o->momentum,\n        .seed = s->state.seed,",
     ".momentum = (float)o->momentum,\n        .seed = s->state.seed + (uint64_t)s->first_step,"),
    ("by_group", "a checkpoint does not keep --by-group", "llmc/run/options.def",
     "such as embedding.beta2=0.99,vectors.decay=0.1\")", "such as embedding.beta2=0.99,vectors.decay=0.1\", OPTION_OF_PROCESS)"),
    ("second_moment", "the second moment is not read from the checkpoint", "llmc/store/optimizer_file.c",
     "if (expected.rank == 0) return true;", "if (expected.rank == 0 || slot == SLOT_V) return true;"),
    ("v_scale", "the scales of 8-bit second moments are not read", "llmc/store/optimizer_file.c",
     "if (expected.rank == 0) return true;", "if (expected.rank == 0 || slot == SLOT_V_SCALE) return true;"),
    ("compensation", "a weight is the saved value, compensation included", "llmc/model/model_state.c",
     "values[k] -= taken[k];", "values[k] -= 0.0f * taken[k];"),
    ("master", "rounded weights are saved, not the master's", "llmc/model/model_state.c",
     "has_slot(model, index, SLOT_MASTER) ? SLOT_MASTER : WEIGHT;", "has_slot(model, index, SLOT_ROW) ? SLOT_MASTER : WEIGHT;"),
    ("stale_losses", "losses of the step before are added where a micro-batch was short", "llmc/model/model.c",
     "if (first) tensor_fill(model_sequence_losses(model), 0.0f);", "if (first && s.B > model->options.B) tensor_fill(model_sequence_losses(model), 0.0f);"),
    ("fp8_weights", "weights are quantised once, not after each update", "llmc/train/optimizer.c",
     "    model_weights_changed(o->model);\n", ""),
    ("evaluation_counts", "a validation takes random bits", "llmc/model/model.c",
     "    model_fp8_prepare(model);\n    for (int l = 0; l < model->options.config.L; l++) gpt2_forward(model, &s, l);",
     "    model_fp8_prepare(model);\n    micro_step_count(model_control(model), 1);\n    for (int l = 0; l < model->options.config.L; l++) gpt2_forward(model, &s, l);"),
    ("watched", "a watched update takes the first tensor each time", "llmc/train/optimizer.c",
     "optimizer_update(u->list, i, 1, u->params, control);", "optimizer_update(u->list, first, 1, u->params, control);"),
    ("again_rope", "q and k that are computed again are not rotated", "llmc/model/gpt2.c",
     "if (!config_of(b)->qk_norm) qk_forward(b); // in place", ""),
    ("again_qk_norm", "with QK-norm q and k are normalised again though they were kept", "llmc/model/gpt2.c",
     "    } else if (take_missing(b, RECOMPUTE_QKR)) {\n        need_qkv(b);", "    } else if (take_missing(b, RECOMPUTE_QKR)) {"),
    ("again_ln2", "ln2 is computed again with the weights of ln1", "llmc/model/gpt2.c",
     "a->residual2, p->ln2w, p->ln2b);\n}", "a->residual2, p->ln1w, p->ln1b);\n}"),
    ("again_attention", "attention is computed again from what is left of qkv", "llmc/model/gpt2.c",
     "    need_attention_input(b);\n    attention_forward(b->a.att", "    attention_forward(b->a.att"),
    ("again_gelu", "a GELU that was not kept is not computed again", "llmc/model/gpt2.c",
     "    if (take_missing(b, RECOMPUTE_GELU)) activation_forward(b, a->gelu, a->pre);\n", ""),
    ("lifetime", "what a backward pass needs may be overwritten one tick early", "llmc/model/model_fp8.c",
     "model_end_tick(c) - 1);", "model_backward_tick(c, (int)c->L - 1));"),
    ("offload_offset", "a slice rounds with the random bits of its tensor's beginning", "llmc/train/offload.c",
     "slice.offset = t->offset + first;", "slice.offset = t->offset;"),
    ("offload_return", "one copy of a chunk does not go back to the host", "llmc/train/offload.c",
     "i < chunk->first_copy + chunk->copies; i++)\n        copy_d2h", "i < chunk->first_copy + chunk->copies - 1; i++)\n        copy_d2h"),
    ("offload_next", "the chunk after the next is never read", "llmc/train/offload.c",
     "if (c + OFFLOAD_PARTS < o->num_chunks) copy_chunk_in", "if (c + OFFLOAD_PARTS + 1 < o->num_chunks) copy_chunk_in"),
    ("own_offset", "a process rounds with the random bits of its tensors' beginnings", "llmc/model/model.c",
     "t.offset = own.begin;", "t.offset = 0;"),
    ("first_micro_step", "a process counts micro-steps from its first group", "llmc/train/data_parallel.c",
     "count_micro_steps(d, d->share.first * micro_steps_of_any(&d->share));", "count_micro_steps(d, d->share.first);"),
    ("last_micro_step", "a process does not count the micro-steps of the groups after its own", "llmc/train/data_parallel.c",
     "    count_micro_steps(d, (s->groups - s->first - s->count) * micro_steps_of_any(s));\n", ""),
    ("short_group", "a group with fewer micro-steps counts only its own", "llmc/train/data_parallel.c",
     "count_micro_steps(d, micro_steps_of_any(s) - ceil_div(step_share_windows(s, number), s->B));", "(void)number;"),
    ("odd_group", "in the last of an odd number of groups a sum is left out", "llmc/train/data_parallel.c",
     "(last && number >> level > 0)", "(last && number >> level > 9)"),
    ("losses_row", "losses go to the row of the group's number in its process", "llmc/train/data_parallel.c",
     "model_step_losses(d->model), s->first + number, 1)", "model_step_losses(d->model), number, 1)"),
    ("norm_row", "the norm lacks the last process", "llmc/train/data_parallel.c",
     "for (int r = 1; r < d->share.processes && d->ok; r++)", "for (int r = 1; r < d->share.processes - 1 && d->ok; r++)"),
    ("weights_late", "a block does not wait for the weights of the others", "llmc/train/data_parallel.c",
     "    device_comm_progress();\n    await_unit(d, unit);\n}", "    device_comm_progress();\n    if (unit != 1) await_unit(d, unit);\n}"),
    ("piece_order", "what came is added in the order of ranks", "llmc/train/data_parallel.c",
     "        for (int width = 1; width < processes; width *= 2)\n            for (int i = 0; i + width < processes; i += 2 * width)\n                add_into(tensor_slice_elements(received, i * n, n),\n                         tensor_slice_elements(received, (i + width) * n, n));",
     "        for (int i = 1; i < processes; i++)\n            add_into(tensor_slice_elements(received, 0, n), tensor_slice_elements(received, i * n, n));"),
    ("state_begin", "a process takes the beginning of a saved state for its own part", "llmc/model/model_state.c",
     "(const char *)in + (begin - first));", "(const char *)in);"),
    ("reader_group", "from the second step on a process reads the windows of the first group", "llmc/data/dataloader.c",
     "            begin_group(o, &c, o->first_group);\n        }", "            begin_group(o, &c, 0);\n        }"),
    ("reader_end", "the position after a step is that of the process's own windows", "llmc/data/dataloader.c",
     "batch->end = c.step += o->step_windows;", "c.step += o->step_windows;"),
    ("mixture_round", "a mixture does not begin a new round", "llmc/data/mixture.c",
     "if (round != c->round || done < c->done) *c", "if (done < c->done) *c"),
    ("mixture_divisor", "weights are not divided by what they have in common", "llmc/data/mixture.c",
     "            *w /= divisor;", "            *w /= 1;"),
    ("d_ff", "a width of 4 C that is named is another model", "llmc/model/model_config.c",
     "    if (d_ff == model_default_d_ff(config)) config->d_ff = 0;\n", ""),
]


def prepare():
    """A copy of what make builds from, and of what it has built."""
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ("llmc", "test", "dev", "data", "scripts", "Makefile", "train_gpt2.cu"):
        subprocess.run(["cp", "-rup", ROOT / name, COPY], check=True)
    if not (COPY / "build/release").exists() and (ROOT / "build/release").exists():
        shutil.copytree(ROOT / "build/release", COPY / "build/release", copy_function=shutil.copy2)


def plant(mistake):
    _, _, file, old, new = mistake
    text = (ROOT / file).read_text()
    mutant = place.replaced(old, new, text)
    if mutant is None:
        sys.exit(f"same_bits.py: {mistake[0]}: {file} has its place {len(place.places(old, text))} times")
    (COPY / file).write_text(mutant)


def restore(mistake):
    (COPY / mistake[2]).write_text((ROOT / mistake[2]).read_text())


def make(*targets):
    built = subprocess.run(["make", "-s", "-j2", "-C", COPY, *targets], capture_output=True, text=True)
    if built.returncode:
        sys.exit(f"same_bits.py: it does not build:\n{built.stderr[-2000:]}")


def first_failure(program):
    """The name of the first test that fails; None: all pass."""
    process = subprocess.Popen([COPY / program], cwd=COPY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"})
    for line in process.stdout:
        if found := re.match(r"\[  FAILED  \] (\w+)", line):
            process.kill()
            process.wait()
            return found[1]
    return None if process.wait() == 0 else f"exit status {process.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", default="build/release/test/invariants/test_invariants")
    parser.add_argument("names", nargs="*", metavar="NAME")
    o = parser.parse_args()
    chosen = [m for m in MISTAKES if not o.names or m[0] in o.names]
    prepare()
    make(o.program)
    if not o.names and (failed := first_failure(o.program)):
        sys.exit(f"same_bits.py: without a mistake {failed} fails")
    missed = 0
    for mistake in chosen:
        plant(mistake)
        try:
            make(o.program)
            found = first_failure(o.program)
        finally:
            restore(mistake)
        missed += not found
        print(f"| {mistake[0]} | {mistake[1]} | {found or '-'} |", flush=True)
    print(f"found: {len(chosen) - missed} of {len(chosen)}")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
