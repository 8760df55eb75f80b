"""Writes from one queue pair to another by the Python package ibverbs, and compares the data.

`ibverbs_python.py ADDRESS FILE` offers memory. `ibverbs_python.py ADDRESS --peer FILE` writes to it.
Each end describes its queue pair in a file: FILE, and FILE.peer.
"""

import ctypes
import ipaddress
import os
import pickle
import sys
import time

import ibverbs as ib

LENGTH = 1 << 16
EXPECTED = bytes(i * 7 % 251 for i in range(LENGTH))


def write(path, value):
    # Renamed when it is complete, so that the peer reads all of it.
    with open(path + '.new', 'wb') as file:
        pickle.dump(value, file)
    os.rename(path + '.new', path)


def read(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, 'rb') as file:
        return pickle.load(file)


is_target = sys.argv[2] != '--peer'
path = sys.argv[2] if is_target else sys.argv[3]
own, other = (path, path + '.peer') if is_target else (path + '.peer', path)
if is_target:
    for stale in own, other:
        if os.path.exists(stale):
            os.remove(stale)
wanted = ipaddress.ip_address('::ffff:' + sys.argv[1]).packed
for device in ib.get_device_list():
    context = device.open()
    table = range(context.query_port(1).gid_tbl_len)
    index = next((i for i in table if bytes(context.query_gid(1, i)) == wanted), None)
    if index is not None:
        break
else:
    sys.exit(f'ibverbs: no device has {sys.argv[1]}')
access = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE
domain = context.alloc_pd()
queue = context.create_cq(16)
buffer = ctypes.create_string_buffer(b'' if is_target else EXPECTED, LENGTH)
region = domain.reg_mr(ctypes.addressof(buffer), LENGTH, access)
pair = domain.create_qp(ib.QPInitAttr(send_cq=queue, recv_cq=queue, qp_type=ib.QPType.RC))
info = ib.local_qp_info(pair, context.query_port(1), context.query_gid(1, index), port=1, psn=0)
write(own, (info.to_bytes(), ctypes.addressof(buffer), region.rkey))
if is_target:
    print('ready', flush=True)
remote, address, rkey = read(other)
ib.connect_rc(pair, ib.QPInfo.from_bytes(remote), port=1, sgid_index=index, access=access)
if is_target:
    while buffer.raw != EXPECTED:
        time.sleep(0.01)
    print('ibverbs: received', flush=True)
    sys.exit()
pair.post_send(ib.SendWR(
    wr_id=1, sg_list=[ib.SGE(region, LENGTH)], opcode=ib.WROpcode.RDMA_WRITE,
    send_flags=ib.SendFlags.SIGNALED, remote_addr=address, rkey=rkey))
completions = []
while not completions:
    completions = queue.poll(16)
completions[0].raise_for_status()
print('ibverbs: correct', flush=True)
