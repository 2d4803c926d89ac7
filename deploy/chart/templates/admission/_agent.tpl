{{- define "fleetmend.admission.agent" -}}
# What an agent may write: its own Node, through nodes/status, four condition types and one annotation.
#
# RBAC can't say "own node only": a DaemonSet has one ServiceAccount on all nodes. The token of a pod can: the API server
# puts the pod and its node into the caller's `extra`. A token without them (made by hand, or from an old Secret) is
# refused. Apply this file before rights/agent.yaml and wait until it is in force (README.md): a new policy takes about a
# second to be, and until then the agents' RBAC alone would open every node's status.
#
# The first rule that fails names itself in the answer; the order matters only for that. Rules that read the object are
# guarded by the operation, so that a refused create or delete is refused by its own message and not by an error.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fleetmend-agent
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [""]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE, DELETE, CONNECT]
        resources: [nodes, nodes/*]
  matchConditions:
    - name: caller-is-the-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:fleetmend-agent'
  variables:
    - name: extra
      expression: "has(request.userInfo.extra) ? request.userInfo.extra : {}"
    - name: node
      expression: >-
        'authentication.kubernetes.io/node-name' in variables.extra
        && size(variables.extra['authentication.kubernetes.io/node-name']) > 0
        ? string(variables.extra['authentication.kubernetes.io/node-name'][0]) : ''
    - name: nodeUID
      expression: >-
        'authentication.kubernetes.io/node-uid' in variables.extra
        && size(variables.extra['authentication.kubernetes.io/node-uid']) > 0
        ? string(variables.extra['authentication.kubernetes.io/node-uid'][0]) : ''
    - name: podBound
      expression: "'authentication.kubernetes.io/pod-name' in variables.extra"
    - name: updates
      expression: request.operation == 'UPDATE'
    - name: newMeta
      expression: "variables.updates ? object.metadata : {}"
    - name: oldMeta
      expression: "variables.updates ? oldObject.metadata : {}"
    - name: newAnnotations
      expression: "variables.updates && has(object.metadata.annotations) ? object.metadata.annotations : {}"
    - name: oldAnnotations
      expression: "variables.updates && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
    - name: newStatus
      expression: "variables.updates && has(object.status) ? object.status : {}"
    - name: oldStatus
      expression: "variables.updates && has(oldObject.status) ? oldObject.status : {}"
    - name: newConditions
      expression: "'conditions' in variables.newStatus ? variables.newStatus.conditions : []"
    - name: oldConditions
      expression: "'conditions' in variables.oldStatus ? variables.oldStatus.conditions : []"
    - name: ours
      expression: "['GPUHealthy', 'InterconnectHealthy', 'NetworkHealthy', 'HostHealthy']"
    - name: ownConditions
      expression: variables.newConditions.filter(c, c.type in variables.ours)
  validations:
    # A token that is not a running pod's proves no node.
    - expression: variables.podBound && variables.node != '' && variables.nodeUID != ''
      reason: Forbidden
      message: "fleetmend-agent/1: the token is not bound to a pod on a node"
    # subResource is absent on the main resource; without has() each write there would fail with an error.
    - expression: "!has(request.subResource) || request.subResource in ['', 'status']"
      reason: Forbidden
      message: "fleetmend-agent/2: an agent uses no subresource but status"
    - expression: variables.updates
      reason: Forbidden
      message: "fleetmend-agent/3: an agent only updates; it neither creates, deletes nor connects"
    # Name and UID: a node that was recreated under the same name is another node.
    - expression: "!variables.updates || (object.metadata.name == variables.node && object.metadata.uid == variables.nodeUID)"
      reason: Forbidden
      message: "fleetmend-agent/4: an agent writes only the node it runs on"
    - expression: "!variables.updates || object.spec == oldObject.spec"
      reason: Forbidden
      message: "fleetmend-agent/5: an agent does not change a node's spec"
    - expression: >-
        variables.newMeta.all(k, k in ['annotations', 'managedFields', 'resourceVersion', 'generation']
        || (k in variables.oldMeta && variables.newMeta[k] == variables.oldMeta[k]))
        && variables.oldMeta.all(k, k in ['annotations', 'managedFields', 'resourceVersion', 'generation']
        || k in variables.newMeta)
      reason: Forbidden
      message: "fleetmend-agent/6: an agent changes no metadata but annotations"
    - expression: >-
        variables.newAnnotations.all(k, k == 'fleetmend.io/findings'
        || (k in variables.oldAnnotations && variables.newAnnotations[k] == variables.oldAnnotations[k]))
        && variables.oldAnnotations.all(k, k == 'fleetmend.io/findings' || k in variables.newAnnotations)
      reason: Forbidden
      message: "fleetmend-agent/7: an agent changes no annotation but fleetmend.io/findings"
    # Everybody who watches nodes pays for this annotation: 8 KiB on 5,000 nodes is 40 MiB in each cache.
    - expression: >-
        !('fleetmend.io/findings' in variables.newAnnotations)
        || size(bytes(variables.newAnnotations['fleetmend.io/findings'])) <= 8192
      reason: Forbidden
      message: "fleetmend-agent/8: fleetmend.io/findings is over 8192 bytes"
    - expression: >-
        variables.newStatus.all(k, k == 'conditions'
        || (k in variables.oldStatus && variables.newStatus[k] == variables.oldStatus[k]))
        && variables.oldStatus.all(k, k == 'conditions' || k in variables.newStatus)
      reason: Forbidden
      message: "fleetmend-agent/9: an agent changes nothing in a node's status but conditions"
    # filter(), not exists(): two filters are linear, a nested search hits the cost limit at some 400 conditions.
    - expression: >-
        variables.newConditions.filter(c, !(c.type in variables.ours))
        == variables.oldConditions.filter(c, !(c.type in variables.ours))
      reason: Forbidden
      message: "fleetmend-agent/10: an agent changes no condition but its own four"
    - expression: variables.ours.all(t, variables.ownConditions.filter(c, c.type == t).size() <= 1)
      reason: Forbidden
      message: "fleetmend-agent/11: a condition type stands at most once"
    - expression: >-
        variables.ownConditions.all(c, (!has(c.message) || size(bytes(c.message)) <= 1024)
        && (!has(c.reason) || size(bytes(c.reason)) <= 128))
      reason: Forbidden
      message: "fleetmend-agent/12: a condition's message is over 1024 bytes or its reason over 128"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: fleetmend-agent
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  policyName: fleetmend-agent
  validationActions: [Deny]
{{- end }}
