{{/* Parts of network policies. Several addresses of one list share their ports. */}}

{{/* Arguments: cidrs, ports, and optionally a protocol. No addresses: any. */}}
{{- define "kubeharness.network.egress" -}}
- ports:
  {{- range .ports }}
  - {protocol: TCP, port: {{ int64 . }}}
  {{- end }}
  {{- with .cidrs }}
  to:
  {{- range . }}
  - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
  {{- end }}
{{- end -}}

{{/* Names, wherever they are resolved: in the cluster or by a cache on the node. */}}
{{- define "kubeharness.network.dns" -}}
- ports:
  - {protocol: UDP, port: 53}
  - {protocol: TCP, port: 53}
{{- end -}}

{{- define "kubeharness.network.postgres" -}}
{{- if .Values.devPostgres.enabled -}}
- ports:
  - {protocol: TCP, port: 5432}
  to:
  - podSelector:
      matchLabels:
        {{- include "kubeharness.selector" (dict "root" . "component" "postgres") | nindent 8 }}
{{- else -}}
{{- include "kubeharness.network.egress" .Values.networkPolicy.postgres -}}
{{- end -}}
{{- end -}}

{{- define "kubeharness.network.apiServer" -}}
{{- include "kubeharness.network.egress" .Values.networkPolicy.apiServer -}}
{{- end -}}

{{/* Port 443 of any address, private ones excepted. */}}
{{- define "kubeharness.network.publicHttps" -}}
{{- $four := list -}}
{{- $six := list -}}
{{- range .Values.networkPolicy.publicHttps.except -}}
{{- if contains ":" . }}{{ $six = append $six . }}{{ else }}{{ $four = append $four . }}{{ end -}}
{{- end -}}
- ports:
  - {protocol: TCP, port: 443}
  to:
  - ipBlock:
      cidr: 0.0.0.0/0
      {{- with $four }}
      except:
      {{- toYaml . | nindent 6 }}
      {{- end }}
  - ipBlock:
      cidr: ::/0
      {{- with $six }}
      except:
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}

{{/* One entry of networkPolicy.toolServers. */}}
{{- define "kubeharness.network.toolServer" -}}
- ports:
  {{- range .ports }}
  - {protocol: TCP, port: {{ int64 . }}}
  {{- end }}
  to:
  {{- if .cidr }}
  - ipBlock: {cidr: {{ .cidr | quote }}}
  {{- else }}
  - namespaceSelector:
      matchLabels:
        kubernetes.io/metadata.name: {{ .namespace }}
    {{- with .podLabels }}
    podSelector:
      matchLabels:
        {{- toYaml . | nindent 8 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* The metrics' port for those who are named. */}}
{{- define "kubeharness.network.metrics" -}}
{{- with .Values.networkPolicy.metricsFrom -}}
- ports:
  - {protocol: TCP, port: 8481}
  from:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Everything of a policy up to its rules. Arguments: root, component. */}}
{{- define "kubeharness.network.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "kubeharness.metadata" (dict "root" .root "suffix" .component) | nindent 2 }}
  labels:
    {{- include "kubeharness.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "kubeharness.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end -}}
