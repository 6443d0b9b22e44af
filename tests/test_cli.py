"""The console script: help, output, errors in one line, exit status."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import einsum_engine as engine
from einsum_engine import cli
from einsum_engine.bench import session
from einsum_engine.errors import EngineError


def error_of(capsys, *argv):
    """The one line that a failing command prints."""
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err.strip()


@pytest.mark.parametrize("command", [[], ["bench"], ["explain"], ["warmup"], ["info"]], ids=str)
def test_help_names_what_there_is(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    assert stopped.value.code == 0
    words = {
        "": ("bench", "explain", "warmup", "info"),
        "bench": ("FAMILY", "--cases", "--peers", "--only", "--threads", "--json", "--resume", "--plot", "--large"),
        "explain": ("EXPR", "--shapes", "--dtype", "--optimize", "--profile", "--plot"),
        "info": ("--threads",),
        "warmup": ("Compiles every kernel",),
    }["".join(command)]
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []


def test_the_version_is_that_of_the_module(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"einsum-engine {engine.__version__}\n"


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["bench", "nothing"], "unknown family 'nothing'; families: thesis, tccg, permutations, gemm, moments, batches, sums"),
        (["bench", "tccg", "--threads", "0"], "argument --threads: 0 is not at least 1"),
        (["bench", "tccg", "--threads", "two"], "argument --threads: invalid count value: 'two'"),
        (["bench", "tccg", "--only", "nothing"], "no case matches 'nothing'"),
        (["bench", "tccg", "--only", "(tccg"], "'(tccg' is no regular expression"),
        (["bench", "tccg", "--resume"], "a run is resumed from the JSON file that it left: name it"),
        (["bench", "tccg", "--peers", "matlab"], "unknown peer 'matlab'; peers: numpy, numpy-optimize"),
        (["bench", "--cases", "no_such_file.json"], "No such file or directory: 'no_such_file.json'"),
        (["bench", "tccg", "--json", "no_such_folder/x.json"], "no_such_folder/x.json: its folder does not exist"),
        (["explain", "ij,jk->ik"], "the following arguments are required: --shapes"),
        (["explain", "ij->i", "--shapes", "2,x"], "argument --shapes: '2,x' is no list of sizes such as 2,3"),
        (
            ["explain", "ij,jk->ik", "--shapes", "2,3", "3,4", "--dtype", "int8", "int8", "int8"],
            "3 dtypes for 2 shapes: give one, or one each",
        ),
        (["explain", "i->", "--shapes", str(1 << 50), "--profile"], "Unable to allocate 8.00 PiB"),
        (["info", "--threads", "-1"], "argument --threads: -1 is not at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_status_2(capsys, argv, message):
    line = error_of(capsys, *argv)
    assert line.startswith("einsum-engine: error: ") and message in line


def test_bad_case_file_is_one_line(capsys, tmp_path):
    path = tmp_path / "cases.json"
    path.write_text("[{]")
    assert "cases.json: not JSON" in error_of(capsys, "bench", "--cases", str(path))


def test_explain_prints_the_plan(capsys):
    assert cli.main(["explain", "ij,jk,kl->il", "--shapes", "20,30", "30,40", "40,5", "--dtype", "float32"]) == 0
    printed = capsys.readouterr().out
    assert "ij,jk,kl->il" in printed and "flops" in printed


@pytest.mark.parametrize("dtypes", [["float32"], ["float64", "complex64", "int16"]], ids=len)
def test_explain_measures(capsys, dtypes):
    shapes = ["20,30", "30,40", "40,5"]
    assert cli.main(["explain", "ij,jk,kl->il", "--shapes", *shapes, "--dtype", *dtypes, "--profile"]) == 0
    printed = capsys.readouterr().out
    assert "predicted  measured" in printed and f"mean of {cli._PROFILED_CALLS} calls: kernel" in printed


def test_explain_says_what_does_not_fit(capsys):
    assert "'j'" in error_of(capsys, "explain", "ij,jk->ik", "--shapes", "2,3", "4,5")
    message = error_of(capsys, "explain", "ij,jk->ik", "--shapes", "2,3", "3,5", "--optimize", "clairvoyant")
    assert "clairvoyant" in message and "greedy" in message


def test_explain_draws_the_tree(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "tree.svg"
    shapes = ["20,30", "30,40", "40,5"]
    assert cli.main(["explain", "ij,jk,kl->il", "--shapes", *shapes, "--plot", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    assert "flops" in target.read_text()


def test_info_tells_machine_and_settings(capsys, monkeypatch):
    from einsum_engine import config
    from einsum_engine.kernels import calibrate

    monkeypatch.setattr(calibrate, "fma_peak", lambda dtype, threads: 123e9 * threads)
    monkeypatch.setattr(calibrate, "copy_bandwidth", lambda nbytes, threads: 45e9)
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "2")
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"cost model, one thread +(measured|a typical)", printed)
    assert re.search(r"  bandwidth, memory +[0-9.]+ GB/s\n  a step, a call +[0-9]+ ns, [0-9]+ ns\n", printed)
    assert re.search(r"\n  a meeting of two threads +[0-9]+ ns\n", printed)
    assert "peak float32" in printed and "246.0 Gflop/s" in printed and "copy of 16 MiB" in printed
    assert all(name in printed for name in config.OPTIONS)
    assert re.search(r"EINSUM_ENGINE_NUM_THREADS +2 ", printed)


def test_bench_passes_its_arguments_on(monkeypatch, tmp_path):
    seen = []
    data = {"cases": [], "machine": {}, "threads": 2}
    monkeypatch.setattr(session, "bench", lambda request: seen.append(request) or (data, 0))
    argv = ["bench", "tccg", "thesis", "--peers", "numpy,jax", "torch", "--threads", "2", "--large"]
    assert cli.main([*argv, "--only", "abc$", "--json", str(tmp_path / "out.json"), "--resume"]) == 0
    (request,) = seen
    assert (request.only, request.record, request.resume) == ("abc$", tmp_path / "out.json", True)
    assert (request.families, request.peers) == (("tccg", "thesis"), ("numpy", "jax", "torch"))
    assert (request.threads, request.large, request.quick) == (2, True, False)


def test_bench_status_tells_of_wrong_results(monkeypatch):
    monkeypatch.setattr(session, "bench", lambda request: ({}, 3))
    assert cli.main(["bench"]) == 1


@pytest.mark.parametrize(
    "error, status", [(EngineError("two\nlines"), 2), (KeyboardInterrupt(), 130), (BrokenPipeError(), 0)]
)
def test_what_ends_a_command(monkeypatch, capsys, error, status):
    def stop(request):
        raise error

    monkeypatch.setattr(session, "bench", stop)
    assert cli.main(["bench"]) == status
    assert capsys.readouterr().err.count("\n") == (status != 0)


@pytest.mark.parametrize("compiled, message", [(7, "7 kernels compiled"), (0, "all kernels were there")])
def test_warmup_shows_a_progress_bar(monkeypatch, capsys, compiled, message):
    seen = []
    fake = SimpleNamespace(warmup=lambda progress: seen.append(progress) or compiled)
    monkeypatch.setitem(sys.modules, "einsum_engine.kernels.warmup", fake)
    import einsum_engine.kernels

    monkeypatch.setattr(einsum_engine.kernels, "warmup", fake, raising=False)
    assert cli.main(["warmup"]) == 0 and seen == [True]
    assert capsys.readouterr().out.strip() == message


def test_the_console_script_starts_quickly_with_nothing_slow():
    script = (
        "import sys; from einsum_engine import cli\n"
        "assert cli.main(['bench', 'nothing']) == 2\n"
        "print({'numba', 'llvmlite', 'torch', 'jax', 'matplotlib', 'cotengra'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"
