{{- define "weft.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weft.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "weft.labels" -}}
{{ include "weft.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "weft.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "weft.secretName" -}}
{{ .Values.auth.existingSecret | default (printf "%s-token" (include "weft.fullname" .)) }}
{{- end -}}

{{- define "weft.serverUrl" -}}
{{ printf "http://%s-server:%d" (include "weft.fullname" .) (int .Values.server.port) }}
{{- end -}}

{{- /* What every pod has in common: nobody is root, nothing of the image is written, no API server is asked. */ -}}
{{- define "weft.podDefaults" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .role.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .role.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .role.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weft.containerDefaults" -}}
image: {{ include "weft.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources: {{- toYaml .role.resources | nindent 2 }}
{{- end -}}

{{- /* An agent's liveness: it touches the file at every turn of its heartbeat, whether or not the server answers. */ -}}
{{- define "weft.agentProbes" -}}
startupProbe:
  exec:
    command: [test, -e, /tmp/alive]
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  exec:
    command: [sh, -c, 'test -n "$(find /tmp/alive -mmin -2)"']
  periodSeconds: 30
  timeoutSeconds: 5
{{- end -}}

{{- define "weft.token" -}}
{{- if .Values.auth.token -}}
{{- .Values.auth.token -}}
{{- else -}}
{{- $kept := lookup "v1" "Secret" .Release.Namespace (include "weft.secretName" .) -}}
{{- if and $kept $kept.data -}}
{{- index $kept.data "token" | b64dec -}}
{{- else -}}
{{- randAlphaNum 40 -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weft.extraEnv" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{- define "weft.dataVolume" -}}
- name: data
  {{- if .Values.data.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .Values.data.existingClaim }}
    readOnly: true
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end -}}

{{- /* Where snapshots are kept: a URL, the claim that every pod mounts, or nowhere. */ -}}
{{- define "weft.snapshots" -}}
{{- with .Values.snapshots }}{{ .location | default (ternary "/snapshots" "" (ne .existingClaim "")) }}{{ end -}}
{{- end -}}

{{- define "weft.snapshotsMount" -}}
{{- if .Values.snapshots.existingClaim }}
- name: snapshots
  mountPath: /snapshots
{{- end }}
{{- end -}}

{{- define "weft.snapshotsVolume" -}}
{{- with .Values.snapshots.existingClaim }}
- name: snapshots
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- end -}}
