#!/usr/bin/env python3
"""icrc.py PCAP...: checks the ICRC of every RoCEv2 frame (pcap, Ethernet); exits with 1 if one is wrong or a file has none"""
import struct, sys, zlib


def frames(path):
    b = open(path, "rb").read()
    if b[:4] not in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") or struct.unpack_from("<I", b, 20)[0] != 1:
        sys.exit(f"{path}: not a little-endian pcap of Ethernet frames")
    o = 24
    while o < len(b):
        n = struct.unpack_from("<IIII", b, o)[2]
        yield b[o + 16:o + 16 + n]
        o += 16 + n


def icrc(f):
    """Returns (ICRC in the frame, computed ICRC), or None if the frame is not RoCEv2."""
    et, o = struct.unpack_from(">H", f, 12)[0], 14
    if et == 0x8100:
        et, o = struct.unpack_from(">H", f, 16)[0], 18
    if et == 0x0800 and f[o + 9] == 17:
        h = (f[o] & 15) * 4
        ip = bytearray(f[o:o + h])
        end = o + struct.unpack_from(">H", f, o + 2)[0]
        ip[1] = ip[8] = ip[10] = ip[11] = 0xff          # ToS, TTL, checksum
    elif et == 0x86dd and f[o + 6] == 17:
        h = 40
        ip = bytearray(f[o:o + h])
        end = o + 40 + struct.unpack_from(">H", f, o + 4)[0]
        ip[0] |= 0x0f                                   # traffic class, flow label
        ip[1] = ip[2] = ip[3] = ip[7] = 0xff            # and hop limit
    else:
        return None
    udp = bytearray(f[o + h:o + h + 8])
    if udp[2:4] != b"\x12\xb7":
        return None
    udp[6] = udp[7] = 0xff                              # checksum
    rest = bytearray(f[o + h + 8:end - 4])
    rest[4] = 0xff                                      # FECN, BECN, reserved
    return struct.unpack_from("<I", f, end - 4)[0], zlib.crc32(b"\xff" * 8 + bytes(ip) + bytes(udp) + bytes(rest))


bad = total = 0
for p in sys.argv[1:]:
    checks = [c for c in map(icrc, frames(p)) if c]
    wrong = sum(a != b for a, b in checks)
    total += len(checks)
    if wrong or not checks:
        bad += 1
        print(f"{p}: {len(checks)} RoCEv2 frames, {wrong} with a wrong ICRC")
print(f"{len(sys.argv) - 1} files, {total} RoCEv2 frames, {bad} files with errors")
sys.exit(bad != 0)
