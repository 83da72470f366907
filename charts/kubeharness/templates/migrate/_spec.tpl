{{/*
The Job's spec. Its hash is part of the Job's name: a Job's template cannot change, so another spec is another Job, and
an unchanged one is not run again. No TTL: a Job that vanished would be made anew by each sync.
The token comes first: the gateway's pods start meanwhile, and find it the sooner.
*/}}
{{- define "kubeharness.migrate.spec" -}}
{{- $migrate := dict "root" . "component" "migrate" -}}
{{- $ensures := include "kubeharness.ensuresToken" . -}}
backoffLimit: 1000000
template:
  metadata:
    {{- include "kubeharness.pod.metadata" $migrate | nindent 4 }}
  spec:
    {{- include "kubeharness.pod.spec" (dict "root" . "component" "migrate" "token" (ternary "true" "false" (eq $ensures "true"))) | nindent 4 }}
    restartPolicy: OnFailure
    {{- if $ensures }}
    initContainers:
    - name: token-ensure
      command: [kubeharness, token, ensure, --namespace, {{ .Release.Namespace | quote }}, --secret, {{ include "kubeharness.tokensSecret" . | quote }}]
      {{- include "kubeharness.container" (dict "root" . "component" "migrate" "env" "logging") | nindent 6 }}
      volumeMounts:
      {{- include "kubeharness.volumeMounts" $migrate | nindent 6 }}
    {{- end }}
    containers:
    - name: migrate
      command: [kubeharness, migrate]
      {{- include "kubeharness.container" $migrate | nindent 6 }}
      volumeMounts:
      {{- include "kubeharness.volumeMounts" $migrate | nindent 6 }}
    volumes:
    {{- include "kubeharness.volumes" $migrate | nindent 4 }}
{{- end -}}
