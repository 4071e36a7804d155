"""dev/bench/predict.py: its ops are those of the trainer, the page shows what it computes, and files that hold no
measurements are refused in one line."""
import json
import re
import sys
from pathlib import Path

import pytest
import runs
from runs import ROOT, TRAINER, script
from tiny_run import bench_ops, write_shard

SCRIPT = ROOT / "dev" / "bench" / "predict.py"
sys.path.insert(0, str(SCRIPT.parent))
import predict  # noqa: E402

MODEL, B, T = "L=3,C=64,NH=2,V=257,T=48", 4, 32


def run(*options, expect=0):
    return runs.call(sys.executable, SCRIPT, *options, expect=expect)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """What the trainer measures of one shape, by dtype."""
    found, folder = {}, tmp_path_factory.mktemp("profiles")
    write_shard(folder / "train_0.bin", 2000, 1)
    for dtype in ("fp32", "bf16"):
        runs.call(TRAINER, "-e", MODEL, "-b", B, "-t", T, "-i", folder / "train_*.bin", "-v", 0, "-s", 0, "--profile", 1,
                  "--dtype", dtype, "-o", folder / dtype, expect=0)
        found[dtype] = json.loads((folder / dtype / "profile.json").read_text())
    return found


@pytest.fixture(scope="module")
def plan():
    return predict.plan_of(TRAINER, "H200", MODEL, B, T)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_ops_calls_flops_and_bytes_are_those_of_a_profile(profiles, dtype):
    (device,) = predict.plan_of(TRAINER, "H200", MODEL, B, T, options=("--dtype", dtype))["devices"]
    ours = {(row.op, row.tensor): (row.calls, row.flops, row.bytes) for row in predict.rows_of(device)}
    theirs = {(row["op"], row["tensor"]): (row["calls"], row["flops"], row["bytes"]) for row in profiles[dtype]["ops"]}
    control = ("step_control_update", "sumsq")  # its bytes are those of a structure of the device
    assert ours.pop(control)[:2] == theirs.pop(control)[:2]
    assert ours == theirs


def test_the_table_of_the_page_is_not_stale():
    run("--check")


def test_a_stale_table_is_noticed(tmp_path, monkeypatch, capsys):
    page = tmp_path / "gpu.md"
    monkeypatch.setattr(predict, "DOC", page)
    monkeypatch.setattr(sys, "argv", ["predict.py", "--check"])
    text = predict.tools.ROOT.joinpath("dev/bench/README.md").read_text()
    for wrong in (text.replace("| `attention_backward` | 12 |", "| `attention_backward` | 13 |"), "no table"):
        page.write_text(wrong)
        assert wrong != text and predict.main() == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert str(page) in line


def test_the_parts_make_the_time(plan):
    """A step takes what its ops and the gaps between them take; what has one rate errs together, different rates do not."""
    predicted = predict.Predicted(plan, plan["devices"][0])
    parts = [part for row in predicted.rows for part in row.parts] + [("launch", predicted.gaps)]
    likely, worst, best = predict.ranges(parts)
    assert predicted.ms[0] == pytest.approx(likely)
    for which in (1, 2):
        errors = [sum(ms[which] - ms[0] for rate, ms in parts if rate == name) for name in {rate for rate, _ in parts}]
        assert abs(predicted.ms[which] - likely) == pytest.approx(sum(error**2 for error in errors) ** 0.5)
    assert best < predicted.ms[2] < likely < predicted.ms[1] < worst
    tokens = [1e3 * B * T / ms for ms in predicted.ms]
    assert predicted.tokens_per_second() == pytest.approx(tokens)


def test_a_part_is_limited_by_the_peak_or_the_bandwidth(plan):
    rows = {(row.op, row.tensor): row for row in predict.rows_of(plan["devices"][0])}
    (_, qkv), (_, fc) = (rows["matmul_backward_input", weight].parts[0] for weight in ("qkvw", "fcw"))
    flops = 3 * 2 * B * T * 64 * 192
    assert 0.7 < flops / (qkv[0] * 1e-3) / 989.4e12 < 0.8  # of an H200's peak
    assert fc[0] / qkv[0] == pytest.approx(4 / 3 * 1.06 / 1.075)  # more FLOP, at a rate of its own
    fill = rows["tensor_fill", "sequence_losses"]
    assert 0.8 < fill.bytes / (fill.parts[0][1][0] * 1e-3) / 4.8e12 < 0.9


def test_the_trainer_predicts_what_its_options_choose(plan):
    own = predict.plan_of(TRAINER, "H200", MODEL, B, T, options=("--attention", "own", "-ge", 0))["devices"][0]
    rates = {rate for row in predict.rows_of(own) for rate, _ in row.parts}
    assert "our attention backward" in rates and "attention backward" not in rates and "gelu' in the epilogue" not in rates
    assert own["predicted"]["step_seconds"][0] > plan["devices"][0]["predicted"]["step_seconds"][0]  # and a kernel more


@pytest.mark.parametrize("options", [("--dtype", "fp32"), ("--fp8", 1), ("--offload", "optimizer")])
def test_where_no_rates_are_assumed_nothing_is_predicted(options):
    plan = predict.plan_of(TRAINER, "H200", "L=3,C=64,NH=2,V=257,T=48", B, T, options=options)
    with pytest.raises(predict.Refused, match="no rates are assumed for H200"):
        predict.Predicted(plan, plan["devices"][0])


def test_recomputation_and_several_micro_steps_cost_more(plan):
    def seconds(*options):
        return predict.plan_of(TRAINER, "H200", MODEL, B, T, options=options)["devices"][0]["predicted"]["step_seconds"][0]

    one = plan["devices"][0]["predicted"]["step_seconds"][0]
    assert one < seconds("-r", 1) < seconds("-r", 2) < seconds("-r", 3)
    assert one < seconds("-d", 2 * B * T) < 2 * one  # the update is made once
    assert one < seconds("--grad-dtype", "compute")


@pytest.mark.parametrize("name, gpu", [("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
                                       ("NVIDIA A100-SXM4-80GB", "A100 80GB"), ("NVIDIA A100 80GB PCIe", "A100 80GB"),
                                       ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("NVIDIA H100 PCIe", None),
                                       ("Tesla T4", None), ("", None)])  # fmt: skip
def test_the_gpu_is_told_by_the_name_that_its_driver_gives(name, gpu):
    assert predict.gpu_named(name) == gpu
    if gpu:
        assert predict.plan_of(TRAINER, gpu, MODEL, B, T)["devices"][0]["predicted"]["step_seconds"]


def shape(*options):
    return run("-e", MODEL, "-b", B, "-t", T, *options)


def test_a_profile_is_laid_beside_row_by_row(profiles, plan, tmp_path):
    profile = dict(profiles["bf16"], median_plain_step_ms=5000.0)
    step = predict.Predicted(plan, plan["devices"][0])
    expected = {name: predict.of_rows(rows)[0] for name, rows in predict.grouped(step.rows)}
    for op in profile["ops"]:
        op["ms"] = 1000.0 if (op["op"], op["tensor"]) == ("attention_forward", "qkv") else 1.0
    profile["ops"].append({"op": "new_op", "tensor": "x\x1b[31m", "ms": 7.0, "flops": 0})
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile))
    cells = [line.strip("| ").split(" | ") for line in shape("--measured", file).stdout.splitlines()]
    rows = {row[0]: row[1:] for row in cells}
    assert rows["attention_forward"][2:] == ["1000.000", f"{1000 / expected['attention_forward']:.2f}"]
    assert rows["layernorm_backward"][2] == "3.000"  # three weights' rows
    assert rows["new_op x?[31m"] == ["-", "-", "7.000", "-"]
    assert rows["step"][2] == "5000.000"
    assert rows["between ops"][2] == f"{5000 - 1000 - (len(profile['ops']) - 2) - 7:.3f}"
    assert set(expected) <= set(rows) and len(cells) == 2 + len(expected) + 3


def test_what_bench_ops_prints_is_laid_beside_as_well(tmp_path):
    program = bench_ops()
    if not program:
        pytest.skip("bench_ops is not built")
    output = runs.call(program, B, T, 64, 2, 257, "bf16", "own", 0.001, expect=0)
    file = tmp_path / "ops"
    file.write_text(output.stdout + '{"op": "broken o')
    cells = [line.strip("| ").split(" | ") for line in shape("--measured", file).stdout.splitlines()[2:]]
    # Of ops that no step of GPT-2 makes there is no prediction.
    others = re.compile("(GELU backward|(RMSNorm|RoPE|QK-norm and RoPE|SwiGLU|ReLU\\^2) (for|back)ward|200 launches)$")
    unpredicted = [row[0] for row in cells if row[1] == "-"]
    assert "200 launches" in unpredicted and all(others.match(name) for name in unpredicted), unpredicted
    assert len(cells) == len(output.stdout.splitlines()) - 2  # without the first and the last


OP = '{"op": "attention_forward", "tensor": "qkv", "ms": 1, "flops": 0}'
HOSTILE = {
    "nothing": "", "garbage": "\x00\udcff\x1b[31m{}", "a number": "7", "no ops": "{}", "ops of another kind": '{"ops": {"a": 1}}',
    "an op that is none": '{"ops": [3]}', "an op without a name": '{"ops": [{"op": 3, "tensor": ""}]}',
    "no step": f'{{"ops": [{OP.replace("1", "NaN")}]}}', "a time that is none": f'{{"ops": [{OP}], "median_plain_step_ms": "x"}}',
    "too large a time": f'{{"ops": [{OP.replace("1", "1e999")}]}}', "a negative time": f'{{"ops": [{OP.replace("1", "-1")}]}}',
    "an integer of many digits": f'{{"ops": [{OP.replace("1", "9" * 5000)}]}}',
    "another shape": f'{{"ops": [{OP.replace("1", "1").replace(": 0", ": 12345")}], "median_plain_step_ms": 1}}',
    "nested": "[" * 100000, "a line nested": '{"op": ' + "[" * 100000 + "}",
    "lines of another kind": '{"op": 3}\n{"op": null}', "a line without a time": '{"op": "qkv forward"}',
    "a line of another shape": '{"op": "qkv forward", "seconds": 1, "flops": 3}',
}  # fmt: skip


def test_what_is_no_measurement_is_refused_in_a_line(tmp_path, monkeypatch, capsys, plan):
    monkeypatch.setattr(predict, "plan_of", lambda *_: plan)
    files = {name: tmp_path / str(i) for i, name in enumerate(HOSTILE)}
    for name, file in files.items():
        file.write_bytes(HOSTILE[name].encode(errors="surrogateescape"))
    for name, file in {**files, "missing": tmp_path / "none", "folder": tmp_path, "endless": Path("/dev/zero")}.items():
        monkeypatch.setattr(sys, "argv", ["predict.py", "--measured", str(file)])
        assert predict.main() == 1, name
        (line,) = capsys.readouterr().err.splitlines()
        assert str(file) in line and line.isprintable() and len(line) < 300, name


def test_what_cannot_be_predicted_is_said_in_a_line(tmp_path):
    trainer = script(tmp_path / "trainer", "echo '{}'")
    for options, words in ((["--gpu", "T4"], "no rates are assumed for T4 in fp16"),
                           (["--trainer", trainer], "--plan json printed no plan"),
                           (["--trainer", tmp_path / "none"], "no plan to predict from"),
                           (["-e", "d13x"], "d13x")):  # fmt: skip
        result = run(*options, expect=1)
        (line,) = result.stderr.splitlines()
        assert words in line and result.stdout == ""


def test_a_trainer_that_hangs_is_given_up(tmp_path):
    with pytest.raises(predict.Refused, match="ran out of time"):
        predict.plan_of(script(tmp_path / "trainer", "sleep 1000"), "H200", MODEL, B, T, seconds=0.2)
