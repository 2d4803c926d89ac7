"""Letting a new node in: the startup taint goes, once the node was found well.

Owns the activity `admit_node`. What the patch says is `workflows/model/remediation/admission.py`, how
it is sent is `mark_writing.py`. The node carries no mark, so the fence is another one: the same UID,
the boot in which it was found well, no marker, conditions that are good still, and the
resourceVersion of the reading decided on.
"""

from datetime import UTC, datetime

from activities import errors
from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient
from activities.kube.errors import NotFound
from activities.kube.mark_writing import ROUNDS, kept_changing, send_mark
from activities.permit import Authority
from activities.policy_file import PolicySource
from workflows.contracts.kube import AdmitRequest, Admitted
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView, parse_node
from workflows.model.policy import Policy
from workflows.model.remediation.admission import admission_patch, is_newcomer, is_registered
from workflows.model.remediation.gate import Verdict, judge_conditions
from workflows.model.remediation.marks import is_marked, other_healer
from workflows.model.remediation.permit import Effect


class AdmissionActivity:
    """Takes startup taints off."""

    def __init__(self, kube: KubeClient, authority: Authority, policies: PolicySource) -> None:
        self._kube = kube
        self._authority = authority
        self._policies = policies

    def admit_node(self, request: AdmitRequest) -> Admitted:
        """Implements `admit_node`: the startup taint is off, or `refused` says why it stays.

        Idempotent: a second run finds no taint. A person who took it off has admitted the node.

        Raises:
            ApplicationError: not-permitted, node-gone; bad-request: no boot id. Nothing is written.
            ApiError, PolicyError: something could not be read; tried again.
        """
        if not request.boot_id:
            raise errors.bad_request(
                "admit_node: boot_id is missing: what was found well is a boot"
            )
        for _ in range(ROUNDS):
            body = self._read(request.owner.node)
            node = parse_node(body)
            if not is_newcomer(node):
                return Admitted(node.resource_version)
            refused = _refusal(node, request)
            if refused:
                return Admitted(node.resource_version, refused)
            self._authority.demand_on(node, request.owner, Effect.MARK)
            doubt = _doubt(node, self._policies.read())
            if doubt:
                return Admitted(node.resource_version, doubt)
            patch = admission_patch(node, body["spec"].get("taints") or [])
            written = send_mark(self._kube, node, patch)
            if written is not None:
                return Admitted(written.resource_version)
        raise kept_changing(request.owner.node, "admit_node")

    def _read(self, ref: NodeRef) -> JsonObject:
        """With its taints as they are: they are written back."""
        try:
            body = self._kube.get(paths.node(ref.name))
        except NotFound as error:
            raise errors.node_gone(f"Node {ref.name} does not exist any more") from error
        if body["metadata"].get("uid") != ref.uid:
            raise errors.node_gone(f"Node {ref.name} was recreated: it has another UID")
        return body


def _refusal(node: NodeView, request: AdmitRequest) -> str:
    if is_marked(node):
        return "the node was taken out of service meanwhile"
    healer = other_healer(node)
    if healer:
        return f"left to another healer: {healer}"
    if not is_registered(node):
        return "Karpenter has not registered it yet, and would put the taint back on"
    if node.boot_id != request.boot_id:
        return f"it was found well in boot {request.boot_id} and is in {node.boot_id or 'no boot'}"
    return ""


def _doubt(node: NodeView, policy: Policy) -> str:
    """What has come up since it was found well; "" = nothing."""
    judged = judge_conditions(node, policy, datetime.now(UTC))
    if judged.verdict is Verdict.PASSED:
        return ""
    return f"its conditions are not good any more: {'; '.join(judged.reasons[:4])}"
