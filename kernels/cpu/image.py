"""A kernel as bytes that run wherever they lie: an object file that was linked when it was written to disk.

A kernel calls nothing outside of it, so all that is left to link are the places of its constants, which code says
relative to itself. LLVM's linker finds them anew in each process, for 0.7 µs each, and kernels of long functions have
thousands. Here they are filled in once, and to load a kernel is to copy it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from functools import cache
from typing import NamedTuple

from .units import LINE

_MAGIC = b"linked 1"
_HEAD = struct.Struct("<8sQ")  # and where in the code the function begins
_ELF = b"\x7fELF\x02\x01"  # of 64 bits, the low byte first
_X86_64 = 62  # EM_X86_64: others do not see by themselves that what was written is code
_WRITABLE, _ALLOCATED = 1, 2  # SHF_WRITE, SHF_ALLOC of ELF
_SYMBOLS, _RELOCATIONS = 2, 4  # SHT_SYMTAB, SHT_RELA
_RELATIVE = 2  # R_X86_64_PC32: an address relative to the place that has it
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
    if not _relocated(data, sections, code, begins, symbols):
        return data
    return _HEAD.pack(_MAGIC, begins[entry.section] + entry.value) + code


def is_image(data: bytes) -> bool:
    """Whether these are bytes that `linked` made, and no object file."""
    return data.startswith(_MAGIC)


def load(image: bytes) -> int:
    """Address of the function of an image, in memory that is never both writable and executable, and never given back:
    threads may still wait in it when the process ends."""
    _, entry = _HEAD.unpack_from(image)
    size, libc = len(image) - _HEAD.size, _libc()
    begin = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if begin != _FAILED:
        ctypes.memmove(begin, image[_HEAD.size :], size)
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


def _relocated(
    data: bytes, sections: list[_Section], code: bytearray, begins: dict[int, int], symbols: list[_Symbol]
) -> bool:
    """Whether all addresses could be filled in."""
    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in begins:
            continue
        for offset, info, addend in struct.iter_unpack("<QQq", _content(data, section)):
            symbol = symbols[info >> 32]
            if info & 0xFFFFFFFF != _RELATIVE or symbol.section not in begins:
                return False
            place = begins[section.info] + offset
            struct.pack_into("<i", code, place, begins[symbol.section] + symbol.value + addend - place)
    return True
