"""What quick functions of `einsum` are remembered by: subscripts and options as they were given, before any check.

Equal keys must mean equal calls, bad ones included: a call with ``conj=(0.0,)`` is an error, also after one with
``conj=(0,)``, and 0.0 is no -0.0. So each option stands beside its type, and where there are lists and numbers with a
point, options are spelled by `marshal`, which tells types apart at any depth and takes a tenth of a microsecond (format 2:
later ones have references, which depend on how many hold an object). It spells what has a buffer as bytes; a key with
such values in it is looked up, but never remembered (`is_exact`).
"""

from __future__ import annotations

from marshal import dumps
from typing import Any, Hashable, Mapping, Sequence

import numpy as np

from .options import Options
from .planners.order import registry_version

_LISTS = frozenset((list, tuple))
_EXACT = frozenset((int, bool, str, float, complex, type(None), type(Ellipsis)))
_KNOWN = _LISTS | _EXACT
# Numbers of NumPy that may be factors: what is equal may still differ.
_NUMBERS = frozenset((np.float64, np.float32, np.complex128, np.complex64))
_FACTORS = _EXACT | _NUMBERS
_SPELLED = _LISTS | _NUMBERS | {float, complex}


def with_options(subject: Hashable, options: Mapping[str, Any]) -> Hashable:
    """``subject`` with the options of a call; it may have parts that are not hashable. ValueError where there is none."""
    for value in options.values():
        if value.__class__ in _SPELLED:
            return subject, registry_version(), *_spelled(options)
    return (subject, registry_version(), *options.items(), *map(type, options.values()))


def _spelled(options: Mapping[str, Any]) -> Sequence[Hashable]:
    """Options of which some are spelled; the others stand beside their types."""
    types = tuple(map(type, options.values()))
    if _KNOWN.issuperset(types):
        return (dumps(options, 2),)
    return *[dumps(each, 2) if type(each) in _SPELLED else each for each in options.values()], *options, *types


def alternating(first: Any, rest: Sequence[Any]) -> tuple[Hashable, Sequence[Any]]:
    """What stands for the lists of a call in which operands alternate with them, and the operands.

    None for those that are not looked up; ValueError where lists cannot be spelled.
    """
    if type(first) is not np.ndarray or not rest or type(rest[0]) not in _LISTS:
        return None, rest
    if len(rest) % 2:
        return dumps((rest[::2], ()), 2), (first, *rest[1::2])
    return dumps((rest[::2], rest[-1:]), 2), (first, *rest[1:-1:2])


def remembered(subscripts: Any, operands: Sequence[Any], given: Mapping[str, Any], options: Options) -> Hashable:
    """The key that a quick function for such calls is remembered by; None where there can be none.

    An optimiser object may find another order the next time: it is asked at every call.
    """
    if not options.native or not isinstance(options.optimize, (str, bool, tuple)):
        return None
    exact = all([type(value) not in _LISTS or is_exact(value) for value in given.values()])
    if not exact or not {type(options.alpha), type(options.beta)} <= _FACTORS:
        return None
    try:
        key: Hashable = subscripts
        if type(subscripts) is not str:
            key, _ = alternating(subscripts, operands)
            if key is None or not is_exact([*operands[::2], operands[-1] if len(operands) % 2 == 0 else ()]):
                return None
        key = with_options(key, given) if given else key
        hash(key)
    except (TypeError, ValueError):
        # An array as an option, for instance.
        return None
    return key


def is_exact(value: Any) -> bool:
    """Whether how `marshal` spells a value stands for it alone.

    >>> is_exact([(0, 1), "auto"]), is_exact([np.int64(0)])
    (True, False)
    """
    return type(value) in _EXACT or type(value) in _LISTS and all(map(is_exact, value))
