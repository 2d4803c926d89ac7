"""What people are told of a judgement: the log line and the Event for what was not done, and why.

Owns the words, and that each is said once for each change. Decides nothing; `lookout.py` calls it
after it has acted. Talks to `notices.py` and the metrics.
"""

from collections.abc import Sequence

import structlog

from workers.watch.fleet import Tracked
from workers.watch.judge import Verdict
from workers.watch.metrics import Counter, Metrics
from workers.watch.notices import Notice, Notices
from workflows.model.detection.rules import RuleMatch
from workflows.model.remediation.marks import Marker
from workflows.model.remediation.permit import Refusal

_log = structlog.get_logger(__name__)


class Telling:
    """Called under the lookout's lock."""

    def __init__(self, notices: Notices, metrics: Metrics) -> None:
        self._notices = notices
        self._metrics = metrics

    def tell(self, tracked: Tracked, verdict: Verdict) -> None:
        """Say what of this verdict was not said before."""
        self._announce(tracked, verdict)
        self._tell_withheld(tracked, verdict)
        self._tell_unreadable(tracked, verdict)
        self._tell_waiting(tracked, verdict)

    def tell_taken_off(self, tracked: Tracked, marker: Marker, left: Sequence[RuleMatch]) -> None:
        """A person has put a handed-over node back to work, and its mark is off."""
        _log.info(
            "mark_taken_off",
            node=tracked.view.name,
            uid=tracked.view.uid,
            handed_over=marker.handed_over,
        )
        text = f"back at work by hand, watched again; it was handed over to {marker.handed_over}"
        notice = Notice(tracked.ref, marker.episode, "BackInService", text, is_warning=False)
        self._notices.tell(notice)
        self.tell_left_alone(tracked, left)

    def tell_left_alone(self, tracked: Tracked, left: Sequence[RuleMatch]) -> None:
        """What stands on a node that a person has put back to work in sight of it."""
        if not left:
            return
        _log.warning("left_alone", **_facts(tracked, left[0]), others=len(left) - 1)
        said = "; ".join(match.text for match in left[:3])
        text = (
            f"a person has put it back to work in sight of this, so it is left alone for it: {said}. "
            "It counts again once it clears and comes back, or after the next boot; anything else "
            f"counts at once. Next: fleetmend validate {tracked.view.name}, or retire"
        )
        key = "|".join(match.id for match in left)
        self._notices.tell(Notice(tracked.ref, key, "LeftAlone", text, is_warning=True))

    def _announce(self, tracked: Tracked, verdict: Verdict) -> None:
        """In observe mode: say once what would have been done."""
        match = verdict.would_reflex
        if match is None or match.id == tracked.would:
            return
        tracked.would = match.id
        self._metrics.count(Counter.WOULD_QUARANTINE, tracked.pool)
        _log.info(
            "would_quarantine",
            **_facts(tracked, match),
            fault=match.fault.value,
            pool=tracked.pool,
        )
        text = (
            f"would be quarantined for {match.fault} (rule {match.rule}) if pool {tracked.pool} "
            f"were armed: {match.text}"
        )
        self._notices.tell(Notice(tracked.ref, match.id, "WouldQuarantine", text, is_warning=False))

    def _tell_withheld(self, tracked: Tracked, verdict: Verdict) -> None:
        """Say once why a protected node is not quarantined."""
        match, refusal = verdict.withheld, verdict.refusal
        if match is None or refusal is None:
            tracked.withheld = ("", "")
            return
        if tracked.withheld == (match.id, refusal):
            return
        tracked.withheld = (match.id, refusal)
        is_known = refusal is Refusal.PROTECTED
        counter = Counter.REFLEX_PROTECTED if is_known else Counter.REFLEX_PROTECTION_UNKNOWN
        self._metrics.count(counter, tracked.pool)
        _log.warning(
            "quarantine_withheld",
            **_facts(tracked, match),
            refusal=refusal.value,
            problem=verdict.why,
        )
        if is_known:
            text = f"not quarantined for {match.fault} (rule {match.rule}): {verdict.why}"
            notice = Notice(tracked.ref, match.id, "NotQuarantined", text, is_warning=True)
            self._notices.tell(notice)

    def _tell_unreadable(self, tracked: Tracked, verdict: Verdict) -> None:
        """Say once why a faulty node with a marker that nobody can read is left as it is."""
        said = ("", "")
        if verdict.unreadable:
            match = verdict.matches[0]
            said = (match.id, verdict.unreadable)
            if said != tracked.unreadable:
                _log.warning(
                    "marker_unreadable",
                    **_facts(tracked, match),
                    fault=match.fault.value,
                    problem=verdict.unreadable,
                )
                text = (
                    f"nothing is done for {match.fault} (rule {match.rule}), since the node may "
                    f"be somebody else's: {verdict.unreadable}"
                )
                key = f"{match.id}|{verdict.unreadable}"
                self._notices.tell(
                    Notice(tracked.ref, key, "MarkerUnreadable", text, is_warning=True)
                )
        tracked.unreadable = said

    def _tell_waiting(self, tracked: Tracked, verdict: Verdict) -> None:
        """Say once for each cause why a new node is not admitted: nothing else would."""
        waits, said = verdict.waits, tracked.waits
        tracked.waits = waits
        if not waits or waits == said:
            return
        _log.warning("admission_waits", node=tracked.view.name, uid=tracked.view.uid, problem=waits)
        notice = Notice(
            tracked.ref, waits, "AdmissionWaits", f"not admitted yet: {waits}", is_warning=True
        )
        self._notices.tell(notice)


def _facts(tracked: Tracked, match: RuleMatch) -> dict[str, str]:
    """What each line about a match on a node names."""
    return {"node": tracked.view.name, "uid": tracked.view.uid, "rule": match.rule}
