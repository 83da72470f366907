{{/* The right to say, as an Event on its own pod, why it is unready. Arguments: root, component. */}}
{{- define "kubeharness.events.role" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "kubeharness.metadata" (dict "root" .root "suffix" (printf "%s-events" .component)) | nindent 2 }}
  labels:
    {{- include "kubeharness.labels" . | nindent 4 }}
rules:
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* Arguments: root, component. */}}
{{- define "kubeharness.events.rolebinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "kubeharness.metadata" (dict "root" .root "suffix" (printf "%s-events" .component)) | nindent 2 }}
  labels:
    {{- include "kubeharness.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "kubeharness.fullname" .root }}-{{ .component }}-events
subjects:
- kind: ServiceAccount
  name: {{ include "kubeharness.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
{{- end -}}
