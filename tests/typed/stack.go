package main

import (
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var stackVersion = schema.GroupVersion{Group: "typed.dev", Version: "v1"}

// Stack is the custom kind of the controller: a Deployment with what belongs to it.
type Stack struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              StackSpec   `json:"spec"`
	Status            StackStatus `json:"status,omitempty"`
}

// StackSpec is what a user wants.
type StackSpec struct {
	Replicas int32             `json:"replicas"`
	Image    string            `json:"image,omitempty"`
	Config   map[string]string `json:"config,omitempty"`
	// SecretName is a Secret of the namespace that the stack depends on.
	SecretName string `json:"secretName,omitempty"`
}

// StackStatus is what the controller reports.
type StackStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Replicas           int32              `json:"replicas"`
	Selector           string             `json:"selector,omitempty"`
	SecretVersion      string             `json:"secretVersion,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// StackList is a list of stacks.
type StackList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Stack `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (s *Stack) DeepCopyObject() runtime.Object { return s.deepCopy() }

func (s *Stack) deepCopy() *Stack {
	out := *s
	out.ObjectMeta = *s.ObjectMeta.DeepCopy()
	if s.Spec.Config != nil {
		out.Spec.Config = make(map[string]string, len(s.Spec.Config))
		for key, value := range s.Spec.Config {
			out.Spec.Config[key] = value
		}
	}
	if s.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(s.Status.Conditions))
		for at := range s.Status.Conditions {
			s.Status.Conditions[at].DeepCopyInto(&out.Status.Conditions[at])
		}
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *StackList) DeepCopyObject() runtime.Object {
	out := *l
	out.ListMeta = *l.ListMeta.DeepCopy()
	out.Items = make([]Stack, len(l.Items))
	for at := range l.Items {
		out.Items[at] = *l.Items[at].deepCopy()
	}
	return &out
}

func addStacks(types *runtime.Scheme) error {
	types.AddKnownTypes(stackVersion, &Stack{}, &StackList{})
	metav1.AddToGroupVersion(types, stackVersion)
	return nil
}

func ptr[T any](value T) *T { return &value }

// definition is as controller-gen writes it, with defaults in spec and status as the kinds of Flux have them.
func definition() *apiextensions.CustomResourceDefinition {
	text := apiextensions.JSONSchemaProps{Type: "string"}
	number := func(value string) apiextensions.JSONSchemaProps {
		return apiextensions.JSONSchemaProps{Type: "integer", Format: "int32", Default: &apiextensions.JSON{Raw: []byte(value)}}
	}
	condition := apiextensions.JSONSchemaProps{
		Type:     "object",
		Required: []string{"lastTransitionTime", "message", "reason", "status", "type"},
		Properties: map[string]apiextensions.JSONSchemaProps{
			"lastTransitionTime": {Type: "string", Format: "date-time"},
			"message":            {Type: "string", MaxLength: ptr(int64(32768))},
			"observedGeneration": {Type: "integer", Format: "int64", Minimum: ptr(0.0)},
			"reason":             {Type: "string", MinLength: ptr(int64(1)), Pattern: `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`},
			"status":             {Type: "string", Enum: []apiextensions.JSON{{Raw: []byte(`"True"`)}, {Raw: []byte(`"False"`)}, {Raw: []byte(`"Unknown"`)}}},
			"type":               {Type: "string"},
		},
	}
	spec := apiextensions.JSONSchemaProps{
		Type: "object",
		Properties: map[string]apiextensions.JSONSchemaProps{
			"replicas":   number("1"),
			"image":      {Type: "string", Default: &apiextensions.JSON{Raw: []byte(`"example.org/app:1"`)}},
			"config":     {Type: "object", AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Schema: &text}},
			"secretName": text,
		},
		XValidations: apiextensions.ValidationRules{{
			Rule: "!has(self.config) || !('forbidden' in self.config)", Message: "config must not have the key forbidden",
		}},
	}
	status := apiextensions.JSONSchemaProps{
		Type:    "object",
		Default: &apiextensions.JSON{Raw: []byte(`{"observedGeneration":-1}`)},
		Properties: map[string]apiextensions.JSONSchemaProps{
			"observedGeneration": {Type: "integer", Format: "int64"},
			"replicas":           {Type: "integer", Format: "int32"},
			"selector":           text,
			"secretVersion":      text,
			"conditions": {
				Type: "array", Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &condition},
				XListType: ptr("map"), XListMapKeys: []string{"type"},
			},
		},
	}
	return &apiextensions.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "stacks.typed.dev"},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: stackVersion.Group,
			Scope: apiextensions.NamespaceScoped,
			Names: apiextensions.CustomResourceDefinitionNames{Plural: "stacks", Singular: "stack", Kind: "Stack", ListKind: "StackList"},
			Versions: []apiextensions.CustomResourceDefinitionVersion{{
				Name: stackVersion.Version, Served: true, Storage: true,
				Subresources: &apiextensions.CustomResourceSubresources{
					Status: &apiextensions.CustomResourceSubresourceStatus{},
					Scale: &apiextensions.CustomResourceSubresourceScale{
						SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas", LabelSelectorPath: ptr(".status.selector"),
					},
				},
				SelectableFields: []apiextensions.SelectableField{{JSONPath: ".spec.image"}},
				Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{
					Type: "object", Required: []string{"spec"},
					Properties: map[string]apiextensions.JSONSchemaProps{
						"apiVersion": text, "kind": text, "metadata": {Type: "object"}, "spec": spec, "status": status,
					},
				}},
			}},
		},
	}
}
