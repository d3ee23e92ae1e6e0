package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gvks "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// The documents whose kinds go into the table; lists and options do not.
var documents = []string{
	"api__v1",
	"apis__admissionregistration.k8s.io__v1",
	"apis__apiextensions.k8s.io__v1",
	"apis__apiregistration.k8s.io__v1",
	"apis__apps__v1",
	"apis__autoscaling__v1",
	"apis__autoscaling__v2",
	"apis__batch__v1",
	"apis__certificates.k8s.io__v1",
	"apis__coordination.k8s.io__v1",
	"apis__discovery.k8s.io__v1",
	"apis__events.k8s.io__v1",
	"apis__flowcontrol.apiserver.k8s.io__v1",
	"apis__networking.k8s.io__v1",
	"apis__node.k8s.io__v1",
	"apis__policy__v1",
	"apis__rbac.authorization.k8s.io__v1",
	"apis__scheduling.k8s.io__v1",
	"apis__storage.k8s.io__v1",
}

const objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

// table is the file: types by number, of which two are the same everywhere.
type table struct {
	Kinds    map[string]kind `json:"kinds"`
	Metadata int             `json:"metadata"`
	Types    []*atom         `json:"types"`

	schema *schema.Schema
	named  map[string]int
	known  map[string]int
}

type kind struct {
	Type  int `json:"t"`
	Empty any `json:"z"`
}

type atom struct {
	Scalar string   `json:"s,omitempty"`
	List   []any    `json:"l,omitempty"`
	Map    *mapAtom `json:"m,omitempty"`
}

type mapAtom struct {
	Fields   map[string]int `json:"f,omitempty"`
	Defaults map[string]any `json:"d,omitempty"`
	Element  *int           `json:"e,omitempty"`
	Atomic   bool           `json:"a,omitempty"`
	Deduced  bool           `json:"u,omitempty"`
}

func writeBuiltin(out *bufio.Writer, folder string) {
	models := readModels(folder)
	converted, err := schemaconv.ToSchemaFromOpenAPI(models, false)
	if err != nil {
		log.Fatal(err)
	}
	t := &table{
		Kinds:  map[string]kind{},
		schema: converted,
		named:  map[string]int{"__untyped_atomic_": 0, "__untyped_deduced_": 1},
		known:  map[string]int{},
	}
	t.Metadata = t.ref(schema.TypeRef{NamedType: ptr(objectMeta)})
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(types); err != nil {
			log.Fatal(err)
		}
	}
	names := sortedKeys(models)
	for _, name := range names {
		properties := models[name].Properties
		if _, isObject := properties["metadata"]; !isObject {
			continue
		}
		if _, isList := properties["items"]; isList {
			continue
		}
		for _, gvk := range kindsOf(models[name]) {
			empty := emptyObject(types, gvk)
			if empty == nil {
				continue
			}
			key := gvk.GroupVersion().String() + "/" + gvk.Kind
			t.Kinds[key] = kind{Type: t.ref(schema.TypeRef{NamedType: &name}), Empty: empty}
		}
	}
	t.write(out)
}

func (t *table) write(out *bufio.Writer) {
	fmt.Fprintf(out, "{\"metadata\":%d,\n\"kinds\":{\n", t.Metadata)
	for i, key := range sortedKeys(t.Kinds) {
		if i > 0 {
			out.WriteString(",\n")
		}
		fmt.Fprintf(out, "%s:%s", compact(key), compact(t.Kinds[key]))
	}
	out.WriteString("},\n\"types\":")
	writeLines(out, t.Types)
	out.WriteString("}\n")
}

// readModels reads the definitions of all documents. A definition says the
// same wherever it stands.
func readModels(folder string) map[string]*spec.Schema {
	models := map[string]*spec.Schema{}
	for _, document := range documents {
		content, err := os.ReadFile(filepath.Join(folder, document+"_openapi.json"))
		if err != nil {
			log.Fatal(err)
		}
		var parsed spec3.OpenAPI
		if err := json.Unmarshal(content, &parsed); err != nil {
			log.Fatal(err)
		}
		for name, model := range parsed.Components.Schemas {
			models[name] = model
		}
	}
	return models
}

func kindsOf(model *spec.Schema) []gvks.GroupVersionKind {
	listed, _ := model.Extensions["x-kubernetes-group-version-kind"].([]any)
	var found []gvks.GroupVersionKind
	for _, entry := range listed {
		fields, _ := entry.(map[string]any)
		text := func(name string) string { s, _ := fields[name].(string); return s }
		found = append(found, gvks.GroupVersionKind{Group: text("group"), Version: text("version"), Kind: text("kind")})
	}
	return found
}

// emptyObject is the value that creation starts from: what the Go type has
// without anybody saying so.
func emptyObject(types *runtime.Scheme, gvk gvks.GroupVersionKind) any {
	object, err := types.New(gvk)
	if err != nil {
		return nil
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	reflected, err := value.NewValueReflect(object)
	if err != nil {
		log.Fatal(err)
	}
	return reflected.Unstructured()
}

// ref is the number of a type.
func (t *table) ref(ref schema.TypeRef) int {
	if ref.NamedType == nil || ref.ElementRelationship != nil {
		resolved, ok := t.schema.Resolve(ref)
		if !ok {
			log.Fatalf("cannot resolve %v", ref)
		}
		return t.inlined(t.atom(resolved))
	}
	name := *ref.NamedType
	if number, ok := t.named[name]; ok {
		return number
	}
	resolved, ok := t.schema.Resolve(ref)
	if !ok {
		log.Fatalf("no type %s", name)
	}
	// The number comes first: a type may contain itself.
	number := t.add(&atom{})
	t.named[name] = number
	t.Types[number-2] = t.atom(resolved)
	return number
}

func (t *table) inlined(a *atom) int {
	text := compact(a)
	if number, ok := t.known[text]; ok {
		return number
	}
	number := t.add(a)
	t.known[text] = number
	return number
}

func (t *table) add(a *atom) int {
	t.Types = append(t.Types, a)
	return len(t.Types) + 1
}

func (t *table) atom(from schema.Atom) *atom {
	a := &atom{}
	if from.Scalar != nil {
		a.Scalar = string(*from.Scalar)[:1]
	}
	if from.List != nil {
		a.List = []any{t.ref(from.List.ElementType), nil}
		if from.List.ElementRelationship == schema.Associative {
			a.List[1] = append([]string{}, from.List.Keys...)
			t.keepDefaults(from.List)
		}
	}
	if from.Map != nil {
		a.Map = t.mapAtom(from.Map)
	}
	return a
}

// keepDefaults writes down the defaults of keys; no other default matters.
func (t *table) keepDefaults(list *schema.List) {
	element, ok := t.schema.Resolve(list.ElementType)
	if !ok || element.Map == nil {
		return
	}
	for _, key := range list.Keys {
		field, ok := element.Map.FindField(key)
		if !ok || field.Default == nil {
			continue
		}
		number := t.ref(list.ElementType)
		m := t.Types[number-2].Map
		if m == nil {
			log.Fatalf("a list of a type that contains the list has a default for its key %s", key)
		}
		if m.Defaults == nil {
			m.Defaults = map[string]any{}
		}
		m.Defaults[key] = field.Default
	}
}

func (t *table) mapAtom(from *schema.Map) *mapAtom {
	m := &mapAtom{Fields: map[string]int{}, Atomic: from.ElementRelationship == schema.Atomic}
	fields := slices.Clone(from.Fields)
	slices.SortFunc(fields, func(a, b schema.StructField) int { return strings.Compare(a.Name, b.Name) })
	for _, field := range fields {
		m.Fields[field.Name] = t.ref(field.Type)
	}
	element := from.ElementType
	if element.NamedType != nil || element.Inlined != (schema.Atom{}) {
		number := t.ref(element)
		m.Element = &number
		untyped := element.Inlined.Scalar != nil && *element.Inlined.Scalar == schema.Untyped
		m.Deduced = len(from.Fields) == 0 && (number == 1 || untyped)
	}
	return m
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func ptr[T any](value T) *T { return &value }
