"""What the arithmetic of a fused kernel takes, and how many vectors it is worth doing at once."""

from __future__ import annotations

from ..fused_structure import COMPLEX, FLOATS, LONG, PARTS, Structure, cost_of
from ..isa import ISA
from .storage import STORAGES

HEAVY = 100  # the cost from which one copy of the code does for rows of all lengths
_CAST = 2  # the cost of one
_COMPLEX = 3  # times as much for a function of complex numbers
_SINGLE = {"pow", "floordiv", "mod", "fmod"}  # more values at once than registers, or loops
_TWO = 24  # the cost up to which two vectors are one turn of a loop


def cost(structure: Structure) -> int:
    """About how many simple instructions a vector takes."""
    return sum(_cost(node.op, structure.dtype(node.args[0])) for node in structure.nodes if node.args)


def _cost(op: str, dtype: str) -> int:
    price = _CAST if op == "cast" else cost_of(op)
    return price * _COMPLEX if price >= LONG and dtype in COMPLEX else price


def width(structure: Structure, isa: ISA) -> int:
    """Elements of a vector: those of the widest dtype fill a register, real and imaginary parts apart."""
    dtypes = {*structure.inputs, *(node.dtype for node in structure.nodes)}
    return isa.vector_bits // max(STORAGES[PARTS.get(name, name)].bits for name in dtypes)


def vectors_at_once(structure: Structure, isa: ISA) -> int:
    """Of which each instruction is for all in turn, of floats of one size: two of long functions, and those that have one
    test for all their quotients (`quotient`)."""
    if goes_in_pairs(structure):
        return 2
    ops = {node.op for node in structure.nodes}
    if "quotient" not in ops or ops & _SINGLE or not isa.fma or not _of_one_size(structure):
        return 1
    if not _are_given(structure):
        return 1
    several = unroll(cost(structure))
    return several if structure.reduces else max(2, several)  # there are results of the lanes that are unrolled


def _are_given(structure: Structure) -> bool:
    """Whether inverses are inputs, which rows look at before they begin, or numbers, which planners have looked at."""
    first = len(structure.inputs)
    inverses = [node.args[2] for node in structure.nodes if node.op == "quotient"]
    return all(value < first or structure.nodes[value - first].op == "const" for value in inverses)


def unroll(price: int) -> int:
    """Vectors in a turn of a loop."""
    return 4 if price <= 8 else 2 if price <= _TWO else 1


def _of_one_size(structure: Structure) -> bool:
    """Whether all are floats of one size, or bool between them."""
    dtypes = {*structure.inputs, *(node.dtype for node in structure.nodes)} - {"bool"}
    return len(dtypes) == 1 and dtypes <= {*FLOATS}


def goes_in_pairs(structure: Structure) -> bool:
    """Floats of one size with long functions.

    What a function takes is the way through it, one instruction after the other. A processor looks so far ahead that it
    has begun one or two of the vectors behind; the instructions of two in turn leave it as much to do again. Where there
    are 16 registers, some wait in memory, which costs less."""
    most = _TWO + 1 if structure.reduces else HEAVY  # there are results of the lanes that are unrolled
    long = LONG <= cost(structure) < most and not _SINGLE & {node.op for node in structure.nodes}
    return long and _of_one_size(structure)
