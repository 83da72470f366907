{{/*
What the pods have in common. A component is one of gateway, worker, operator, migrate; its values stand under its name.
*/}}

{{/* Labels and annotations of a pod: only what selects it and what the values add, so that a new chart version alone
     replaces no pod. Arguments: root, component. */}}
{{- define "kubeharness.pod.metadata" -}}
{{- $own := get .root.Values .component -}}
labels:
  {{- include "kubeharness.selector" . | nindent 2 }}
  {{- with $own.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $own.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The head of a pod's spec. No service links: they would set KUBEHARNESS_… variables. Arguments: root, component, token. */}}
{{- define "kubeharness.pod.spec" -}}
{{- $own := get .root.Values .component -}}
serviceAccountName: {{ include "kubeharness.fullname" .root }}-{{ .component }}
automountServiceAccountToken: {{ .token }}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  {{- include "kubeharness.pod.security" .root | nindent 2 }}
{{- with $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "kubeharness.pod.security" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kubeharness.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What every container of a component has. Arguments: root, component, and env if it takes another environment. */}}
{{- define "kubeharness.container" -}}
{{- $own := get .root.Values .component -}}
image: {{ include "kubeharness.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "kubeharness.container.security" . | nindent 2 }}
{{- with $own.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
{{- include "kubeharness.env" . | nindent 0 }}
{{- end -}}

{{/* Liveness never asks the database; readiness says why not. Eight seconds of a blocked loop restart nothing. */}}
{{- define "kubeharness.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* Arguments: root, component. */}}
{{- define "kubeharness.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- with (get .root.Values .component).extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Arguments: root, component. */}}
{{- define "kubeharness.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with (get .root.Values .component).extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Arguments: root, component. Spread within one revision, so that a rollout does not bend it. */}}
{{- define "kubeharness.topologySpread" -}}
{{- $spread := .root.Values.topologySpread -}}
{{- $given := . -}}
{{- with $spread.keys -}}
topologySpreadConstraints:
{{- range . }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
  labelSelector:
    matchLabels:
      {{- include "kubeharness.selector" $given | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- end -}}
