"""Checks the ICRC of every RoCEv2 packet of a capture with scapy's implementation.

Prints the number of packets checked. Exit status 1, and a line a packet, where one is wrong.
"""

import sys

from scapy.contrib.roce import BTH
from scapy.layers.inet import UDP
from scapy.utils import PcapReader

ROCE_PORT = 4791
ICRC_BYTES = 4

checked = 0
wrong = 0
for number, packet in enumerate(PcapReader(sys.argv[1]), start=1):
    if UDP not in packet or packet[UDP].dport != ROCE_PORT:
        continue
    bth = packet[BTH]
    datagram = packet[UDP].original[: packet[UDP].len]
    found = datagram[-ICRC_BYTES:]
    expected = bth.compute_icrc(None)
    checked += 1
    if found != expected:
        wrong += 1
        print(f"packet {number}: ICRC {found.hex()}, scapy says {expected.hex()}: {packet.summary()}")

print(f"checked {checked}, wrong {wrong}")
sys.exit(1 if wrong else 0)
