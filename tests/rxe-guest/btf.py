"""Offsets of the members of the kernel's structs, from the BTF of the kernel and of a module.
Format: https://docs.kernel.org/bpf/btf.html"""
import struct

INT, ARRAY, STRUCT, UNION, ENUM, FUNC_PROTO, VAR, DATASEC, DECL_TAG, ENUM64 = 1, 3, 4, 5, 6, 13, 14, 15, 17, 19
# Bytes that follow the header of a type, and bytes for each of its elements.
EXTRA = {INT: (4, 0), ARRAY: (12, 0), STRUCT: (0, 12), UNION: (0, 12), ENUM: (0, 8), FUNC_PROTO: (0, 8), VAR: (4, 0),
         DATASEC: (0, 12), DECL_TAG: (4, 0), ENUM64: (0, 12)}


class Btf:
    """Types of the kernel, or of a module whose types and strings continue those of the kernel, BASE."""

    def __init__(self, data, base=None):
        magic, _, _, header, types, types_len, strings, strings_len = struct.unpack_from("<HBBIIIII", data)
        assert magic == 0xeb9f, f"not BTF in little endian: magic {magic:#x}"
        self.strings = (base.strings if base else b"") + data[header + strings:header + strings + strings_len]
        self.first = base.first + len(base.types) if base else 1
        self.types = []  # (kind, name, members)
        at, end = header + types, header + types + types_len
        while at < end:
            name, info, _ = struct.unpack_from("<III", data, at)
            kind, elements = info >> 24 & 31, info & 0xffff
            at += 12
            members = struct.iter_unpack("<III", data[at:at + 12 * elements]) if kind in (STRUCT, UNION) else ()
            self.types.append((kind, name, [(name, type, bits & 0xffffff if info >> 31 else bits) for name, type, bits in members]))
            fixed, each = EXTRA.get(kind, (0, 0))
            at += fixed + each * elements

    def name(self, at):
        return self.strings[at:self.strings.index(b"\0", at)].decode()

    def offset(self, struct_name, path):
        """Returns the offset in bytes of the member PATH, for example "req.psn", of a struct of the module."""
        members = next(m for kind, name, m in self.types if kind == STRUCT and self.name(name) == struct_name)
        offset = 0
        for part in path.split("."):
            _, type, bits = next(m for m in members if self.name(m[0]) == part)
            offset += bits // 8
            members = self.types[type - self.first][2] if type >= self.first else []
        return offset
