"""Where a lab keeps its files: one directory, one table of names.

Owns the default lab directory, the layout below it, and the way to a Unix socket in it.
Does not own the content of any file: `address.py` reads lab.json, the control plane and the
simulated nodes write theirs.
"""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

LAB_DIRECTORY_VARIABLE: Final = "FLEETMEND_LAB"
CACHE_DIRECTORY_VARIABLE: Final = "FLEETMEND_CACHE"


def default_lab_directory() -> Path:
    """The lab directory that commands use when none is named."""
    named = os.environ.get(LAB_DIRECTORY_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    return Path(platformdirs.user_state_dir("fleetmend")) / "lab"


def cache_directory() -> Path:
    """Where built programs are kept for every lab of this user."""
    named = os.environ.get(CACHE_DIRECTORY_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("fleetmend"))


@dataclass(frozen=True)
class LabPaths:
    """The layout of one lab directory."""

    directory: Path

    @property
    def lab_file(self) -> Path:
        """lab.json: address, supervisor and components, rewritten at every change."""
        return self.directory / "lab.json"

    @property
    def settings_file(self) -> Path:
        """The launch plan: settings, chosen ports, programs. A restart keeps them."""
        return self.directory / "settings.json"

    @property
    def installed_file(self) -> Path:
        """What `install` has applied, as a digest."""
        return self.directory / "installed.json"

    @property
    def start_lock(self) -> Path:
        """Held by a start or a stop in progress."""
        return self.directory / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.directory / "supervisor.lock"

    @property
    def control_socket(self) -> Path:
        """The supervisor's control socket."""
        return self.directory / "control.sock"

    @property
    def fleet_socket(self) -> Path:
        """The control socket of the simulated nodes' process."""
        return self.directory / "fleet.sock"

    @property
    def pki(self) -> Path:
        """Certificates and keys of the lab's own CA."""
        return self.directory / "pki"

    @property
    def etcd(self) -> Path:
        """Data of etcd, and the sockets it listens on."""
        return self.directory / "etcd"

    @property
    def logs(self) -> Path:
        """One log file per component."""
        return self.directory / "logs"

    @property
    def temporal_database(self) -> Path:
        """SQLite file of the Temporal dev server."""
        return self.directory / "temporal.db"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON event a line."""
        return self.directory / "audit.log"

    @property
    def kubeconfigs(self) -> Path:
        """Kubeconfigs of people and processes."""
        return self.directory / "kubeconfigs"

    @property
    def nodes(self) -> Path:
        """Host roots of the full nodes."""
        return self.directory / "nodes"

    @property
    def pod_values(self) -> Path:
        """Values of fleetmend's chart with which all of it runs as pods of this lab."""
        return self.directory / "pods.yaml"

    @property
    def images(self) -> Path:
        """Releases of fleetmend beside this checkout: a folder, or a link to one, for each tag."""
        return self.directory / "images"

    def log(self, component: str) -> Path:
        """The log file of one component."""
        return self.logs / f"{component}.log"

    def kubeconfig(self, account: str) -> Path:
        """The kubeconfig of one account (admin, watch, worker, operator)."""
        return self.kubeconfigs / f"{account}.kubeconfig"


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket at `path`, readable by this user only; a stale one is replaced."""
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        # A socket address holds 107 bytes and test directories are deeper; this name is short.
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o600)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


def connect_unix(path: Path, *, timeout_s: float) -> socket.socket:
    """A connected Unix socket to `path`.

    Raises:
        OSError: nobody listens there, or the folder is gone.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except OSError:
        connection.close()
        raise
    return connection
