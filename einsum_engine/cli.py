"""The console script `einsum-engine`: bench, explain, warmup, info.

Anything slow is imported by the command that needs it. Errors are one line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn, Sequence

from .errors import EngineError, EngineValueError
from .version import __version__

_PEAK_DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64")
_PROFILED_CALLS = 10
_FOOTPRINTS = (1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1: the bench found something wrong, 2: bad input)."""
    try:
        arguments = _parser().parse_args(argv)
        return int(arguments.run(arguments))
    except BrokenPipeError:  # the reader of our output has gone
        return 0
    except (EngineError, OSError, ImportError, MemoryError) as error:
        print(f"einsum-engine: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("einsum-engine: interrupted", file=sys.stderr)
        return 130


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Parser(argparse.ArgumentParser):
    """Reports a bad command line like every other error: in one line."""

    def error(self, message: str) -> NoReturn:
        raise EngineValueError(f"{message} (see '{self.prog} --help')")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="einsum-engine", description="Contractions compiled once and called many times.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_bench(commands.add_parser("bench", help="compare with other libraries", description=_BENCH))
    _add_explain(commands.add_parser("explain", help="the plan of an expression, step by step", description=_EXPLAIN))
    warmup = commands.add_parser("warmup", help="compile all kernels into the cache on disk", description=_WARMUP)
    warmup.set_defaults(run=_warmup)
    info = commands.add_parser("info", help="what this machine offers and how the engine is set", description=_INFO)
    info.add_argument("--threads", type=_count, help="threads for peak and bandwidth (default: as a call takes)")
    info.set_defaults(run=_info)
    return parser


_BENCH = """Times contractions against NumPy, opt_einsum, cotengra and, where installed, PyTorch, JAX and TBLIS, checks
every result, and holds the times against the limit of the machine. The exit status is 1 if a result is wrong or the run
is void."""
_EXPLAIN = """Prints order, layouts, kernels, flops, bytes and predicted time of a contraction, without any data; with
--profile also the measured time of each step in kernel, packing and unpacking."""
_WARMUP = """Compiles every kernel that einsums need on this machine, so that no later one compiles anything. Jitted
functions with element-wise work of their own compile that once, at their first call."""
_INFO = "Instruction set, threads, measured peak and bandwidth, caches, versions, environment variables."


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


_count.__name__ = "count"  # argparse names the type in its messages


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(",") if size.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of sizes such as 2,3") from error


# --- bench -----------------------------------------------------------------------------------------------------


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "families",
        nargs="*",
        metavar="FAMILY",
        help="thesis, tccg, permutations, gemm, moments, batches, sums, gates, kernels, calls, scaling, views, whole, chains,"
        " reductions, or parts such as tccg_f32 (default: all)",
    )
    parser.add_argument("--cases", metavar="FILE", action="append", default=[], help="JSON file of further cases")
    parser.add_argument("--only", metavar="REGEX", help="only cases that match, in 'family name dtype'")
    parser.add_argument("--peers", nargs="*", metavar="PEER", help="libraries to compare with (default: all installed)")
    parser.add_argument("--threads", type=_count, help="threads for every library (default: the CPUs available)")
    parser.add_argument("--layouts", action="store_true", help="compare layouts of intermediates instead: ours alone")
    parser.add_argument("--large", action="store_true", help="large batched products of the thesis at 512, not 256")
    parser.add_argument("--quick", action="store_true", help="shorter samples, no fresh processes: only a look")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write what is measured to this file after each case")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that file: same commit, settings")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw ratios (and profiles) to a picture")
    parser.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from .bench import session

    request = session.Request(
        families=tuple(arguments.families),
        files=tuple(arguments.cases),
        only=arguments.only,
        peers=None if arguments.peers is None else tuple(name for each in arguments.peers for name in each.split(",")),
        threads=arguments.threads,
        large=arguments.large,
        quick=arguments.quick,
        record=arguments.json,
        resume=arguments.resume,
        layouts=arguments.layouts,
    )
    for name in ("peers", "plot"):
        if arguments.layouts and getattr(arguments, name) is not None:
            raise EngineValueError(f"--layouts compares ours with ours: there is nothing for --{name}")
    for target in (arguments.json, arguments.plot):
        if target is not None and not target.absolute().parent.is_dir():
            raise EngineValueError(f"{target}: its folder does not exist")
    if arguments.plot:
        from .bench import plot

        plot.check(arguments.plot)
    data, wrong = session.bench(request)
    if arguments.plot:
        plot.plot_run(data, arguments.plot)
    return 1 if wrong else 0


# --- explain ---------------------------------------------------------------------------------------------------


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expr", metavar="EXPR", help="an einsum expression, such as 'ij,jk->ik'")
    parser.add_argument("--shapes", nargs="+", type=_shape, required=True, metavar="SHAPE", help="such as 2,3 3,4")
    parser.add_argument("--dtype", nargs="+", default=["float64"], help="one for all operands, or one each")
    parser.add_argument("--optimize", default="auto", metavar="NAME", help="optimiser of the contraction order")
    parser.add_argument("--threads", type=_count, help="threads of a call")
    parser.add_argument("--profile", action="store_true", help="run it on random operands and show measured times")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the contraction tree to a picture")
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    from . import compile as make

    dtypes = arguments.dtype * len(arguments.shapes) if len(arguments.dtype) == 1 else arguments.dtype
    if len(dtypes) != len(arguments.shapes):
        raise EngineValueError(f"{len(dtypes)} dtypes for {len(arguments.shapes)} shapes: give one, or one each")
    compiled = make(
        arguments.expr,
        *arguments.shapes,
        dtypes=dtypes,
        optimize=arguments.optimize,
        threads=arguments.threads,
        profile=arguments.profile,
    )
    if arguments.profile:
        from .bench.cases import Case, operands

        each = [
            Case(family="explain", name="operand", expr=arguments.expr, shapes=(shape,), dtype=dtype)
            for shape, dtype in zip(arguments.shapes, dtypes)
        ]
        arrays = [array for case in each for array in operands(case)]
        for _ in range(_PROFILED_CALLS):
            compiled(*arrays)
    print(compiled.explain())
    if arguments.plot:
        from .bench import plot, steps

        expression = steps.parse(arguments.expr, arguments.shapes)
        plot.plot_tree(steps.walk(expression, compiled.plan.path), expression.terms, arguments.plot)
        print(f"contraction tree drawn to {arguments.plot}")
    return 0


# --- warmup and info -------------------------------------------------------------------------------------------


def _warmup(arguments: argparse.Namespace) -> int:
    from .kernels import warmup

    compiled = warmup.warmup(progress=True)
    print(f"{compiled} kernels compiled" if compiled else "all kernels were there")
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from . import config
    from .bench import machine

    facts = machine.describe()
    threads = arguments.threads or config.threads()
    rows = [
        ("cpu", facts["cpu"]),
        ("instruction set", facts["isa"]),
        ("cores available", facts["cores"]),
        ("threads of a call", threads),
        ("caches", ", ".join(f"L{c['level']} {_bytes(c['bytes'])}" for c in facts["caches"]) or "unknown"),
        ("kernel cache", config.cache_dir()),
        ("commit", facts["commit"] or "no checkout"),
        ("python", facts["python"]),
        *facts["versions"].items(),
    ]
    for name, value in rows:
        print(f"{name:<26} {value}")
    print()
    _print_cost_model()
    print()
    _print_measured(threads)
    print()
    print(config.table())
    return 0


def _print_cost_model() -> None:
    """The constants that plans are made with and times predicted by, of one thread and of the meeting of two."""
    from . import measured
    from .kernels.isa import active_isa

    machine = measured.machine(active_isa())
    rows = {f"peak {dtype}": f"{machine.peak[dtype] / 1e9:.1f} Gflop/s" for dtype in ("float32", "float64")}
    rows |= {
        "bandwidth, cache": f"{machine.cache_bandwidth / 1e9:.1f} GB/s",
        "bandwidth, memory": f"{machine.memory_bandwidth / 1e9:.1f} GB/s",
        "a step, a call": f"{machine.step_seconds * 1e9:.0f} ns, {machine.call_seconds * 1e9:.0f} ns",
        "a meeting of two threads": f"{machine.meeting_seconds * 1e9:.0f} ns",
    }
    print(f"{'cost model, one thread':<26} {'measured at first use' if machine.measured else 'a typical core'}")
    for name, value in rows.items():
        print(f"{f'  {name}':<26} {value}")


def _print_measured(threads: int) -> None:
    from tqdm import tqdm

    from .kernels import calibrate

    lines = []
    with tqdm(total=len(_PEAK_DTYPES) + len(_FOOTPRINTS), desc="measuring", leave=False, disable=None) as bar:
        for dtype in _PEAK_DTYPES:
            lines.append(f"{f'peak {dtype}':<26} {calibrate.fma_peak(dtype, threads) / 1e9:.1f} Gflop/s")
            bar.update()
        for nbytes in _FOOTPRINTS:
            rate = calibrate.copy_bandwidth(nbytes, threads) / 1e9
            lines.append(f"{f'copy of {_bytes(nbytes)}':<26} {rate:.1f} GB/s read and written")
            bar.update()
    print("\n".join(lines))


def _bytes(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.4g} GiB"


if __name__ == "__main__":
    sys.exit(main())
