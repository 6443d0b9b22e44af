"""The table of microkernels in the benchmark: what is measured beside what, and what is asked of it."""

from types import SimpleNamespace

import pytest

from einsum_engine.bench import figures, kernels, record, report


class FakeLoops:
    """Loops whose repetitions take what ``seconds`` says, one after the other."""

    def __init__(self, amount, seconds):
        self.amount, self._seconds = amount, iter(seconds)

    def repeats(self, seconds):
        return round(1000 * seconds)

    def seconds(self, repeats):
        return repeats * next(self._seconds)


def test_run_kernels_measures_every_row_beside_its_peak():
    rows = [("gemm_float32_2x8", "float32", (2, 8)), ("gemm_complex64_1x8", "complex64", (1, 8))]
    samples = kernels._SAMPLES
    # A machine that is twice as fast from the second half on, and one moment in which a kernel alone is held up.
    moments = [2.0] * (samples // 2) + [1.0] * (samples - samples // 2)
    asked = []

    def multiply_adds(dtype, threads):
        asked.append((dtype, threads))
        return FakeLoops(100, [moments[0], *moments])

    fake = SimpleNamespace(
        microkernel_rows=lambda: rows,
        microkernel=lambda name, threads: FakeLoops(80, [10.0, *moments[1:]]),
        multiply_adds=multiply_adds,
    )
    results = kernels.run_kernels(fake, 2)
    assert asked == [("float32", 2), ("float32", 2)]
    assert [(each.name, each.tile, each.rate, each.peak) for each in results] == [
        ("gemm_float32_2x8", (2, 8), 80, 100),
        ("gemm_complex64_1x8", (1, 8), 80, 100),
    ]
    assert [each.share_beside for each in results] == pytest.approx([0.8, 0.8])
    assert "80.0 % of the FMA peak,  80 % of that beside it" in report.kernel_line(results[0])
    assert len(report.kernel_summary_lines(results)) == 2


def test_kernels_are_held_against_what_is_asked():
    rows = [
        kernels.KernelResult(name=f"k{rate}", dtype=dtype, tile=(1, 1), rate=rate, peak=1.0, share_beside=beside)
        for dtype, rate, beside in (("float32", 0.9, 0.97), ("float32", 0.96, 0.94), ("int8", 0.1, 0.99))
    ]
    best, beside = figures.kernel_figures(rows, widest=True)
    assert best.value == 0.96 and best.met
    assert beside.value == 0.94 and not beside.met, "of the tile that is best, not the luckiest median"
    assert beside.name == "float32, share of the FMA peak in alternation, best tile"
    assert [each.met for each in figures.kernel_figures(rows, widest=False)] == [True, True], "90 % of a narrower peak will do"
    assert [record.kernel_from_json(each) for each in record.kernels_to_json(rows)] == rows
