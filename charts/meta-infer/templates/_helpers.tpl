{{/* Names, labels and image references that several templates share. */}}

{{- define "meta-infer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The prefix of every name; 45 characters leave room for the longest suffix. */}}
{{- define "meta-infer.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" }}
{{- else if contains (include "meta-infer.name" .) .Release.Name }}
{{- .Release.Name | trunc 45 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "meta-infer.name" .) | trunc 45 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "meta-infer.selectorLabels" -}}
app.kubernetes.io/name: {{ include "meta-infer.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "meta-infer.labels" -}}
{{ include "meta-infer.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: meta-infer
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of what runs only while the release is uninstalled: not those that the operator's Service and Deployment select. */}}
{{- define "meta-infer.restoreLabels" -}}
app.kubernetes.io/name: {{ include "meta-infer.name" . | trunc 55 }}-restore
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: meta-infer
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "meta-infer.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "meta-infer.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* An image reference from {repository, tag, digest}; the digest wins, an empty tag is the chart's appVersion. */}}
{{- define "meta-infer.image" -}}
{{- $image := index . 0 }}
{{- $root := index . 1 }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- define "meta-infer.claimName" -}}
{{- default (printf "%s-store" (include "meta-infer.fullname" .)) .Values.store.persistence.existingClaim }}
{{- end }}

{{- define "meta-infer.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "meta-infer.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{/* Namespaces in which the namespaced roles are bound: those with adaptations, and the release's own for node probes. */}}
{{- define "meta-infer.boundNamespaces" -}}
{{- toJson (uniq (append .Values.rbac.targetNamespaces .Release.Namespace)) }}
{{- end }}

{{/* Bind ClusterRole FULLNAME-PURPOSE everywhere, or in a list of namespaces. Arguments: root, purpose, namespaces (JSON). */}}
{{- define "meta-infer.bindNamespaced" -}}
{{- $root := index . 0 }}
{{- $purpose := index . 1 }}
{{- $name := printf "%s-%s" (include "meta-infer.fullname" $root) $purpose }}
{{- if $root.Values.rbac.targetNamespaces }}
{{- range $namespace := fromJsonArray (index . 2) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels:
    {{- include "meta-infer.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
{{ include "meta-infer.subjects" $root }}
{{- end }}
{{- else }}
---
{{ include "meta-infer.bindCluster" (list $root $purpose) }}
{{- end }}
{{- end }}

{{/* Bind ClusterRole FULLNAME-PURPOSE in the whole cluster. Arguments: root, purpose. */}}
{{- define "meta-infer.bindCluster" -}}
{{- $root := index . 0 }}
{{- $name := printf "%s-%s" (include "meta-infer.fullname" $root) (index . 1) }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "meta-infer.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
{{ include "meta-infer.subjects" $root }}
{{- end }}
