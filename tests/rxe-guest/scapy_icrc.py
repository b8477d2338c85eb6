"""scapy_icrc.py PCAPNG...: compares the ICRC of every RoCEv2 packet (link type RAW) with scapy's; exits with 1 if one differs
or a file has no packets"""
import logging, sys, zlib

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import raw
from scapy.utils import RawPcapNgReader


def icrc(data):
    """Returns the expected ICRC in wire order."""
    if data[0] >> 4 == 4:
        return IP(data)[BTH].compute_icrc(data)
    # scapy does not compute it for IPv6: masks the headers that scapy has parsed, as the specification requires.
    p = IPv6(data)
    p.tc, p.fl, p.hlim, p[UDP].chksum = 0xff, 0xfffff, 0xff, 0xffff
    p[BTH].fecn, p[BTH].becn, p[BTH].resv6 = 1, 1, 0x3f
    return zlib.crc32(b"\xff" * 8 + raw(p)[:-4]).to_bytes(4, "little")


bad = 0
for path in sys.argv[1:]:
    packets = [data for data, _ in RawPcapNgReader(path)]
    wrong = sum(icrc(d) != d[-4:] for d in packets)
    bad += wrong or not packets
    print(f"{path}: {len(packets)} packets, {wrong} with an ICRC that differs from scapy's")
sys.exit(bad != 0)
