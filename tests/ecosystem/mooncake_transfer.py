"""Transfers data by Mooncake's transfer engine, and compares it.

`mooncake_transfer.py ADDRESS FILE` offers memory, whose address it writes to FILE.
`mooncake_transfer.py ADDRESS --peer FILE` writes to that memory and reads back.
"""

import ctypes
import sys
import time

from mooncake.engine import TransferEngine

LENGTH = 1 << 20

address, *rest = sys.argv[1:]
engine = TransferEngine()
# The last argument, a filter of devices, is empty by default.
if engine.initialize(address, 'P2PHANDSHAKE', 'rdma', '') != 0:
    sys.exit('mooncake: initialize failed')
buffer = ctypes.create_string_buffer(LENGTH)
here = ctypes.addressof(buffer)
if engine.register_memory(here, LENGTH) != 0:
    sys.exit('mooncake: register_memory failed')
if rest[0] != '--peer':
    with open(rest[0], 'w') as file:
        file.write(f'{address}:{engine.get_rpc_port()} {here}')
    print('ready', flush=True)
    while True:
        time.sleep(1)
with open(rest[1]) as file:
    session, there = file.read().split()
expected = bytes(i * 7 % 251 for i in range(LENGTH))
buffer.raw = expected
written = engine.transfer_sync_write(session, here, int(there), LENGTH)
ctypes.memset(here, 0, LENGTH)
read = engine.transfer_sync_read(session, here, int(there), LENGTH)
if (written, read) != (0, 0) or buffer.raw != expected:
    sys.exit(f'mooncake: write {written}, read {read}, equal {buffer.raw == expected}')
print('mooncake: correct', flush=True)
