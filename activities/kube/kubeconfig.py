"""Where the cluster is and who we are: KUBECONFIG, else the pod's own ServiceAccount.

Owns the choice between the two and the message for each way in which it fails. Does not talk to
the server. `client.py` and the processes' start use it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml
from kubernetes.client.configuration import Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from activities.kube import errors


def load_configuration(environment: Mapping[str, str]) -> Configuration:
    """Address and credential from KUBECONFIG, else from the pod's ServiceAccount.

    Args:
        environment: the process's environment variables.

    Raises:
        errors.KubeconfigError: says which of the two was tried and what is missing in it.
    """
    configuration = Configuration()
    kubeconfig = environment.get("KUBECONFIG", "")
    if kubeconfig:
        asked = f"reading KUBECONFIG={kubeconfig}"
        parts = [Path(part) for part in kubeconfig.split(os.pathsep)]
        if not any(part.is_file() for part in parts):
            is_folder = any(part.is_dir() for part in parts)
            said = (
                "it is a directory; name the file in it" if is_folder else "there is no such file"
            )
            raise errors.KubeconfigError(asked, said)
        _load(asked, lambda: _read_kubeconfig(kubeconfig, configuration))
    elif environment.get("KUBERNETES_SERVICE_HOST"):
        asked = "reading the pod's ServiceAccount"
        _load(asked, lambda: load_incluster_config(configuration))  # type: ignore[no-untyped-call]
    else:
        raise errors.KubeconfigError(
            "looking for a cluster",
            "KUBECONFIG is not set, and this is no pod (KUBERNETES_SERVICE_HOST is not set)",
        )
    return configuration


def _read_kubeconfig(kubeconfig: str, configuration: Configuration) -> None:
    load_kube_config(  # type: ignore[no-untyped-call]  # kubernetes.config has no types
        config_file=kubeconfig, client_configuration=configuration, persist_config=False
    )


def _load(asked: str, load: Callable[[], None]) -> None:
    try:
        load()
    except yaml.YAMLError as error:
        # Not the error's own text: it quotes the file, and the file holds a credential.
        mark = getattr(error, "problem_mark", None)
        said = "no valid YAML" if mark is None else f"no valid YAML, see line {mark.line + 1}"
        raise errors.KubeconfigError(asked, said) from None
    except (ConfigException, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise errors.KubeconfigError(asked, f"{type(error).__name__}: {error}") from error
