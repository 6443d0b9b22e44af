"""Networks for tests of contraction orders, and what an order costs by an independent count."""

import itertools
import math
import random

from hypothesis import strategies as st

# ---- an independent count ---------------------------------------------------------------------------------------


def volume(indices, sizes):
    return math.prod(sizes[index] for index in indices)


def pair_flops(a, b, result, sizes):
    """Additions and multiplications of one binary step, counted as the loops that a program would run."""
    flops = 0
    for own, other in ((a, b), (b, a)):
        if own - other - result:
            flops += volume(own, sizes)  # sum over the indices that nothing else wants
    space = (a & b) | ((a | b) & result)
    flops += volume(space, sizes)  # products
    if space - result:
        flops += volume(space, sizes)  # additions
    return flops


def replay(terms, output, sizes, path):
    """Walk a binary path over lists of sets: flops and the largest intermediate. Asserts that the path fits."""
    left = [set(term) for term in terms]
    flops = largest = 0
    if len(left) == 1:
        assert tuple(path) == ((0,),)
        return (0 if left[0] <= set(output) else volume(left[0], sizes)), volume(output, sizes)
    for step in path:
        low, high = sorted(step)
        assert (low, high) == tuple(step) and 0 <= low < high < len(left)
        b, a = left.pop(high), left.pop(low)
        result = (a | b) & set(output).union(*left)
        flops += pair_flops(a, b, result, sizes)
        left.append(result)
        largest = max(largest, volume(result if len(left) > 1 else output, sizes))
    assert len(left) == 1 and left[0] == set(output)
    return flops, largest


def all_trees(leaves):
    """Every binary tree over the leaves."""
    if len(leaves) == 1:
        yield leaves[0]
        return
    first, rest = leaves[0], leaves[1:]
    for count in range(len(rest)):
        for chosen in itertools.combinations(rest, count):
            others = tuple(leaf for leaf in rest if leaf not in chosen)
            for left in all_trees((first, *chosen)):
                for right in all_trees(others):
                    yield (left, right)


def check(network, order, text=""):
    terms, output, sizes = network
    assert all(type(position) is int for step in order.path for position in step)
    assert (order.flops, order.largest) == replay(terms, output, sizes, order.path), (text, network, order)


# ---- networks -----------------------------------------------------------------------------------------------------


def network(terms, sizes=None, **more):
    """'ab,bc->ac' as terms, output, sizes; every index has size 3 unless said."""
    inputs, _, output = terms.partition("->")
    rows = [tuple(term) for term in inputs.split(",")]
    known = {index: 3 for row in rows for index in row}
    return rows, tuple(output), known | (sizes or {}) | more


NAMED = {
    "one": network("abc->ca"),
    "one, summed": network("abc->b"),
    "scalar": network("->"),
    "scalars": network(",,->"),
    "pair": network("ab,bc->ac"),
    "chain": network("ab,bc,cd,de,ef->af", a=2, c=7, e=4),
    "ring": network("ab,bc,cd,de,ef,fa->"),
    "star": network("ax,ay,az,aw->xyzw"),
    "hyperedge kept": network("ab,ac,ad,ae,bcf,def->af"),
    "hyperedge summed": network("ab,ac,ad,ae,bcf,def->f"),
    "batch": network("zab,zbc,zcd,zde->zae"),
    "hadamard": network("ab,ab,ab,ab,ab->ab"),
    "hadamard, summed": network("ab,ab,ab,ab,ab->"),
    "outer": network("a,b,c,d,e->abcde"),
    "disconnected": network("ab,bc,xy,yz,q,pq->acxzp"),
    "disconnected, summed": network("ab,bc,xy,yz,q,q->"),
    "size 1": network("ab,bc,cd,de,ef->af", b=1, d=1, f=1),
    "all size 1": network("ab,bc,cd,de->ae", a=1, b=1, c=1, d=1, e=1),
    "size 0": network("ab,bc,cd,de,ef->af", c=0),
    "alone": network("axy,ab,bzc,c,->", x=50),
    "repeated output": network("ab,bc,cd->add"),
    "integers": ([(0, 100), (100, 7), (7, -3), (-3, 0)], (), {0: 2, 100: 3, 7: 4, -3: 5}),
    "long names": (
        [("left", "x"), ("x", "…0"), ("…0", "right")],
        ("left", "right"),
        dict.fromkeys(("left", "x", "…0", "right"), 4),
    ),
    "outer is best": network("a,bx,xcy,yd->abcd", a=2, b=2, c=2, d=2, x=100, y=100),
    "complete": network("abc,ade,bdf,cef->"),
    "nine": network("ab,bcd,cef,dgh,eij,fk,gil,hjm,klm->a", a=2, m=4),
    "fifteen": network("ab,bc,cd,de,ef,fg,gh,hi,ij,jk,kl,lm,mn,no,oa->", c=5, f=2, k=7),
    "forty": network(",".join(chr(200 + i) + chr(201 + i) for i in range(40)) + "->" + chr(200) + chr(240)),
}


def lattice(rows, columns, size=2):
    """Operands on a grid, an index of ``size`` between neighbours."""
    terms = {(i, j): [] for i in range(rows) for j in range(columns)}
    bonds = itertools.count()
    for i, j in terms:
        for other in ((i + 1, j), (i, j + 1)):
            if other in terms:
                bond = next(bonds)
                terms[i, j].append(bond)
                terms[other].append(bond)
    return [tuple(term) for term in terms.values()], (), {bond: size for bond in range(next(bonds))}


def random_network(seed, operands, indices):
    """A connected or unconnected network with hyperedges, indices of size 1 and indices that only one operand has."""
    rng = random.Random(seed)
    terms = [set() for _ in range(operands)]
    for index in range(indices):
        for position in rng.sample(range(operands), min(operands, rng.choice((1, 2, 2, 2, 3, 4)))):
            terms[position].add(index)
    sizes = {index: rng.choice((1, 2, 2, 3, 4, 7)) for index in range(indices)}
    used = sorted(set().union(*terms))
    output = rng.sample(used, min(len(used), rng.randrange(4)))
    return [tuple(sorted(term)) for term in terms], tuple(output), sizes


@st.composite
def networks(draw, least=1, most=7):
    count = draw(st.integers(least, most))
    indices = draw(st.integers(0, 8))
    sizes = {index: draw(st.sampled_from((0, 1, 1, 2, 3, 5))) for index in range(indices)}
    term = st.lists(st.sampled_from(range(indices)), max_size=4, unique=True) if indices else st.just([])
    terms = [tuple(draw(term)) for _ in range(count)]
    used = sorted(set().union(*terms))
    output = draw(st.lists(st.sampled_from(used), max_size=4, unique=True)) if used else []
    return terms, tuple(output), sizes
