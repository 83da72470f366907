{{/* Workers read a Secret whose name they know; they list none. */}}
{{- define "kubeharness.worker.rules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end -}}
