# SPDX-License-Identifier: Apache-2.0
"""Root without capabilities between programs and the lease server: it listens at the mount's name in their network
namespace, passes messages on, and presents what it has learned. It gets no descriptor of a device."""

import errno
import os
import sys

import pytest

from harness import needs, process
from harness.syscalls import errno_of
from harness.users import call_as, call_without_capabilities, drop_capabilities
from lease_checks import LISTENERS, refusal
from lease_client import BLOCK, IDENTIFY, READ, Lease, permit, request, ticket

pytestmark = [pytest.mark.usefixtures("weightfs_only"), needs.root]
STORE_SIZE = "64M"
MOUNT_OPTIONS = "allow_other"
SIZE = 3_000_000
# The impostor, and then the program. Its arguments are a directory of the mount and what the impostor does.
CODE = """
import os, select, signal, socket, sys
from harness.users import drop_capabilities
from lease_client import ticket
import weightfs

folder, behavior = sys.argv[1:3]
data = bytes(range(250)) * (%d // 250)
name = ticket(os.open(folder, os.O_RDONLY))[1]
ready, stolen = os.pipe(), os.pipe()

def relay(one, other):
    message, control, *_ = one.recvmsg(1 << 17, socket.CMSG_SPACE(4 * 65))
    if not message:
        raise ConnectionResetError
    rights = [entry for entry in control if entry[1] == socket.SCM_RIGHTS]
    other.sendmsg([message], rights)
    return len(rights)

def impostor():
    drop_capabilities()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(b"\\0" + name)
    listener.listen(0 if behavior == "silent" else 100)
    os.write(ready[1], b"x")
    if behavior == "silent":
        signal.pause()
    ends = {}
    while True:
        for end in select.select([listener, *ends], [], [])[0]:
            if end is listener:
                client, server = listener.accept()[0], socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                server.connect(b"/run/weightfs/" + name)
                ends[client], ends[server] = (server, 0), (client, 1)
            elif end in ends:
                other, from_server = ends[end]
                try:
                    if relay(end, other) and from_server:
                        os.write(stolen[1], b"x")
                except OSError:
                    for each in (end, other):
                        del ends[each]
                        each.close()

child = os.fork()
if child == 0:
    try:
        impostor()
    finally:
        os._exit(1)
os.read(ready[0], 1)
with weightfs.aio_handle() as handle:
    handle.write_async(data, folder + "/file").result()
    for _ in range(2):   # the second time by an ioctl, on the connection of the first
        loaded = bytearray(len(data))
        handle.read_async(loaded, folder + "/file").result()
        assert loaded == data
    handle.save_many({"a": b"one", "b": data}, folder)
    several = {"a": bytearray(3), "b": bytearray(len(data))}
    handle.load_many(several, folder)
    assert several == {"a": b"one", "b": data}
    print(handle.direct_operations)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
os.close(stolen[1])
print(len(os.read(stolen[0], 1000)))
""" % SIZE


@needs.program("unshare")
@pytest.mark.parametrize("behavior", ["relays", "silent"])
def test_an_impostor_in_another_network_namespace_gets_nothing_and_delays_little(work, behavior):
    pytest.importorskip("weightfs._native", reason="the Python package is not installed: pip install . in the root")
    if LISTENERS < 2:
        pytest.skip("needs a mount with a socket in /run/weightfs")
    here = os.path.dirname(__file__)
    code = f"import sys; sys.path[:0] = {[here, os.path.dirname(here)]!r}\n{CODE}"
    done = process.run(["unshare", "--net", sys.executable, "-c", code, work, behavior])
    assert done.out.split() == ["5", "0"], "every operation has a lease, and no descriptor went through the impostor"


@pytest.fixture
def opened(work):
    (work / "a").write_bytes(bytes(BLOCK))
    file, folder = os.open(work / "a", os.O_RDWR), os.open(work, os.O_RDONLY)
    yield file, folder
    os.close(file)
    os.close(folder)


def tries(lease, token, folder, of_folder):
    """The errors of all requests that are answered with descriptors, and the descriptors that came."""
    permit(folder, of_folder)
    return {refusal(lease.read, token), refusal(lease.reserve, token, 1), refusal(lease.read_many, of_folder, [b"a"]),
            refusal(lease.reserve, of_folder, 1)}, lease.devices


def test_a_ticket_is_of_no_use_to_another_process(opened):
    """Not even to one of root with all its capabilities."""
    (token, name), (of_folder, _) = map(ticket, opened)

    def presents():
        with Lease(name) as lease:
            return lease.identify(token)

    def tries_all():
        with Lease(name) as lease:
            return tries(lease, token, opened[1], of_folder)

    assert errno_of(call_as, None, presents) == errno.EACCES
    assert call_as(None, tries_all) == ({errno.EACCES}, [])
    # The connection is closed before any message is read.
    assert errno_of(call_without_capabilities, presents) in (errno.ECONNRESET, errno.EPIPE)


def test_a_connection_of_another_process_is_of_no_use(opened):
    (token, name), (of_folder, _) = map(ticket, opened)
    with Lease(name) as lease:
        identity = lease.identify(token)
        assert call_without_capabilities(tries, lease, token, opened[1], of_folder) == ({errno.EACCES}, [])
        lease.read(token)
        lease.release()
        for kind in (IDENTIFY, READ):
            assert errno_of(call_without_capabilities, request, opened[0], kind, identity, keep=[1]) == errno.ENOTCONN
            assert errno_of(call_without_capabilities, request, opened[0], kind, identity) == errno.EPERM
        assert refusal(request, opened[0], IDENTIFY, identity + 1) == errno.ENOTCONN
        request(opened[0], IDENTIFY, identity)
        request(opened[0], READ, identity)
        lease.receive(READ)
        assert lease.devices
        lease.release()


def test_capabilities_that_are_lost_after_the_ticket_count(opened):
    def loses():
        (token, name), (of_folder, _) = map(ticket, opened)
        with Lease(name) as lease:
            lease.read(token)
            lease.release()
            drop_capabilities()
            return tries(lease, token, opened[1], of_folder)

    assert call_as(None, loses) == ({errno.EPERM}, [])
