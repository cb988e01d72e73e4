"""The programs of examples/ and how each is prepared and run."""

from dataclasses import dataclass

VENV = "target/clients/python"
PYTHON = f"../../{VENV}/bin/python"


@dataclass(frozen=True)
class Client:
    """One program. Its commands run in its folder, which is named from the project's root."""

    name: str
    folder: str
    command: tuple[str, ...]
    # Steps that must succeed before it can run; one that several clients name is done once.
    preparation: tuple[tuple[str, ...], ...] = ()
    # The versions of RESP that the client can speak.
    protocols: tuple[int, ...] = (2, 3)
    # Whether it has a cluster client, for which REDIS_CLUSTER is set.
    has_cluster: bool = True


PYTHON_PACKAGES = (
    ("python3", "-m", "venv", f"../../{VENV}"),
    (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    + ("--require-hashes", "--requirement", "requirements.txt"),
)

CLIENTS = (
    Client("redis-cli", "examples/redis-cli", ("./demo",)),
    Client("redis-py", "examples/redis-py", (PYTHON, "demo.py"), PYTHON_PACKAGES),
    Client("redis-py-asyncio", "examples/redis-py", (PYTHON, "demo_asyncio.py"), PYTHON_PACKAGES),
)
