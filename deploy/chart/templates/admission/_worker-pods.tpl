{{/* The variables of activities/node_tasks/pod.py, as a list of CEL. Both values have patterns without quotes (values.schema.json). */}}
{{- define "fleetmend.admission.diagnosis-env" -}}
{{- $env := list -}}
{{- if .Values.nodeTasks.runtimeClassName -}}
{{- $env = list "'NVIDIA_VISIBLE_DEVICES=all'" "'NVIDIA_DRIVER_CAPABILITIES=compute,utility'" -}}
{{- end -}}
{{- with .Values.dcgm.hostEngine -}}
{{- $env = append $env (printf "'FLEETMEND_DCGM_HOST_ENGINE=%s'" .) -}}
{{- end -}}
{{- join ", " $env -}}
{{- end }}

{{- define "fleetmend.admission.worker-pods" -}}
# What the worker may do with pods: create node tasks of the release's image, delete them, evict with a UID.
#
# A pod with the node's root mounted is root on the node. Whoever steals the worker's token must not be able to run
# anything there that the release doesn't carry. So this is a list of what a node task is, and everything else is refused:
# fields that Kubernetes adds later are refused too until somebody has looked at them.
#
# The image, a diagnosis' runtime class and its host engine stand in the policy itself, as the release has them (the image in production
# by digest), and not in a parameter: an API server that has seen a policy with a parameter go, and come back with the next installation,
# finds the parameter no more until it is restarted (Kubernetes 1.36.3), and without it refuses every pod of the cluster, whoever creates
# it, before it looks at matchConditions.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fleetmend-worker-pods
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [""]
        apiVersions: ["*"]
        operations: [CREATE]
        resources: [pods]
  matchConditions:
    - name: caller-is-the-worker
      expression: request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:fleetmend-worker'
  variables:
    - name: image
      expression: "'{{ include "fleetmend.image" . }}'"
    # Empty = none.
    - name: runtimeClass
      expression: "'{{ .Values.nodeTasks.runtimeClassName }}'"
    # What a diagnosis may be told besides its order.
    - name: diagnosisEnv
      expression: "[{{ include "fleetmend.admission.diagnosis-env" . }}]"
    - name: kinds
      expression: "['inventory', 'reboot', 'diagnose', 'kernel-log']"
    - name: container
      expression: object.spec.containers[0]
    - name: command
      expression: "has(variables.container.command) ? variables.container.command : []"
    - name: kind
      expression: "size(variables.command) == 3 ? variables.command[2] : ''"
    - name: env
      expression: "has(variables.container.env) ? variables.container.env : []"
    - name: mounts
      expression: "has(variables.container.volumeMounts) ? variables.container.volumeMounts : []"
    - name: volumes
      expression: "has(object.spec.volumes) ? object.spec.volumes : []"
    - name: security
      expression: "has(variables.container.securityContext) ? variables.container.securityContext : {}"
    # Fields with a rule of their own below, and those that the API server fills in or that only delay or sort the pod.
    # Ephemeral containers can't be given at creation; fleetmend-worker-pod-ends refuses them afterwards.
    - name: specFields
      expression: >-
        ['activeDeadlineSeconds', 'automountServiceAccountToken', 'containers', 'nodeName', 'restartPolicy',
        'serviceAccountName', 'serviceAccount', 'securityContext', 'volumes', 'runtimeClassName',
        'dnsPolicy', 'enableServiceLinks', 'imagePullSecrets', 'preemptionPolicy', 'priority', 'priorityClassName',
        'schedulerName', 'terminationGracePeriodSeconds', 'tolerations']
    - name: containerFields
      expression: >-
        ['name', 'image', 'imagePullPolicy', 'command', 'env', 'resources', 'securityContext', 'volumeMounts',
        'terminationMessagePath', 'terminationMessagePolicy']
  validations:
    - expression: request.namespace == '{{ .Release.Namespace }}'
      reason: Forbidden
      message: "fleetmend-worker-pods/1: the worker creates pods only in namespace {{ .Release.Namespace }}"
    - expression: "!has(object.spec.initContainers) || size(object.spec.initContainers) == 0"
      reason: Forbidden
      message: "fleetmend-worker-pods/2: a node task has no init containers"
    - expression: size(object.spec.containers) == 1
      reason: Forbidden
      message: "fleetmend-worker-pods/3: a node task has exactly one container"
    - expression: variables.container.image == variables.image
      reason: Forbidden
      message: "fleetmend-worker-pods/4: a node task runs the release's image"
    - expression: >-
        size(variables.command) == 3 && variables.command[0] == 'fleetmend' && variables.command[1] == 'node-task'
        && variables.kind in variables.kinds
      reason: Forbidden
      message: "fleetmend-worker-pods/5: a node task's command is fleetmend node-task and one of inventory, reboot, diagnose, kernel-log"
    - expression: "!has(variables.container.args) || size(variables.container.args) == 0"
      reason: Forbidden
      message: "fleetmend-worker-pods/6: a node task has no args"
    - expression: has(object.spec.nodeName) && object.spec.nodeName != ''
      reason: Forbidden
      message: "fleetmend-worker-pods/7: a node task names its node"
    - expression: object.spec.restartPolicy == 'Never'
      reason: Forbidden
      message: "fleetmend-worker-pods/8: a node task has restartPolicy Never"
    - expression: has(object.spec.activeDeadlineSeconds) && object.spec.activeDeadlineSeconds <= 15000
      reason: Forbidden
      message: "fleetmend-worker-pods/9: a node task has an active deadline of at most 15000 seconds"
    - expression: has(object.spec.serviceAccountName) && object.spec.serviceAccountName == 'fleetmend-node-task'
      reason: Forbidden
      message: "fleetmend-worker-pods/10: a node task runs as fleetmend-node-task"
    - expression: has(object.spec.automountServiceAccountToken) && object.spec.automountServiceAccountToken == false
      reason: Forbidden
      message: "fleetmend-worker-pods/11: a node task has no token"
    # LD_PRELOAD or PYTHONPATH would run the host's files as the task, another host root another file as systemctl.
    - expression: >-
        variables.env.all(e, has(e.value) && ((e.name == 'FLEETMEND_TASK' && size(bytes(e.value)) <= 8192)
        || (variables.kind == 'diagnose' && (e.name + '=' + e.value) in variables.diagnosisEnv)))
      reason: Forbidden
      message: "fleetmend-worker-pods/12: a node task's env is FLEETMEND_TASK alone, a plain value of at most 8192 bytes; a diagnosis has the release's way to the GPUs, too"
    - expression: "!has(variables.container.envFrom) || size(variables.container.envFrom) == 0"
      reason: Forbidden
      message: "fleetmend-worker-pods/13: a node task takes no env from ConfigMaps or Secrets"
    - expression: variables.volumes.all(v, v.all(k, k in ['name', 'hostPath']))
      reason: Forbidden
      message: "fleetmend-worker-pods/14: a node task has no volume but the host's root"
    - expression: variables.volumes.all(v, has(v.hostPath) && v.hostPath.path == '/')
      reason: Forbidden
      message: "fleetmend-worker-pods/15: a node task mounts the host's root and no other path"
    # At /host only: mounted over the image's own files, the host's files would be the task's code.
    - expression: >-
        variables.mounts.all(m, m.mountPath == '/host' && !has(m.subPath) && !has(m.subPathExpr))
        && size(variables.mounts) <= 1
      reason: Forbidden
      message: "fleetmend-worker-pods/16: a node task has the host's root at /host and no other mount"
    - expression: "variables.kind == 'reboot' || variables.mounts.all(m, has(m.readOnly) && m.readOnly)"
      reason: Forbidden
      message: "fleetmend-worker-pods/17: only a reboot task may write below /host"
    - expression: >-
        variables.kind in ['reboot', 'kernel-log'] || ((!has(variables.security.privileged) || !variables.security.privileged)
        && (!has(variables.security.capabilities) || !has(variables.security.capabilities.add)))
      reason: Forbidden
      message: "fleetmend-worker-pods/18: only a reboot task, and the one that reads /dev/kmsg, may be privileged"
    - expression: "!has(object.spec.securityContext) || object.spec.securityContext.all(k, k in ['runAsUser', 'runAsGroup', 'runAsNonRoot', 'seccompProfile'])"
      reason: Forbidden
      message: "fleetmend-worker-pods/19: a node task's pod securityContext sets no more than its user and seccomp profile"
    # A finalizer would keep the pod for ever, and with it the episode that waits for the pod to go; an owner would let
    # the garbage collector delete it.
    - expression: "!has(object.metadata.finalizers) && !has(object.metadata.ownerReferences)"
      reason: Forbidden
      message: "fleetmend-worker-pods/20: a node task has neither finalizers nor owners"
    - expression: object.spec.all(k, k in variables.specFields)
      messageExpression: >-
        'fleetmend-worker-pods/21: a node task does not set '
        + object.spec.filter(k, !(k in variables.specFields)).map(k, 'spec.' + k).join(', ')
      reason: Forbidden
      message: "fleetmend-worker-pods/21: a node task does not set these fields of spec"
    - expression: variables.container.all(k, k in variables.containerFields)
      messageExpression: >-
        'fleetmend-worker-pods/22: a node task does not set '
        + variables.container.filter(k, !(k in variables.containerFields)).map(k, 'container.' + k).join(', ')
      reason: Forbidden
      message: "fleetmend-worker-pods/22: a node task does not set these fields of its container"
    # Another runtime is another program on the node, and a reboot must start where the GPUs' runtime can't.
    - expression: >-
        !has(object.spec.runtimeClassName)
        || (variables.kind == 'diagnose' && variables.runtimeClass != '' && object.spec.runtimeClassName == variables.runtimeClass)
      reason: Forbidden
      message: "fleetmend-worker-pods/23: only a diagnosis has a runtime class, that of the release"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: fleetmend-worker-pods
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  policyName: fleetmend-worker-pods
  validationActions: [Deny]
---
# The worker's other doors to pods.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fleetmend-worker-pod-ends
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      # pods/* means pods too.
      - apiGroups: [""]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE, DELETE, CONNECT]
        resources: [pods/*]
  matchConditions:
    - name: caller-is-the-worker
      expression: request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:fleetmend-worker'
  variables:
    - name: subresource
      expression: "has(request.subResource) ? request.subResource : ''"
  validations:
    # exec, attach, portforward, proxy, ephemeralcontainers, status, resize, binding.
    - expression: variables.subresource in ['', 'eviction']
      reason: Forbidden
      message: "fleetmend-worker-pod-ends/1: the worker uses no subresource of pods but eviction"
    # Creation is judged by fleetmend-worker-pods.
    - expression: variables.subresource != '' || request.operation in ['CREATE', 'DELETE']
      reason: Forbidden
      message: "fleetmend-worker-pod-ends/2: the worker never changes a pod"
    - expression: variables.subresource != '' || request.operation != 'DELETE' || request.namespace == '{{ .Release.Namespace }}'
      reason: Forbidden
      message: "fleetmend-worker-pod-ends/3: the worker deletes pods only in namespace {{ .Release.Namespace }}; elsewhere it evicts"
    - expression: >-
        variables.subresource != '' || request.operation != 'DELETE' || oldObject == null
        || (has(oldObject.spec.serviceAccountName) && oldObject.spec.serviceAccountName == 'fleetmend-node-task')
      reason: Forbidden
      message: "fleetmend-worker-pod-ends/4: the worker deletes only node tasks"
    # A pod of the same name may be another pod by now (StatefulSets reuse names).
    - expression: >-
        variables.subresource != 'eviction'
        || (has(object.deleteOptions) && has(object.deleteOptions.preconditions)
        && has(object.deleteOptions.preconditions.uid))
      reason: Forbidden
      message: "fleetmend-worker-pod-ends/5: an eviction names the pod's UID"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: fleetmend-worker-pod-ends
  labels: {{- include "fleetmend.labels" . | nindent 4 }}
  annotations: {{- include "fleetmend.owner" . | nindent 4 }}
spec:
  policyName: fleetmend-worker-pod-ends
  validationActions: [Deny]
{{- end }}
