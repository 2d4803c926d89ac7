"""What an episode waits for on its node: a proven reboot, and people's permission.

Owns the activities `prove_reboot`, `await_reboot` and `await_permit`: one fresh read for each
attempt; the waiting is Temporal's (retries of a `not-yet`), so a wait of hours costs no thread.
The judgement is the model's (`remediation/reboot.py`, `remediation/permit.py`).
"""

from activities import errors
from activities.permit import Authority
from workflows.contracts.kube import PermitRequest, Permitted, RebootWatch
from workflows.model.remediation.permit import PASSING
from workflows.model.remediation.reboot import Proof, RebootProof, prove_reboot


class BootActivities:
    """Reads only."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def prove_reboot(self, request: RebootWatch) -> RebootProof:
        """Implements `prove_reboot`: what the Node proves right now.

        Raises:
            ApplicationError: node-gone.
        """
        return prove_reboot(request.before, self._authority.look(request.owner.node))

    def await_reboot(self, request: RebootWatch) -> RebootProof:
        """Implements `await_reboot`: the proof of a reboot that is done.

        Raises:
            ApplicationError: not-yet until then; node-gone.
        """
        proof = self.prove_reboot(request)
        if proof.proof is not Proof.DONE:
            raise errors.not_yet(f"Node {request.owner.node.name}: {proof.detail}")
        return proof

    def await_permit(self, request: PermitRequest) -> Permitted:
        """Implements `await_permit`: the effect is permitted now.

        Raises:
            ApplicationError: not-yet while only people stand in the way; not-owner, overruled,
                node-gone when waiting cannot help.
        """
        node = self._authority.look(request.owner.node)
        permit = self._authority.judge(node, request.owner, request.effect)
        if permit.refusal in PASSING:
            raise errors.not_yet(permit.detail)
        if permit.refusal is not None:
            raise errors.refused(permit)
        return Permitted(permit.detail)
