{{- define "torchrelay.name" -}}
{{- default "torchrelay" .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "torchrelay.labels" -}}
app.kubernetes.io/name: torchrelay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* context, component */ -}}
{{- define "torchrelay.selector" -}}
app.kubernetes.io/name: torchrelay
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* context, image: REGISTRY/NAME:TAG */ -}}
{{- define "torchrelay.image" -}}
{{- $registry := .context.Values.image.registry -}}
{{- $path := ternary (printf "%s/%s" $registry .image.name) .image.name (ne $registry "") -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $path .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $path (default .context.Chart.AppVersion .context.Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "torchrelay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "torchrelay.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end -}}

{{- /* context, component: replicas of one component go to different nodes where they can */ -}}
{{- define "torchrelay.spread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "torchrelay.selector" . | nindent 12 }}
{{- end -}}

{{- define "torchrelay.matchConditions" -}}
{{- $wanted := toString .Values.webhook.matchConditions -}}
{{- if eq $wanted "auto" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- else if eq $wanted "true" -}}true{{- end -}}
{{- end -}}

{{- /* How a program of ours writes its lines; nothing where that is as usual. */ -}}
{{- define "torchrelay.logEnv" -}}
{{- if eq .Values.logs.format "json" }}
- {name: TORCHRELAY_LOG, value: json}
{{- end }}
{{- with .Values.logs.level }}
- {name: TORCHRELAY_LOG_LEVEL, value: {{ . }}}
{{- end }}
{{- end -}}
