"""Processes of two machines meet over TCP: two network namespaces with a cable between them, and a host name for each.
The program is test/unit/test_comm_tcp."""
import os
import shutil
import subprocess

import pytest
from runs import ROOT, call

ADDRESS = {"a": "10.213.7.1", "b": "10.213.7.2"}
PORT = "29400"


def can_make_hosts():
    """Root alone may, and in many containers not even root."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return False
    name = f"llmc-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    usable = made and subprocess.run(["ip", "netns", "exec", name, "unshare", "--uts", "true"],
                                     capture_output=True).returncode == 0
    if made:
        call("ip", "netns", "delete", name)
    return usable


@pytest.fixture
def hosts():
    """A command prefix for each of two machines, called here and there."""
    if not can_make_hosts():
        pytest.skip("network namespaces cannot be made here: that takes root, ip and unshare")
    names = {end: f"llmc-{os.getpid()}-{end}" for end in ADDRESS}
    try:
        for name in names.values():
            call("ip", "netns", "add", name, expect=0)
        call("ip", "link", "add", "cable", "netns", names["a"], "type", "veth", "peer", "cable", "netns", names["b"],
             expect=0)
        for end, name in names.items():
            call("ip", "-n", name, "address", "add", f"{ADDRESS[end]}/24", "dev", "cable", expect=0)
            for device in ("lo", "cable"):
                call("ip", "-n", name, "link", "set", device, "up", expect=0)
        yield {end: ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname host-{end} && exec "$@"', "sh"]
               for end, name in names.items()}
    finally:
        for name in names.values():
            call("ip", "netns", "delete", name)


def program():
    built = ROOT / "build" / "release" / "test" / "unit" / "test_comm_tcp"
    assert built.exists(), "test_comm_tcp is not built: make test-programs"
    return built


def start(host, rank, size, **environment):
    return subprocess.Popen([*host, program(), str(rank), str(size), ADDRESS["a"], PORT], text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, **environment})


def test_processes_of_two_machines_meet(hosts):
    processes = [start(hosts[end], rank, 4) for rank, end in ((3, "b"), (2, "b"), (0, "a"), (1, "a"))]
    said = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], said
    assert sorted(out for out, _ in said) == [f"rank {rank} of 4\n" for rank in range(4)]


def test_a_machine_with_another_run_is_named(hosts):
    first = start(hosts["a"], 0, 2)
    wrong = start(hosts["b"], 1, 3)
    _, error = wrong.communicate(timeout=600)
    assert wrong.returncode == 1 and error == ("process 1 on host-b was refused: it counts 3 processes, process 0 2\n")
    second = start(hosts["b"], 1, 2)
    for process in (first, second):
        out, error = process.communicate(timeout=600)
        assert process.returncode == 0, error


def test_a_machine_that_cannot_be_reached_is_named(hosts):
    call(*hosts["b"], "ip", "link", "set", "cable", "down", expect=0)
    alone = start(hosts["b"], 1, 2, COMM_START_SECONDS="1")
    _, error = alone.communicate(timeout=600)
    assert alone.returncode == 1
    assert error == f"process 0 at {ADDRESS['a']}:{PORT} did not answer within 1 s: Network is unreachable\n"


def test_a_machine_that_connects_and_says_nothing_is_named(hosts):
    first = start(hosts["a"], 0, 2, COMM_START_SECONDS="3")
    connects = f"until exec 3<>/dev/tcp/{ADDRESS['a']}/{PORT}; do sleep 0.1; done; read -u 3"
    silent = subprocess.Popen([*hosts["b"], "bash", "-c", connects], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, error = first.communicate(timeout=600)
    silent.wait(timeout=600)
    assert first.returncode == 1
    assert error == f"not all 2 processes came within 3 s; missing: 1; a connection from {ADDRESS['b']} says nothing\n"
