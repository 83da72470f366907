{{/*
Settings as environment. It stands in the pods' templates and not in a ConfigMap, so a changed value rolls the pods that
see it and no others. What may change without a restart (prompts, Secrets) is never here.
*/}}

{{/* A component's whole environment as a list. Arguments: root, component, and env if the settings are not named as it.
     Fails if extraEnv repeats a name. */}}
{{- define "kubeharness.env" -}}
{{- $component := .component -}}
{{- $own := include (printf "kubeharness.env.%s" (default $component .env)) .root | fromYamlArray -}}
{{- $names := list -}}
{{- range $own }}{{ $names = append $names .name }}{{ end -}}
{{- $extra := (get .root.Values $component).extraEnv -}}
{{- range $extra -}}
{{- if has .name $names -}}
{{- fail (printf "%s.extraEnv: %s is set already; use the value that stands for it" $component .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- toYaml (concat $own (default list $extra)) -}}
{{- end -}}

{{- define "kubeharness.env.common" -}}
{{ include "kubeharness.env.logging" . }}
- name: KUBEHARNESS_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "kubeharness.databaseSecret" . }}
      key: {{ .Values.database.keys.url }}
- name: KUBEHARNESS_DATABASE_DIRECT_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "kubeharness.databaseSecret" . }}
      key: {{ .Values.database.keys.directUrl }}
      optional: true
{{- end -}}

{{- define "kubeharness.env.logging" -}}
- name: KUBEHARNESS_LOG_FORMAT
  value: {{ .Values.logging.format }}
- name: KUBEHARNESS_LOG_LEVEL
  value: {{ .Values.logging.level }}
{{- end -}}

{{- define "kubeharness.env.serving" -}}
{{ include "kubeharness.env.common" . }}
- name: KUBEHARNESS_DATABASE_POOLED
  value: {{ .Values.database.pooled | quote }}
- name: KUBEHARNESS_INSTALLATION_ID
  value: {{ .Release.Namespace }}/{{ .Release.Name }}
- name: KUBEHARNESS_HEALTH_HOST
  value: 0.0.0.0
- name: KUBEHARNESS_HEALTH_PORT
  value: "8481"
{{- end -}}

{{/* An unready pod says why as its own Event, and has to know itself for that. */}}
{{- define "kubeharness.env.pod" -}}
- name: KUBEHARNESS_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: KUBEHARNESS_POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: KUBEHARNESS_POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{- end -}}

{{- define "kubeharness.env.gateway" -}}
{{ include "kubeharness.env.serving" . }}
- name: KUBEHARNESS_HOST
  value: 0.0.0.0
- name: KUBEHARNESS_PORT
  value: "8484"
- name: KUBEHARNESS_ROOT_PATH
  value: {{ .Values.pathPrefix | quote }}
- name: KUBEHARNESS_DEFAULT_NAMESPACE
  value: {{ default .Release.Namespace .Values.defaultNamespace }}
- name: KUBEHARNESS_AUTH
  value: {{ join "," .Values.auth.modes }}
{{- with .Values.auth.audiences }}
- name: KUBEHARNESS_AUTH_AUDIENCES
  value: {{ join "," . | quote }}
{{- end }}
{{- if .Values.auth.insecure }}
- name: KUBEHARNESS_AUTH_INSECURE
  value: "true"
{{- end }}
{{- if has "token" .Values.auth.modes }}
- name: KUBEHARNESS_TOKENS_FILE
  value: /etc/kubeharness/tokens/tokens.json
{{- end }}
- name: KUBEHARNESS_WAIT_SECONDS
  value: {{ .Values.gateway.waitSeconds | quote }}
- name: KUBEHARNESS_STREAM_CLOSE_SECONDS
  value: {{ .Values.gateway.streamCloseSeconds | quote }}
- name: KUBEHARNESS_MAX_BODY_BYTES
  value: {{ int64 .Values.gateway.maxBodyBytes | quote }}
- name: KUBEHARNESS_POLL_MILLISECONDS
  value: {{ int64 .Values.gateway.pollMilliseconds | quote }}
{{- end -}}

{{- define "kubeharness.env.worker" -}}
{{ include "kubeharness.env.serving" . }}
{{ include "kubeharness.env.pod" . }}
- name: KUBEHARNESS_SECRETS
  value: kubernetes
- name: KUBEHARNESS_SECRETS_GRANT
  value: {{ include "kubeharness.secretsGrant" . }}
- name: KUBEHARNESS_WORKER_SLOTS
  value: {{ int64 .Values.worker.slots | quote }}
- name: KUBEHARNESS_LEASE_SECONDS
  value: {{ .Values.worker.leaseSeconds | quote }}
- name: KUBEHARNESS_POLL_MILLISECONDS
  value: {{ int64 .Values.worker.pollMilliseconds | quote }}
- name: KUBEHARNESS_SWEEP_MILLISECONDS
  value: {{ int64 .Values.worker.sweepMilliseconds | quote }}
- name: KUBEHARNESS_DRAIN_SECONDS
  value: {{ .Values.worker.drainSeconds | quote }}
{{- end -}}

{{- define "kubeharness.env.operator" -}}
{{ include "kubeharness.env.serving" . }}
{{ include "kubeharness.env.pod" . }}
- name: KUBEHARNESS_NAMESPACES
  value: {{ join "," .Values.namespaces | quote }}
- name: KUBEHARNESS_WATCH_SILENCE_SECONDS
  value: {{ int64 .Values.operator.watchSilenceSeconds | quote }}
{{- end -}}

{{- define "kubeharness.env.migrate" -}}
{{ include "kubeharness.env.common" . }}
- name: KUBEHARNESS_MIGRATION_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "kubeharness.databaseSecret" . }}
      key: {{ .Values.database.keys.migrationUrl }}
      optional: true
- name: KUBEHARNESS_MIGRATE_SECONDS
  value: {{ .Values.migrate.databaseWaitSeconds | quote }}
{{- with .Values.database.appRole }}
- name: KUBEHARNESS_APP_ROLE
  value: {{ . }}
{{- end }}
{{- end -}}
