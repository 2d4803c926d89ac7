{{/* Names, labels and the release's image. Names of objects are fixed: one fleetmend a cluster. */}}

{{- define "fleetmend.selector" -}}
app.kubernetes.io/name: fleetmend
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fleetmend.labels" -}}
{{ include "fleetmend.selector" . }}
app.kubernetes.io/part-of: fleetmend
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What Helm itself writes to what it owns: a hook gets it from nobody else. */}}
{{- define "fleetmend.owner" -}}
meta.helm.sh/release-name: {{ .Release.Name }}
meta.helm.sh/release-namespace: {{ .Release.Namespace }}
{{- end }}

{{/*
Take out of a map what is null. Null takes a default away: at an installation Helm does that, at `upgrade --reuse-values` it hands the
null on.
*/}}
{{- define "fleetmend.forget-nulls" -}}
{{- $map := . -}}
{{- range $key, $value := $map -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $map $key -}}
{{- else if kindIs "map" $value -}}
{{- include "fleetmend.forget-nulls" $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fleetmend.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* The port of a host engine that is reached over the network; empty = it is a socket, or dcgmi's default. */}}
{{- define "fleetmend.host-engine-port" -}}
{{- $engine := .Values.dcgm.hostEngine | default "" -}}
{{- if not (hasPrefix "unix://" $engine) -}}
{{- regexFind "[0-9]+$" $engine -}}
{{- end -}}
{{- end }}

{{/* The namespaces whose Deployments and StatefulSets protect the nodes that they run on, this one first. */}}
{{- define "fleetmend.protected" -}}
{{- $scope := dig "scope" dict (.Values.policy | default dict) -}}
{{- prepend (concat .Values.protectedNamespaces (dig "protected_namespaces" list $scope)) .Release.Namespace | uniq | toJson -}}
{{- end }}

{{/* The policy as it is stored: what the values say, and the protected namespaces. */}}
{{- define "fleetmend.policy" -}}
{{- $scope := merge (dict "protected_namespaces" (include "fleetmend.protected" . | fromJsonArray)) (dig "scope" dict .Values.policy) -}}
{{- merge (dict "scope" $scope) .Values.policy | toYaml -}}
{{- end }}

{{/* Who acts as a person: the account for automation, and whom the values name. */}}
{{- define "fleetmend.operators" -}}
- {kind: ServiceAccount, name: fleetmend-operator, namespace: {{ .Release.Namespace }}}
{{- range .Values.operators.users }}
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: {{ . | quote }}}
{{- end }}
{{- range .Values.operators.groups }}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: {{ . | quote }}}
{{- end }}
{{- end }}
