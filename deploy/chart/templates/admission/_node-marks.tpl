{{- define "fleetmend.admission.node-marks" -}}
# What watch, the worker and `fleetmend leave` at the end may change on a Node: the quarantine's marks, and nothing else.
#
# RBAC's `patch nodes` opens labels, taints, finalizers and every annotation. They need the cordon, our marker, and
# Karpenter's two vetoes. Control-plane nodes are never touched, whatever the policy file says.
#
# The worker alone may take one taint off: the startup taint of a new node that was found well. Nobody here puts a taint on,
# and the others stay as they are.
#
# Rules 8 and 9 tie the cordon to the marker: whoever cordons leaves the marker, and only a node that carries our
# marker is uncordoned. A stale exit patch, or a bug, can't undo a person's cordon.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fleetmend-node-marks
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
    - name: caller-is-watch-the-worker-or-leave
      expression: >-
        request.userInfo.username in ['system:serviceaccount:{{ .Release.Namespace }}:fleetmend-watch',
        'system:serviceaccount:{{ .Release.Namespace }}:fleetmend-worker',
        'system:serviceaccount:{{ .Release.Namespace }}:fleetmend-leave']
  variables:
    - name: updates
      expression: request.operation == 'UPDATE'
    - name: marks
      expression: "['fleetmend.io/episode', 'karpenter.sh/do-not-disrupt', 'karpenter.sh/do-not-repair']"
    - name: newMeta
      expression: "variables.updates ? object.metadata : {}"
    - name: oldMeta
      expression: "variables.updates ? oldObject.metadata : {}"
    - name: newAnnotations
      expression: "variables.updates && has(object.metadata.annotations) ? object.metadata.annotations : {}"
    - name: oldAnnotations
      expression: "variables.updates && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
    - name: oldLabels
      expression: "variables.updates && has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"
    - name: newSpec
      expression: "variables.updates && has(object.spec) ? object.spec : {}"
    - name: oldSpec
      expression: "variables.updates && has(oldObject.spec) ? oldObject.spec : {}"
    - name: newTaints
      expression: "'taints' in variables.newSpec ? variables.newSpec.taints : []"
    - name: oldTaints
      expression: "'taints' in variables.oldSpec ? variables.oldSpec.taints : []"
    - name: otherTaints
      expression: >-
        variables.oldTaints.filter(t, t.key != 'fleetmend.io/unvalidated' || t.effect != 'NoSchedule')
    - name: cordonedAfter
      expression: "'unschedulable' in variables.newSpec && variables.newSpec.unschedulable"
    - name: cordonedBefore
      expression: "'unschedulable' in variables.oldSpec && variables.oldSpec.unschedulable"
  validations:
    - expression: variables.updates
      reason: Forbidden
      message: "fleetmend-node-marks/1: nodes are only updated; never created, deleted or connected to"
    # subResource is absent on the main resource.
    - expression: "!has(request.subResource) || request.subResource == ''"
      reason: Forbidden
      message: "fleetmend-node-marks/2: no subresource of a node is written"
    - expression: >-
        !('node-role.kubernetes.io/control-plane' in variables.oldLabels)
        && !('node-role.kubernetes.io/master' in variables.oldLabels)
      reason: Forbidden
      message: "fleetmend-node-marks/3: control-plane nodes are never touched"
    - expression: >-
        variables.newSpec.all(k, k in ['unschedulable', 'taints']
        || (k in variables.oldSpec && variables.newSpec[k] == variables.oldSpec[k]))
        && variables.oldSpec.all(k, k in ['unschedulable', 'taints'] || k in variables.newSpec)
      reason: Forbidden
      message: "fleetmend-node-marks/4: nothing in a node's spec is changed but unschedulable and the startup taint"
    - expression: >-
        variables.newMeta.all(k, k in ['annotations', 'managedFields', 'resourceVersion', 'generation']
        || (k in variables.oldMeta && variables.newMeta[k] == variables.oldMeta[k]))
        && variables.oldMeta.all(k, k in ['annotations', 'managedFields', 'resourceVersion', 'generation']
        || k in variables.newMeta)
      reason: Forbidden
      message: "fleetmend-node-marks/5: nothing in a node's metadata is changed but annotations"
    - expression: >-
        variables.newAnnotations.all(k, k in variables.marks
        || (k in variables.oldAnnotations && variables.newAnnotations[k] == variables.oldAnnotations[k]))
        && variables.oldAnnotations.all(k, k in variables.marks || k in variables.newAnnotations)
      reason: Forbidden
      message: "fleetmend-node-marks/6: no annotation is changed but the episode marker and Karpenter's vetoes"
    - expression: >-
        variables.marks.all(k, !(k in variables.newAnnotations)
        || size(bytes(variables.newAnnotations[k])) <= 8192)
      reason: Forbidden
      message: "fleetmend-node-marks/7: a mark is over 8192 bytes"
    - expression: >-
        !variables.cordonedAfter || variables.cordonedBefore
        || 'fleetmend.io/episode' in variables.newAnnotations
      reason: Forbidden
      message: "fleetmend-node-marks/8: whoever cordons a node leaves the episode marker on it"
    - expression: >-
        variables.cordonedAfter || !variables.cordonedBefore
        || 'fleetmend.io/episode' in variables.oldAnnotations
      reason: Forbidden
      message: "fleetmend-node-marks/9: a node without our episode marker is not uncordoned"
    - expression: >-
        variables.newTaints == variables.oldTaints
        || (request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:fleetmend-worker'
        && variables.newTaints == variables.otherTaints)
      reason: Forbidden
      message: "fleetmend-node-marks/10: no taint is changed, but the startup taint removed by the worker"
    - expression: >-
        variables.newTaints == variables.oldTaints
        || (!('fleetmend.io/episode' in variables.oldAnnotations) && !('fleetmend.io/episode' in variables.newAnnotations))
      reason: Forbidden
      message: "fleetmend-node-marks/11: the startup taint of a node with an episode marker stays"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: fleetmend-node-marks
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  policyName: fleetmend-node-marks
  validationActions: [Deny]
{{- end }}
