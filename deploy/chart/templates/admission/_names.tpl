{{- define "fleetmend.admission.names" -}}
# Which objects of namespace {{ .Release.Namespace }} each account may create: RBAC can't restrict `create` by name.
#
# Without this the worker could create fleetmend-release (and so choose the image of its node tasks) or fleetmend-arming
# (and so arm itself) in a cluster where they don't exist yet.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fleetmend-names
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [""]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [configmaps]
      - apiGroups: [coordination.k8s.io]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [leases]
  matchConditions:
    - name: caller-is-an-account-of-fleetmend
      expression: request.userInfo.username.startsWith('system:serviceaccount:{{ .Release.Namespace }}:fleetmend-')
  variables:
    - name: account
      expression: request.userInfo.username.substring(size('system:serviceaccount:{{ .Release.Namespace }}:'))
    - name: allowed
      expression: >-
        {'fleetmend-watch': ['leases/fleetmend-watch'],
        'fleetmend-worker': ['configmaps/fleetmend-guard'],
        'fleetmend-operator': ['configmaps/fleetmend-arming'],
        'fleetmend-leave': ['configmaps/fleetmend-arming']}
  validations:
    - expression: >-
        request.namespace == '{{ .Release.Namespace }}' && variables.account in variables.allowed
        && (request.resource.resource + '/' + object.metadata.name) in variables.allowed[variables.account]
      reason: Forbidden
      message: "fleetmend-names/1: watch writes Lease fleetmend-watch, the worker ConfigMap fleetmend-guard, an operator ConfigMap fleetmend-arming"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: fleetmend-names
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  policyName: fleetmend-names
  validationActions: [Deny]
{{- end }}
