"""The closed set of failure types that cross from activities to workflows.

Owns the type names of `ApplicationError` and which of them no retry can mend. Activities raise
them in one place (`activities/errors.py`); the runtime turns them into its own exceptions. A test
checks that each is used.
"""

NODE_GONE = "node-gone"
"""The Node does not exist, or another one has its name (another UID)."""
NOT_OWNER = "not-owner"
"""Another episode, or a person it was handed to, owns the node."""
OVERRULED = "overruled"
"""Somebody took our marker or cordon off."""
OTHER_HEALER = "other-healer"
"""Karpenter has begun on the node: everything of ours comes off."""
NOT_PERMITTED = "not-permitted"
"""Observe mode, a pause, or scope: a person may lift it; details hold the refusal."""
NOT_YET = "not-yet"
"""What is waited for has not come: retried slowly, not an error."""
BAD_REQUEST = "bad-request"
"""The request itself cannot be carried out; a person must look."""
API_FAILED = "api-failed"
"""The API server answered with an error or not at all; retried."""

FINAL = (NODE_GONE, NOT_OWNER, OVERRULED, OTHER_HEALER, NOT_PERMITTED, BAD_REQUEST)
"""No retry of the same request can help."""
