{{/* The release's name, short enough for all names made of it: labels and names of Services have 63 characters at most. */}}
{{- define "nsq.release" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Labels that choose the pods of one service. The argument is (dict "root" $ "name" "nsqd"), here and below. */}}
{{- define "nsq.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "nsq.labels" -}}
{{ include "nsq.selector" . }}
app.kubernetes.io/part-of: nsq
{{- end }}

{{/* Labels of objects, which, unlike those of pods, may change with the chart's version. */}}
{{- define "nsq.objectLabels" -}}
{{ include "nsq.labels" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "nsq.image" -}}
{{ .root.Values.image.prefix }}{{ (index .root.Values .name).image }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* What the pods of all services have before their containers. */}}
{{- define "nsq.pod" -}}
automountServiceAccountToken: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with (index .root.Values .name).nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index .root.Values .name).tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Pods of one service are spread over machines: two that fail together are as good as one. */}}
{{- define "nsq.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "nsq.selector" . | nindent 8 }}
{{- end }}

{{- define "nsq.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
