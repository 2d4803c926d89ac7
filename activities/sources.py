"""What a look at the whole cluster is made of: by the sweep, and by the choice of idle nodes.

Owns nothing but the bundle; each source is its own module's.
"""

from dataclasses import dataclass

from activities.kube.client import KubeClient
from activities.kube.marks_survey import MarksSurvey
from activities.machines.store import MachineStore
from activities.permit import Authority
from activities.policy_file import PolicySource


@dataclass(frozen=True)
class Sources:
    """What is read."""

    kube: KubeClient
    survey: MarksSurvey
    machines: MachineStore
    authority: Authority
    policies: PolicySource
