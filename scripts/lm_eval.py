#!/usr/bin/env python3
"""Runs EleutherAI's lm-evaluation-harness on a checkpoint, which is a Hugging Face directory with its tokenizer.

  scripts/lm_eval.py runs/a/step_00001000                          HellaSwag and LAMBADA
  scripts/lm_eval.py runs/a --tasks gpt2 --limit 100               the newest checkpoint, more tasks, 100 examples each
  scripts/lm_eval.py runs/a --tasks mine --include-path my/tasks   a task of your own (YAML and data next to it)
  scripts/lm_eval.py --install                                     the harness into .venv-lm-eval (PyPI, some GB)

Tasks are the harness's names; short for several: lambada = lambada_openai, arc = arc_easy,arc_challenge, wikitext2 =
wikitext, gpt2 = hellaswag,lambada_openai,piqa,winogrande,arc_easy,arc_challenge,wikitext. The harness is the first of
$LM_EVAL_PYTHON, .venv-lm-eval/bin/python, this Python that has it. The results are written to lm_eval_STEP.json next to
the checkpoint, and as a line a task, event "evaluation", to the main.log of the run. Arguments after -- go to the
harness unchanged.
Data sets are fetched once from the Hugging Face Hub and stay in $HF_HOME.
Exit codes: 0 done, 1 the harness failed, 2 no such checkpoint, task or harness.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tool
from tool import EXIT_FAILED, Problem

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-lm-eval"
PACKAGE = "lm-eval[hf]"
TASKS = {
    "lambada": "lambada_openai",
    "arc": "arc_easy,arc_challenge",
    "wikitext2": "wikitext",
    "gpt2": "hellaswag,lambada_openai,piqa,winogrande,arc_easy,arc_challenge,wikitext",
}
# Messages of the libraries when the Hub cannot be reached.
OFFLINE = re.compile(r"ConnectionError|Max retries exceeded|Couldn't reach|LocalEntryNotFound|OfflineModeIsEnabled|"
                     r"Temporary failure in name resolution|Network is unreachable|ProxyError|ConnectTimeout")


def find_checkpoint(name):
    """The checkpoint itself, or the newest one of a run directory."""
    path = Path(name).resolve()
    if not path.is_dir():
        raise Problem(f"{name}: no such directory; expected a checkpoint (DIR/step_00001000) or the DIR of a run")
    if not (path / "config.json").is_file():
        steps = sorted(step for step in path.glob("step_*") if (step / "config.json").is_file())
        if not steps:
            raise Problem(f"{name}: neither a checkpoint (no config.json) nor a run with one (no step_*/config.json)")
        path = steps[-1]
    if not any(path.glob("model*.safetensors*")):
        raise Problem(f"{path}: no model.safetensors: not a complete checkpoint")
    return path


def check_tokenizer(path):
    if not any((path / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        raise Problem(f"{path}: no tokenizer.json; name the tokenizer of the model with --tokenizer DIR")
    return path


def version_of(python):
    """The harness's version in this Python, or None. Run outside scripts/, where this file would be imported instead."""
    look = "import importlib.metadata as m; print(m.version('lm_eval'))"
    try:
        result = subprocess.run([python, "-c", look], capture_output=True, text=True, cwd=tempfile.gettempdir())
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def find_harness():
    asked = os.environ.get("LM_EVAL_PYTHON")
    for python in [asked] if asked else [str(VENV / "bin" / "python"), sys.executable]:
        if version := version_of(python):
            return python, version
    if asked:
        raise Problem(f"LM_EVAL_PYTHON={asked}: lm-evaluation-harness is not installed there: "
                      f"{asked} -m pip install '{PACKAGE}'")
    raise Problem(f"lm-evaluation-harness is not installed; scripts/lm_eval.py --install puts it into {VENV.name} "
                  f"(with PyTorch, some GB), or: pip install '{PACKAGE}'")


def install():
    python = VENV / "bin" / "python"
    if version := version_of(str(python)):
        print(f"{VENV.name} has lm-evaluation-harness {version}")
        return
    print(f"making {VENV.name} with {PACKAGE} ...", flush=True)
    steps = [[sys.executable, "-m", "venv", str(VENV)],
             [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE]]
    for step in steps:
        if subprocess.run(step, stdin=subprocess.DEVNULL).returncode != 0:
            raise Problem(f"'{shlex.join(step)}' failed; without a network, install it where there is one and name it with "
                          "LM_EVAL_PYTHON=that/bin/python", EXIT_FAILED)
    print(f"{VENV.name} has lm-evaluation-harness {version_of(str(python))}")


def task_names(text):
    names = [name for part in text.split(",") if part for name in TASKS.get(part, part).split(",")]
    if not names:
        raise Problem(f"--tasks '{text}': no task, expected such as hellaswag,lambada")
    return ",".join(dict.fromkeys(names))


def harness_command(python, options, tokenizer, output):
    """Run in a folder where `checkpoint` and `tokenizer` are links: the harness splits its arguments at commas."""
    model = f"pretrained=checkpoint,dtype={options.dtype}" + (",tokenizer=tokenizer" if tokenizer else "")
    command = [python, "-m", "lm_eval", "--model", "hf", "--model_args", model, "--tasks", task_names(options.tasks),
               "--batch_size", str(options.batch_size), "--output_path", str(output)]
    for flag, value in (("--device", options.device), ("--limit", options.limit),
                        ("--num_fewshot", options.num_fewshot)):
        command += [flag, str(value)] if value is not None else []
    if options.include_path:
        folder = Path(options.include_path).resolve()
        if not folder.is_dir():
            raise Problem(f"--include-path {options.include_path}: no such directory")
        command += ["--include_path", str(folder)]
    return command + options.more


def run_harness(command, folder):
    """Shows the output of the harness as it comes; its last lines decide how a failure is reported."""
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false")
    said = b""
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as process:
        while piece := os.read(process.stdout.fileno(), 65536):
            said = (said + piece)[-100000:]
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    if process.returncode == 0:
        return
    text = said.decode(errors="replace")
    if unknown := re.search(r"Tasks? (?:was |were )?not found: ([\w-][\w, -]*)", text):
        raise Problem(f"the harness has no task {unknown.group(1).strip()}; '{command[0]} -m lm_eval ls tasks' lists "
                      "those it has")
    if OFFLINE.search(text):
        raise Problem("the data set of a task could not be fetched; without a network, run it once where there is one "
                      "and bring $HF_HOME along, or name a local task with --include-path", EXIT_FAILED)
    raise Problem(f"the harness ended with exit code {process.returncode}; its output is above", EXIT_FAILED)


def numbers(result):
    """{'acc,none': 0.3, 'acc_stderr,none': 'N/A', 'alias': ' - x'} -> {'acc': 0.3}; JSON has no nan."""
    return {key.split(",")[0]: value for key, value in result.items()
            if "," in key and isinstance(value, (int, float)) and value == value}


def write_results(checkpoint, harness, found):
    state = checkpoint / "trainer.json"
    step = json.loads(state.read_text()).get("step") if state.is_file() else None
    target = checkpoint.with_name(f"lm_eval_{checkpoint.name}.json")
    with tool.replacing(target, '"harness": "lm-eval ') as draft:
        facts = {"checkpoint": tool.shown(checkpoint), "step": step, "harness": harness}
        Path(draft).write_text(json.dumps({**facts, **found}, indent=1), encoding="utf-8")
    log = checkpoint.parent / "main.log"
    for task, result in found["results"].items():
        values = numbers(result)
        print(f"{task} | " + " | ".join(f"{key} {value:.4g}" for key, value in values.items()))
        line = {"event": "evaluation", "time": round(time.time(), 3), "step": step, "harness": harness, "task": task}
        if log.is_file() and tool.is_ours(log, '{"event":"run","time":'):
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps({**line, **values}) + "\n")
    print(f"written: {os.path.relpath(target)}")


def evaluate(options):
    checkpoint = find_checkpoint(options.checkpoint)
    tokenizer = Path(options.tokenizer).resolve() if options.tokenizer else None
    check_tokenizer(tokenizer or checkpoint)
    task_names(options.tasks)
    python, version = find_harness()
    with tempfile.TemporaryDirectory(prefix="lm_eval-") as folder:
        folder = Path(folder)
        (folder / "checkpoint").symlink_to(checkpoint)
        if tokenizer:
            (folder / "tokenizer").symlink_to(tokenizer)
        command = harness_command(python, options, tokenizer, folder / "results")
        print(shlex.join(command), flush=True)
        if options.dry_run:
            return
        run_harness(command, folder)
        written = sorted(folder.glob("results*/**/results*.json")) + sorted(folder.glob("results*.json"))
        if not written:
            raise Problem("the harness wrote no results", EXIT_FAILED)
        write_results(checkpoint, f"lm-eval {version}", json.loads(written[-1].read_text()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", help="a checkpoint, or a run (its newest checkpoint)")
    parser.add_argument("--tasks", default="hellaswag,lambada", help="default: %(default)s")
    parser.add_argument("--limit", type=float, help="examples of each task (below 1: a share); default: all")
    parser.add_argument("--num-fewshot", type=int, help="solved examples before each; default: the task's")
    parser.add_argument("--batch-size", default="8", help="or auto; default: %(default)s")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; default: the harness's choice")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16, float16; default: %(default)s")
    parser.add_argument("--tokenizer", help="a directory with tokenizer.json; default: the checkpoint")
    parser.add_argument("--include-path", help="a directory with tasks of your own")
    parser.add_argument("--install", action="store_true", help=f"install the harness into {VENV.name} and exit")
    parser.add_argument("--dry-run", action="store_true", help="check everything, show the command and exit")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    options.more = sys.argv[split + 1:]
    if options.install:
        install()
    elif options.checkpoint:
        evaluate(options)
    else:
        parser.error("which checkpoint?")


if __name__ == "__main__":
    tool.run(main)
