"""Transfers data by NIXL's backend for UCX, and compares it.

`nixl_transfer.py FILE` offers memory, which it describes in FILE.
`nixl_transfer.py --peer FILE` writes to that memory with a notification, and reads back.
"""

import ctypes
import os
import pickle
import sys
import time

from nixl_cu12 import nixl_agent

LENGTH = 1 << 20


def transfer(agent, operation, here, there, peer, notification):
    request = agent.initialize_xfer(operation, here, there, peer, notification)
    state = agent.transfer(request)
    while state == 'PROC':
        state = agent.check_xfer_state(request)
    if state != 'DONE':
        sys.exit(f'nixl: {operation}: {state}')
    agent.release_xfer_handle(request)


name = 'target' if sys.argv[1] != '--peer' else 'initiator'
agent = nixl_agent(name)
buffer = ctypes.create_string_buffer(LENGTH)
address = ctypes.addressof(buffer)
agent.register_memory([(address, LENGTH, 0, '')], 'DRAM')
if name == 'target':
    # Renamed when it is complete, so that the peer reads all of it.
    with open(sys.argv[1] + '.new', 'wb') as file:
        pickle.dump((agent.get_agent_metadata(), address), file)
    os.rename(sys.argv[1] + '.new', sys.argv[1])
    print('ready', flush=True)
    while b'written' not in agent.get_new_notifs().get('initiator', []):
        time.sleep(0.01)
    print('nixl: notified', flush=True)
    while True:
        time.sleep(1)
with open(sys.argv[2], 'rb') as file:
    metadata, target = pickle.load(file)
peer = agent.add_remote_agent(metadata)
peer = peer.decode() if isinstance(peer, bytes) else peer
here = agent.get_xfer_descs([(address, LENGTH, 0)], 'DRAM')
there = agent.get_xfer_descs([(target, LENGTH, 0)], 'DRAM')
expected = bytes(i * 7 % 251 for i in range(LENGTH))
buffer.raw = expected
transfer(agent, 'WRITE', here, there, peer, b'written')
ctypes.memset(address, 0, LENGTH)
transfer(agent, 'READ', here, there, peer, b'')
if buffer.raw != expected:
    sys.exit('nixl: the data differs')
print('nixl: correct', flush=True)
