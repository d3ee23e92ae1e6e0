package main

// template is a Pod template that every kind with Pods can have.
const template = `"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
const once = `"template":{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}`
const selector = `"selector":{"matchLabels":{"a":"b"}}`
const request = `LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIRk1HNENBUUF3RERFS01BZ0dBMVVFQXd3QllUQlpNQk1HQnlxR1NNNDlBZ0VHQ0NxR1NNNDlBd0VIQTBJQQpCSmlzU2RKNzE4YkgzM0Y3S1lPRHljYTVENzdWSEl5b1ZVRFd3SmxNSWZhM2lBb1VKS09BYUR4Z1h0ekhrLzFNCk4yWjB0YVZ4cWxFVkFmRFY5TmVhYW1DZ0FEQUtCZ2dxaGtqT1BRUURBZ05IQURCRUFpQUJBNXByc2c4akNGL2MKQlZ0MGpLSmJwS0hYWmxpdWhDcEVsZ0tyM3N0eUpRSWdXQ05UUllCWlBvOFVzZUZUVXMxUWF2NEZTdW9tSFVURQpIVk16YzZKa2ptUT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==`

// base is a small valid object of a kind, which is written in variations.
type base struct {
	version, kind string
	cluster       bool
	object        string
	// leave are fields that other kinds have too, whose variations are theirs.
	leave []string
}

// usual and stored are the names of the variations and of the stored object. Those of an IPAddress are addresses.
func (b base) usual() string {
	if b.kind == "IPAddress" {
		return "10.1.2.3"
	}
	return "round-trip"
}

func (b base) stored() string {
	if b.kind == "IPAddress" {
		return "10.1.2.4"
	}
	return "stored"
}

var bases = []base{
	{"v1", "ConfigMap", false, `{"data":{"a":"1"}}`, nil},
	{"v1", "Secret", false, `{"data":{"a":"MQ=="}}`, nil},
	{"v1", "Service", false, `{"spec":{"selector":{"a":"b"},"ports":[{"name":"p","port":80}]}}`, nil},
	{"v1", "ServiceAccount", false, `{}`, nil},
	{"v1", "Pod", false, `{"spec":{"containers":[{"name":"c","image":"i"}]}}`, []string{"spec.initContainers", "spec.ephemeralContainers"}},
	{"v1", "PodTemplate", false, `{` + template + `}`, []string{"template.spec"}},
	{"v1", "ReplicationController", false, `{"spec":{"selector":{"a":"b"},` + template + `}}`, []string{"spec.template.spec"}},
	{"v1", "Endpoints", false, `{"subsets":[{"addresses":[{"ip":"10.1.0.1"}],"ports":[{"port":80}]}]}`, nil},
	{"v1", "Event", false, `{"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},"reason":"r","message":"m","type":"Normal"}`, nil},
	{"v1", "LimitRange", false, `{"spec":{"limits":[{"type":"Container"}]}}`, nil},
	{"v1", "ResourceQuota", false, `{"spec":{"hard":{"pods":"1"}}}`, nil},
	{"v1", "PersistentVolume", true, `{"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/a"}}}`, nil},
	{"v1", "PersistentVolumeClaim", false, `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, nil},
	{"v1", "Node", true, `{}`, nil},
	{"v1", "Namespace", true, `{}`, nil},
	// The defaults of a template are not those of a Pod in all fields.
	{"apps/v1", "Deployment", false, `{"spec":{` + selector + `,` + template + `}}`, []string{"spec.template.spec.initContainers", "spec.template.spec.ephemeralContainers"}},
	{"apps/v1", "ReplicaSet", false, `{"spec":{` + selector + `,` + template + `}}`, []string{"spec.template.spec"}},
	{"apps/v1", "StatefulSet", false, `{"spec":{"serviceName":"s",` + selector + `,` + template + `}}`, []string{"spec.template.spec"}},
	{"apps/v1", "DaemonSet", false, `{"spec":{` + selector + `,` + template + `}}`, []string{"spec.template.spec"}},
	{"apps/v1", "ControllerRevision", false, `{"revision":1,"data":{"apiVersion":"v1","kind":"ConfigMap"}}`, nil},
	{"batch/v1", "Job", false, `{"spec":{` + once + `}}`, []string{"spec.template.spec"}},
	{"batch/v1", "CronJob", false, `{"spec":{"schedule":"0 3 * * *","jobTemplate":{"spec":{` + once + `}}}}`, []string{"spec.jobTemplate.spec"}},
	// The embedded server keeps one metric in this version.
	{"autoscaling/v1", "HorizontalPodAutoscaler", false, `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`, []string{"status"}},
	{"autoscaling/v2", "HorizontalPodAutoscaler", false, `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`, nil},
	{"policy/v1", "PodDisruptionBudget", false, `{"spec":{` + selector + `}}`, nil},
	{"networking.k8s.io/v1", "Ingress", false, `{"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`, nil},
	{"networking.k8s.io/v1", "IngressClass", true, `{"spec":{"controller":"example.org/c"}}`, nil},
	{"networking.k8s.io/v1", "IPAddress", true, `{"metadata":{"name":"10.1.2.3"},"spec":{"parentRef":{"resource":"services","namespace":"default","name":"s"}}}`, nil},
	{"networking.k8s.io/v1", "ServiceCIDR", true, `{"spec":{"cidrs":["fd07::/112"]}}`, nil},
	{"networking.k8s.io/v1", "NetworkPolicy", false, `{"spec":{"podSelector":{}}}`, nil},
	{"discovery.k8s.io/v1", "EndpointSlice", false, `{"addressType":"IPv4","endpoints":[{"addresses":["10.1.0.1"]}],"ports":[{"name":"p","port":80}]}`, nil},
	{"events.k8s.io/v1", "Event", false, `{"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"example.org/c","reportingInstance":"i","action":"a","reason":"r","type":"Normal","regarding":{"kind":"Pod","name":"p","namespace":"default"}}`, nil},
	{"coordination.k8s.io/v1", "Lease", false, `{"spec":{"holderIdentity":"h"}}`, nil},
	{"rbac.authorization.k8s.io/v1", "Role", false, `{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`, nil},
	{"rbac.authorization.k8s.io/v1", "ClusterRole", true, `{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`, nil},
	{"rbac.authorization.k8s.io/v1", "RoleBinding", false, `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"},"subjects":[{"kind":"User","name":"u"}]}`, nil},
	{"rbac.authorization.k8s.io/v1", "ClusterRoleBinding", true, `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":"u"}]}`, nil},
	{"storage.k8s.io/v1", "StorageClass", true, `{"provisioner":"example.org/p"}`, nil},
	{"storage.k8s.io/v1", "CSIDriver", true, `{"spec":{}}`, nil},
	{"storage.k8s.io/v1", "CSINode", true, `{"spec":{"drivers":[{"name":"d","nodeID":"n"}]}}`, nil},
	{"storage.k8s.io/v1", "VolumeAttachment", true, `{"spec":{"attacher":"a","nodeName":"n","source":{"persistentVolumeName":"p"}}}`, []string{"spec.source.inlineVolumeSpec"}},
	{"storage.k8s.io/v1", "CSIStorageCapacity", false, `{"storageClassName":"s"}`, nil},
	{"storage.k8s.io/v1", "VolumeAttributesClass", true, `{"driverName":"d","parameters":{"a":"b"}}`, nil},
	{"scheduling.k8s.io/v1", "PriorityClass", true, `{"value":1}`, nil},
	{"node.k8s.io/v1", "RuntimeClass", true, `{"handler":"h"}`, nil},
	{"flowcontrol.apiserver.k8s.io/v1", "FlowSchema", true, `{"spec":{"priorityLevelConfiguration":{"name":"exempt"},"matchingPrecedence":500,"rules":[{"subjects":[{"kind":"User","user":{"name":"u"}}],"nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/a"]}]}]}}`, nil},
	{"flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", true, `{"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":5,"limitResponse":{"type":"Reject"}}}}`, nil},
	{"admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", true, `{"webhooks":[{"name":"a.example.org","clientConfig":{"url":"https://example.org"},"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":["CREATE"],"apiGroups":["typed.dev"],"apiVersions":["v1"],"resources":["nothing"]}]}]}`, nil},
	{"admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", true, `{"webhooks":[{"name":"a.example.org","clientConfig":{"url":"https://example.org"},"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":["CREATE"],"apiGroups":["typed.dev"],"apiVersions":["v1"],"resources":["nothing"]}]}]}`, nil},
	{"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", true, `{"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["typed.dev"],"apiVersions":["v1"],"resources":["nothing"]}]},"validations":[{"expression":"true"}]}}`, nil},
	{"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", true, `{"spec":{"policyName":"p","validationActions":["Deny"]}}`, nil},
	{"certificates.k8s.io/v1", "CertificateSigningRequest", true, `{"spec":{"request":"` + request + `","signerName":"example.org/s","usages":["client auth"]}}`, nil},
}
