"""Runs the programs of examples/, each against real servers.

usage: python3 tests/clients/run.py MODULE [NAME...]

Each client is run in every version of the protocol that it speaks, and with its cluster client if
it has one, on a Redis and on a Valkey of .servers. Names select clients. What they need is put
under target/clients, in the versions that the lock file of the client names.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from catalogue import CLIENTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVERS = pathlib.Path(os.environ.get("REDIS_LOCK_SERVERS", ROOT / ".servers"))
FLAVOURS = ("redis-8.2.3", "valkey-9.1.2")

# How long anything may take: far more than it does.
PATIENCE_S = 300

# How many programs run at the same time. Each spends most of its time waiting.
AT_ONCE = 4


def wait_until(what, is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen: {what}")
        time.sleep(0.02)


class Server:
    """A server with the module on a free port of this machine."""

    def __init__(self, flavour, module, folder, *settings):
        self.folder = folder
        folder.mkdir()
        # Another process can take the port before the server does. Then another one is tried.
        for _ in range(20):
            self.port = free_port()
            command = [SERVERS / flavour / "server", "--port", self.port, "--bind", "127.0.0.1"]
            command += ["--dir", folder, "--save", "", "--loadmodule", module, *settings]
            with open(folder / "log", "wb") as log:
                self.process = subprocess.Popen(map(str, command), stdout=log, stderr=log)
            wait_until("the server answers or ends", self.is_settled)
            if self.process.poll() is None:
                return
        raise RuntimeError((folder / "log").read_text())

    def is_settled(self):
        return self.process.poll() is not None or self.log().count("Ready to accept connections")

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def call(self, *words):
        """Sends a command, each word of which is plain text, and returns the bytes of its reply."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(f"{' '.join(map(str, words))}\r\nQUIT\r\n".encode())
            with connection.makefile("rb") as replies:
                return replies.read().decode(errors="replace").removesuffix("+OK\r\n")

    def stop(self):
        self.process.kill()
        self.process.wait()


def free_port():
    """A port that nobody listens on. Its cluster bus port, 10000 higher, exists too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port < 55000:
            return port


@contextlib.contextmanager
def single_server(flavour, module, folder):
    server = Server(flavour, module, folder / "single")
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def cluster(flavour, module, folder):
    """Three nodes that serve a third of the slots each. The first is the one to connect to."""
    nodes = []
    try:
        for number in range(3):
            nodes.append(
                Server(flavour, module, folder / f"node-{number}", "--cluster-enabled", "yes")
            )
        bounds = (0, 5461, 10923, 16384)
        for node, first, end in zip(nodes, bounds, bounds[1:]):
            node.call("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        for node in nodes:
            wait_until("each node knows the cluster", lambda: is_whole(node))
        yield nodes[0]
    finally:
        for node in nodes:
            node.stop()


def is_whole(node):
    info = node.call("CLUSTER", "INFO")
    return (
        "cluster_state:ok" in info
        and "cluster_slots_ok:16384" in info
        and "cluster_known_nodes:3" in info
        and "handshake" not in node.call("CLUSTER", "NODES")
    )


def run(command, folder, **environment):
    """Runs a command, and returns whether it succeeded and what it printed."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired as late:
        return False, (late.stdout or b"").decode(errors="replace") + "it did not end"
    return done.returncode == 0, done.stdout.decode(errors="replace")


def prepare(clients):
    """Installs and builds what the clients need, each thing once."""
    steps = {}
    for client in clients:
        for step in client.preparation:
            steps[step] = client.folder
    for step, folder in steps.items():
        print(f"# {' '.join(step)}", flush=True)
        succeeded, output = run(step, ROOT / folder)
        if not succeeded:
            sys.exit(output)


def modes_of(client):
    """The ways to run a client: what is printed about it, and its environment."""
    for protocol in client.protocols:
        yield f"RESP{protocol}", {"REDIS_PROTOCOL": str(protocol)}
    if client.has_cluster:
        protocol = str(client.protocols[-1])
        yield "cluster", {"REDIS_PROTOCOL": protocol, "REDIS_CLUSTER": "yes"}


def run_client(client, server, cluster_entry):
    """Runs one client in all its modes, one after the other, and returns what went wrong."""
    failures = []
    for mode, environment in modes_of(client):
        entry = cluster_entry if "REDIS_CLUSTER" in environment else server
        succeeded, output = run(
            client.command, ROOT / client.folder, REDIS_PORT=str(entry.port), **environment
        )
        print(f"{'ok' if succeeded else 'FAILED':7}{client.name}, {mode}", flush=True)
        if not succeeded:
            failures.append(f"{client.name}, {mode}:\n{output}")
    return failures


def run_flavour(flavour, module, clients):
    print(f"# {flavour}", flush=True)
    with (
        tempfile.TemporaryDirectory() as name,
        single_server(flavour, module, pathlib.Path(name)) as server,
        cluster(flavour, module, pathlib.Path(name)) as entry,
        concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        runs = [pool.submit(run_client, client, server, entry) for client in clients]
        failures = [failure for each in runs for failure in each.result()]
        left = {(server.port, key) for key in server.call("KEYS", "*").splitlines()[1:]}
        if left:
            failures.append(f"{flavour}: keys that were left behind: {left}")
        if not server.process.poll() is None:
            failures.append(f"{flavour}: the server ended:\n{server.log()}")
        return failures


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    module, names = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    clients = [client for client in CLIENTS if not names or client.name in names]
    unknown = set(names) - {client.name for client in CLIENTS}
    if unknown or not clients:
        sys.exit(f"there is no {', '.join(unknown)}; there are {[c.name for c in CLIENTS]}")
    (ROOT / "target/clients").mkdir(parents=True, exist_ok=True)
    prepare(clients)
    failures = [line for each in FLAVOURS for line in run_flavour(each, module, clients)]
    if failures:
        sys.exit("\n\n".join(failures))
    print(f"{len(clients)} clients: ok")


main()
