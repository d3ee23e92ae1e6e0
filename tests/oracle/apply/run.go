package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	gvks "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

const (
	group      = "test.dev"
	customKind = "Thing"
)

// A run is a kind and what happens to one object of it. A step that is an
// error leaves the object as it was, but for updates, which always pass.
type run struct {
	Name string `json:"name,omitempty"`
	// Either schemas of a custom resource by version, by their place in the list,
	Custom map[string]int `json:"custom,omitempty"`
	// or a built-in kind.
	Builtin []string `json:"builtin,omitempty"`
	// What the object is at first, with its managedFields; none to create it.
	Live  object `json:"live,omitempty"`
	Steps []step `json:"steps"`
}

type object = map[string]any

type step struct {
	// apply, force or update.
	Do      string `json:"do"`
	Manager string `json:"by"`
	Version string `json:"at,omitempty"`
	// Subresource; with one, spec is reset, without one, status is, if Reset is set.
	Subresource string `json:"sub,omitempty"`
	Reset       bool   `json:"reset,omitempty"`
	Object      object `json:"obj"`

	// What came of it: the object if it is another than the one sent, its
	// managedFields, an error with its code.
	Result  object          `json:"is,omitempty"`
	Managed json.RawMessage `json:"managed,omitempty"`
	Error   string          `json:"error,omitempty"`
	Code    int             `json:"code,omitempty"`
	// Whether the error's text is another one each time.
	Unstable bool `json:"unstable,omitempty"`
}

// world is what a run happens in.
type world struct {
	kind      string
	versions  []string
	converter managedfields.TypeConverter
	schema    *schema.Schema
	// Type of objects by version.
	types map[string]schema.TypeRef
	empty object
	crd   bool
}

func customWorld(schemas map[string]*apiextensions.JSONSchemaProps) *world {
	models := map[string]*spec.Schema{}
	crd := &apiextensions.CustomResourceDefinition{}
	crd.Spec.Group = group
	crd.Spec.Names = apiextensions.CustomResourceDefinitionNames{Plural: "things", Singular: "thing", Kind: customKind, ListKind: customKind + "List"}
	crd.Spec.Scope = apiextensions.ClusterScoped
	versions := sortedKeys(schemas)
	for _, version := range versions {
		validation := &apiextensions.CustomResourceValidation{OpenAPIV3Schema: schemas[version]}
		if schemas[version] == nil {
			validation = nil
		}
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensions.CustomResourceDefinitionVersion{Name: version, Served: true, Schema: validation})
	}
	for _, version := range versions {
		document, err := builder.BuildOpenAPIV3(crd, version, builder.Options{})
		if err != nil {
			log.Fatal(err)
		}
		for name, model := range document.Components.Schemas {
			models[name] = model
			if strings.HasSuffix(name, "."+version+"."+customKind) && schemas[version] != nil && len(model.Properties) == 0 {
				log.Fatalf("the schema is not structural: %s", compact(schemas[version]))
			}
		}
	}
	w := newWorld(models, customKind, func(gvk gvks.GroupVersionKind) bool { return gvk.Group == group && gvk.Kind == customKind })
	w.empty = object{"kind": customKind}
	w.crd = true
	return w
}

func builtinWorld(models map[string]*spec.Schema, types *runtime.Scheme, version, kind string) *world {
	want := gvks.FromAPIVersionAndKind(version, kind)
	w := newWorld(models, kind, func(gvk gvks.GroupVersionKind) bool { return gvk == want })
	w.empty = normal(emptyObject(types, want)).(object)
	return w
}

func newWorld(models map[string]*spec.Schema, kind string, wanted func(gvks.GroupVersionKind) bool) *world {
	converter, err := managedfields.NewTypeConverter(models, false)
	if err != nil {
		log.Fatal(err)
	}
	types, err := schemaconv.ToSchemaFromOpenAPI(models, false)
	if err != nil {
		log.Fatal(err)
	}
	w := &world{kind: kind, converter: converter, schema: types, types: map[string]schema.TypeRef{}}
	for _, name := range sortedKeys(models) {
		for _, gvk := range kindsOf(models[name]) {
			if wanted(gvk) {
				version := gvk.GroupVersion().String()
				w.versions = append(w.versions, version)
				w.types[version] = schema.TypeRef{NamedType: &name}
			}
		}
	}
	slices.Sort(w.versions)
	return w
}

// The world's converter puts another version on an object and changes nothing.

func (w *world) Convert(in, out, context any) error { return errors.New("not implemented") }

func (w *world) ConvertFieldLabel(gvks.GroupVersionKind, string, string) (string, string, error) {
	return "", "", errors.New("not implemented")
}

func (w *world) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	version := target.(gvks.GroupVersion).String()
	if !slices.Contains(w.versions, version) {
		return nil, runtime.NewNotRegisteredErrForKind("oracle", target.(gvks.GroupVersion).WithKind(w.kind))
	}
	out := in.DeepCopyObject().(*unstructured.Unstructured)
	out.SetAPIVersion(version)
	return out, nil
}

func (w *world) Default(runtime.Object) {}

func (w *world) New(gvk gvks.GroupVersionKind) (runtime.Object, error) {
	out := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(w.empty)}
	out.SetGroupVersionKind(gvk)
	return out, nil
}

func (w *world) fieldManager(s *step) *managedfields.FieldManager {
	gv, err := gvks.ParseGroupVersion(s.Version)
	if err != nil {
		log.Fatal(err)
	}
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if s.Reset {
		name := "status"
		if s.Subresource != "" {
			name = "spec"
		}
		reset = map[fieldpath.APIVersion]fieldpath.Filter{}
		for _, version := range w.versions {
			reset[fieldpath.APIVersion(version)] = fieldpath.NewExcludeSetFilter(fieldpath.NewSet(fieldpath.MakePathOrDie(name)))
		}
	}
	hub, _ := gvks.ParseGroupVersion(w.versions[0])
	make := managedfields.NewDefaultFieldManager
	if w.crd {
		make = managedfields.NewDefaultCRDFieldManager
	}
	manager, err := make(w.converter, w, w, w, gv.WithKind(w.kind), hub, s.Subresource, reset)
	if err != nil {
		log.Fatal(err)
	}
	return manager
}

// play does the steps and writes down what comes of them.
func (w *world) play(r *run) {
	var live *unstructured.Unstructured
	if r.Live != nil {
		live = &unstructured.Unstructured{Object: normal(r.Live).(object)}
	}
	for i := range r.Steps {
		live = w.do(i, &r.Steps[i], live)
	}
}

func (w *world) do(place int, s *step, live *unstructured.Unstructured) *unstructured.Unstructured {
	if s.Version == "" {
		s.Version = w.versions[0]
	}
	s.Object = normal(s.Object).(object)
	gv, _ := gvks.ParseGroupVersion(s.Version)
	attempt := func() (*unstructured.Unstructured, error) {
		from, err := w.New(gv.WithKind(w.kind))
		if err != nil {
			log.Fatal(err)
		}
		if live != nil {
			from, _ = w.ConvertToVersion(live, gv)
		}
		sent := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(s.Object)}
		var out runtime.Object
		if s.Do == "update" {
			out, err = w.fieldManager(s).Update(from, sent, s.Manager)
		} else {
			out, err = w.fieldManager(s).Apply(from, sent, s.Manager, s.Do == "force")
		}
		if err != nil {
			return nil, err
		}
		return out.(*unstructured.Unstructured), nil
	}
	out, err := attempt()
	if err != nil {
		s.Error, s.Code = describe(err)
		for range 6 {
			_, again := attempt()
			if text, _ := describe(again); text != s.Error {
				s.Unstable, s.Error = true, ""
				break
			}
		}
		if s.Do != "update" {
			return live
		}
		s.Code = 0
		out = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(s.Object)}
		out.SetManagedFields(nil)
	}
	if out.GetUID() == "" {
		out.SetUID("u")
	}
	entries := out.GetManagedFields()
	s.Managed = settle(place, entries)
	plain := out.DeepCopy()
	plain.SetManagedFields(nil)
	if s.Do != "update" {
		s.Result = plain.Object
	}
	out.SetManagedFields(entries)
	return out
}

// settle gives what was written in this step a time that is the same on each
// run: the number of the step, in seconds.
func settle(place int, entries []metav1.ManagedFieldsEntry) json.RawMessage {
	list := []any{}
	for i := range entries {
		entry := &entries[i]
		if entry.Time != nil && entry.Time.Year() > 2020 {
			entry.Time = &metav1.Time{Time: time.Unix(int64(place), 0).UTC()}
		}
		seconds := int64(-1)
		if entry.Time != nil {
			seconds = entry.Time.Unix()
		}
		list = append(list, []any{entry.Manager, string(entry.Operation), entry.APIVersion, entry.Subresource, seconds, json.RawMessage(entry.FieldsV1.Raw)})
	}
	return json.RawMessage(compact(list))
}

// describe is an error's text with its lines sorted, as maps have no order
// in Go, and the code of the answer.
func describe(err error) (string, int) {
	code := 500
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code = int(status.Status().Code)
		if details := status.Status().Details; details != nil {
			for _, cause := range details.Causes {
				text += fmt.Sprintf("\n%s %s at %s", cause.Type, cause.Message, cause.Field)
			}
		}
	}
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n"), code
}

// normal is a value as the API server decodes it.
func normal(value any) any {
	content, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	var out unstructured.Unstructured
	wrapped := append(append([]byte(`{"apiVersion":"v1","kind":"Wrapper","value":`), content...), '}')
	if err := out.UnmarshalJSON(wrapped); err != nil {
		log.Fatal(err)
	}
	return out.Object["value"]
}
