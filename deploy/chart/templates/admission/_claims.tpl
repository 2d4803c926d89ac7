{{- define "fleetmend.admission.claims" -}}
# How the worker may end a NodeClaim of Karpenter: one, by its UID.
#
# A NodeClaim of the same name may be another machine by now. RBAC can't ask for a precondition.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fleetmend-worker-claims
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [karpenter.sh]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE, DELETE]
        resources: [nodeclaims, nodeclaims/*]
  matchConditions:
    - name: caller-is-the-worker
      expression: request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:fleetmend-worker'
  validations:
    - expression: request.operation == 'DELETE'
      reason: Forbidden
      message: "fleetmend-worker-claims/1: NodeClaims are only deleted; never created or changed"
    - expression: >-
        request.operation != 'DELETE'
        || (has(request.options.preconditions) && has(request.options.preconditions.uid))
      reason: Forbidden
      message: "fleetmend-worker-claims/2: a deletion names the NodeClaim's UID"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: fleetmend-worker-claims
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  policyName: fleetmend-worker-claims
  validationActions: [Deny]
{{- end }}
