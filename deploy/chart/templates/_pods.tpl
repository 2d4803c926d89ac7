{{/*
What watch and worker have in common. Called with a dict: root (the chart's context), component, command, port, environment
(variables of the component's own), grace (of the end, in seconds).
*/}}
{{- define "fleetmend.deployment" -}}
{{- $values := index .root.Values .component -}}
{{- include "fleetmend.forget-nulls" $values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: fleetmend-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "fleetmend.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: {{ $values.replicas }}
  selector:
    matchLabels: {{- include "fleetmend.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels: {{- include "fleetmend.labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
      {{- if not (kindIs "invalid" .root.Values.policy) }}
      annotations:
        fleetmend.io/policy-checksum: {{ include "fleetmend.policy" .root | sha256sum }}
      {{- end }}
    spec:
      serviceAccountName: fleetmend-{{ .component }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      terminationGracePeriodSeconds: {{ .grace }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {{- include "fleetmend.selector" .root | nindent 20 }}
                    app.kubernetes.io/component: {{ .component }}
      {{- with $values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "fleetmend.image" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: ["fleetmend", {{ .component | quote }}]
          env:
            {{- include "fleetmend.pod-facts" . | nindent 12 }}
            {{- include "fleetmend.variables" (merge (dict) $values.env .environment (include "fleetmend.temporal-variables" .root | fromYaml)) | nindent 12 }}
          envFrom:
            - secretRef: {name: {{ .root.Values.temporal.secret }}}
          ports:
            - {name: health, containerPort: {{ .port }}}
          {{- include "fleetmend.probes" . | nindent 10 }}
          resources: {{- toYaml $values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          terminationMessagePolicy: FallbackToLogsOnError
          volumeMounts:
            - {name: temporal, mountPath: /etc/fleetmend/temporal, readOnly: true}
      volumes:
        - name: temporal
          secret:
            secretName: {{ .root.Values.temporal.secret }}
            defaultMode: 0440
---
# One at a time, so that a drain of the control plane never takes both.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: fleetmend-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "fleetmend.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "fleetmend.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The pod's own address, on which alone it serves its health. */}}
{{- define "fleetmend.pod-facts" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}

{{- define "fleetmend.variables" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "fleetmend.temporal-variables" -}}
{{- with .Values.temporal }}
{{- if .configFile }}
TEMPORAL_CONFIG_FILE: /etc/fleetmend/temporal/{{ .configFile }}
{{- end }}
{{- if .profile }}
TEMPORAL_PROFILE: {{ .profile | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fleetmend.probes" -}}
{{- /* A start may wait for Temporal and the API server for as long as they are away: that is unready, not dead. */ -}}
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
  initialDelaySeconds: 10
{{- if ne .component "agent" }}
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}
{{- end }}
