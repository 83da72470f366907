{{/*
Names, labels and references that every object uses. Nothing here looks at the cluster, rolls a die or tells the time:
two renders give equal bytes.
*/}}

{{- define "kubeharness.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that the longest suffix, the migrate Job's, stays below 63. */}}
{{- define "kubeharness.fullname" -}}
{{- $name := include "kubeharness.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name and namespace of a namespaced object. Arguments: root, suffix. */}}
{{- define "kubeharness.metadata" -}}
name: {{ include "kubeharness.fullname" .root }}-{{ .suffix }}
namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* What selects the pods of a component; never changes. Arguments: root, component. */}}
{{- define "kubeharness.selector" -}}
app.kubernetes.io/name: {{ include "kubeharness.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The labels of an object. Arguments: root, component. */}}
{{- define "kubeharness.labels" -}}
{{ include "kubeharness.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kubeharness.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "kubeharness.databaseSecret" -}}
{{- default (printf "%s-database" (include "kubeharness.fullname" .)) .Values.database.existingSecret -}}
{{- end -}}

{{- define "kubeharness.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "kubeharness.fullname" .)) .Values.auth.existingTokensSecret -}}
{{- end -}}

{{/* "true" if the chart owns the token Secret and the migrate Job fills it. */}}
{{- define "kubeharness.ensuresToken" -}}
{{- if and (has "token" .Values.auth.modes) (not .Values.auth.existingTokensSecret) -}}true{{- end -}}
{{- end -}}

{{/* "true" if the gateway asks the API server who calls and what they may. */}}
{{- define "kubeharness.reviews" -}}
{{- if has "kubernetes" .Values.auth.modes -}}true{{- end -}}
{{- end -}}

{{/* What the gateway's routes match: the prefix, or all. */}}
{{- define "kubeharness.path" -}}
{{- default "/" .Values.pathPrefix -}}
{{- end -}}

{{/* The Role that lets workers read Secrets: the kind of it and its name, as `kubectl create rolebinding` takes them. */}}
{{- define "kubeharness.secretsGrant" -}}
{{- $role := ternary "role" "clusterrole" (not (empty .Values.namespaces)) -}}
{{- $name := include "kubeharness.fullname" . -}}
--{{ $role }}={{ $name }}-worker-secrets --serviceaccount={{ .Release.Namespace }}:{{ $name }}-worker
{{- end -}}
