"""A kernel as bytes that run wherever they lie: an object file that was linked when it was written to disk.

All that is left to link are the places of a kernel's constants, which code says relative to itself. LLVM's linker finds
them anew in each process, for 0.7 µs each, and kernels of long functions have thousands. Here they are filled in once, and
to load a kernel is to copy it. Functions of a library that it calls (`svml`) are called through words behind the code, which
are filled in with each process's addresses of them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from functools import cache
from typing import Iterator, NamedTuple

from . import svml
from .units import LINE

_MAGIC = b"linked 2"
_HEAD = struct.Struct("<8sQQ")  # where in the code the function begins, and bytes of names that follow the head
_ELF = b"\x7fELF\x02\x01"  # of 64 bits, the low byte first
_X86_64 = 62  # EM_X86_64: others do not see by themselves that what was written is code
_WRITABLE, _ALLOCATED = 1, 2  # SHF_WRITE, SHF_ALLOC of ELF
_SYMBOLS, _RELOCATIONS = 2, 4  # SHT_SYMTAB, SHT_RELA
_RELATIVE = 2  # R_X86_64_PC32: an address relative to the place that has it
_THROUGH = {9, 41, 42}  # R_X86_64_GOTPCREL and its variants: that of a word which has the address of something
_ELSEWHERE = 0  # SHN_UNDEF, the section of what the file does not have
_FAILED = ctypes.c_void_p(-1).value  # MAP_FAILED


class _Section(NamedTuple):
    """A section header of a 64-bit ELF file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Symbol(NamedTuple):
    """A row of its table of symbols: a place in a section."""

    name: int
    kind: int
    other: int
    section: int
    value: int
    size: int


class _Relocation(NamedTuple):
    """A place of a section that an address has to be filled in at."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


def linked(data: bytes, symbol: str) -> bytes:
    """The image of an object file's function; the file itself where it has what only LLVM can link."""
    if not _is_elf_of_x86(data):
        return data
    sections = _sections(data)
    if any(section.flags & _WRITABLE for section in sections):
        return data
    code, begins = _laid_out(data, sections)
    (table,) = [section for section in sections if section.kind == _SYMBOLS]
    symbols = [_Symbol(*fields) for fields in struct.iter_unpack("<IBBHQQ", _content(data, table))]
    names = _content(data, sections[table.link])
    (entry,) = [each for each in symbols if names.startswith(symbol.encode() + b"\0", each.name)]
    called = _with_words(data, sections, code, symbols)
    if not _relocated(data, sections, code, begins, symbols, called):
        return data
    text = b"\n".join(names[symbols[which].name :].split(b"\0", 1)[0] for which in called)
    return _HEAD.pack(_MAGIC, begins[entry.section] + entry.value, len(text)) + text + code


def is_image(data: bytes) -> bool:
    """Whether these are bytes that `linked` made, and no object file."""
    return data.startswith(_MAGIC)


def load(image: bytes) -> int:
    """Address of the function of an image, in memory that is never both writable and executable, and never given back:
    threads may still wait in it when the process ends."""
    _, entry, names = _HEAD.unpack_from(image)
    begin = _HEAD.size + names
    called = [svml.address(name) for name in image[_HEAD.size : begin].decode().split()]
    words = struct.pack(f"<{len(called)}Q", *called)
    code = image[begin : len(image) - len(words)] + words
    size, libc = len(code), _libc()
    begin = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if begin != _FAILED:
        ctypes.memmove(begin, code, size)
    if begin == _FAILED or libc.mprotect(begin, size, mmap.PROT_READ | mmap.PROT_EXEC):
        number = ctypes.get_errno()
        raise OSError(number, f"no executable memory for a kernel: {os.strerror(number)}")
    return begin + entry


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


# -- object files --------------------------------------------------------------------------------------------------
def _is_elf_of_x86(data: bytes) -> bool:
    """Other systems than Linux have other formats."""
    return data.startswith(_ELF) and struct.unpack_from("<H", data, 18) == (_X86_64,)


def _sections(data: bytes) -> list[_Section]:
    (first,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    return [_Section(*struct.unpack_from("<IIQQQQIIQQ", data, first + at * size)) for at in range(count)]


def _content(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _laid_out(data: bytes, sections: list[_Section]) -> tuple[bytearray, dict[int, int]]:
    """What a process has of the file, and where each such section begins in it."""
    code, begins = bytearray(), {}
    for number, section in enumerate(sections):
        if section.flags & _ALLOCATED:
            code += bytes(-len(code) % max(section.align, LINE))  # constants share no line with code
            begins[number] = len(code)
            code += _content(data, section)
    return code, begins


def _relocations(data: bytes, sections: list[_Section]) -> Iterator[_Relocation]:
    """Of what a process has of the file."""
    for section in sections:
        if section.kind == _RELOCATIONS and sections[section.info].flags & _ALLOCATED:
            for offset, info, addend in struct.iter_unpack("<QQq", _content(data, section)):
                yield _Relocation(section.info, offset, info & 0xFFFFFFFF, info >> 32, addend)


def _with_words(data: bytes, sections: list[_Section], code: bytearray, symbols: list[_Symbol]) -> dict[int, int]:
    """Adds a word to the code for each symbol of elsewhere that is called through one: where they are, by symbol."""
    found = (each.symbol for each in _relocations(data, sections) if each.kind in _THROUGH)
    called = [symbol for symbol in dict.fromkeys(found) if symbols[symbol].section == _ELSEWHERE]
    code += bytes(-len(code) % LINE if called else 0)
    begin = len(code)
    code += bytes(8 * len(called))
    return {symbol: begin + 8 * n for n, symbol in enumerate(called)}


def _relocated(
    data: bytes,
    sections: list[_Section],
    code: bytearray,
    begins: dict[int, int],
    symbols: list[_Symbol],
    words: dict[int, int],
) -> bool:
    """Whether all addresses could be filled in."""
    for section, offset, kind, which, addend in _relocations(data, sections):
        symbol = symbols[which]
        if kind in _THROUGH and which in words:
            target = words[which]
        elif kind == _RELATIVE and symbol.section in begins:
            target = begins[symbol.section] + symbol.value
        else:
            return False
        place = begins[section] + offset
        struct.pack_into("<i", code, place, target + addend - place)
    return True
