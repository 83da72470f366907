{{/* People's rights. The verbs read, dispatch, steer, cancel and approve are the API's own, asked by auth mode kubernetes. */}}
{{- define "kubeharness.roles.kinds" -}}
[agents, modelproviders, toolservers]
{{- end -}}

{{/* Arguments: root, name, the default role to join. */}}
{{- define "kubeharness.roles.metadata" -}}
name: {{ include "kubeharness.fullname" .root }}-{{ .name }}
labels:
  {{- include "kubeharness.labels" (dict "root" .root "component" "roles") | nindent 2 }}
  {{- if .root.Values.rbac.aggregateToDefaultRoles }}
  rbac.authorization.k8s.io/aggregate-to-{{ .joins }}: "true"
  {{- end }}
{{- end -}}
