{{/* What the operator may do in a namespace that it serves; no verb on Secrets. */}}
{{- define "kubeharness.operator.rules" -}}
- apiGroups: [kubeharness.dev]
  resources: [agents, modelproviders, toolservers]
  verbs: [get, list, watch]
- apiGroups: [kubeharness.dev]
  resources: [agents/status, modelproviders/status, toolservers/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
