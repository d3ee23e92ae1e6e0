// Command codec writes down how Go reads and writes the built-in kinds: which
// fields a struct has, of which type, and which of them are left out when
// empty. crates/apiserver gives objects the form that the API server gives them.
//
//	go run ./codec > ../../../crates/apiserver/src/kinds/codec.json
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

var groups = []string{
	"/v1",
	"admissionregistration.k8s.io/v1",
	"apiextensions.k8s.io/v1",
	"apiregistration.k8s.io/v1",
	"apps/v1",
	"authentication.k8s.io/v1",
	"authorization.k8s.io/v1",
	"autoscaling/v1",
	"autoscaling/v2",
	"batch/v1",
	"certificates.k8s.io/v1",
	"coordination.k8s.io/v1",
	"discovery.k8s.io/v1",
	"events.k8s.io/v1",
	"flowcontrol.apiserver.k8s.io/v1",
	"networking.k8s.io/v1",
	"node.k8s.io/v1",
	"policy/v1",
	"rbac.authorization.k8s.io/v1",
	"scheduling.k8s.io/v1",
	"storage.k8s.io/v1",
}

// entry is a type: a struct with fields, a list, a map or something plain.
type entry struct {
	// Name of a struct, or of the plain type.
	Name   string  `json:"n,omitempty"`
	Fields [][]any `json:"f,omitempty"`
	List   *int    `json:"l,omitempty"`
	Map    *int    `json:"m,omitempty"`
	// Kind of a plain type.
	Plain string `json:"p,omitempty"`
	// Fields of a struct in protobuf: number, name or empty for a struct that
	// JSON has inline, type, and whether each item of a list stands for itself.
	Numbers [][]any `json:"b,omitempty"`
}

type table struct {
	types []*entry
	known map[reflect.Type]int
}

// Types with a form of their own in JSON, by name.
var special = map[string]string{
	"v1.Time":                         "time",
	"v1.MicroTime":                    "microtime",
	"v1.Duration":                     "duration",
	"v1.FieldsV1":                     "any",
	"resource.Quantity":               "quantity",
	"intstr.IntOrString":              "int-or-string",
	"runtime.RawExtension":            "any",
	"v1.JSON":                         "any",
	"v1.JSONSchemaPropsOrBool":        "any",
	"v1.JSONSchemaPropsOrArray":       "any",
	"v1.JSONSchemaPropsOrStringArray": "any",
	"v1.JSONSchemaProps":              "any",
}

func main() {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(types); err != nil {
			log.Fatal(err)
		}
	}
	t := &table{known: map[reflect.Type]int{}}
	kinds := map[string]int{}
	for gvk, of := range types.AllKnownTypes() {
		group := schema.GroupVersion{Group: gvk.Group, Version: gvk.Version}.String()
		if gvk.Group == "" {
			group = "/v1"
		}
		if !slices.Contains(groups, group) || strings.HasSuffix(gvk.Kind, "List") || strings.HasSuffix(gvk.Kind, "Options") {
			continue
		}
		if _, has := of.FieldByName("ObjectMeta"); !has {
			continue
		}
		kinds[strings.TrimPrefix(group, "/")+"/"+gvk.Kind] = 0
	}
	for _, kind := range []string{"CreateOptions", "DeleteOptions", "GetOptions", "ListOptions", "PatchOptions", "UpdateOptions"} {
		kinds["v1/"+kind] = 0
	}
	names := make([]string, 0, len(kinds))
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		at := strings.LastIndex(name, "/")
		version, err := schema.ParseGroupVersion(name[:at])
		if err != nil {
			log.Fatal(err)
		}
		object, err := types.New(version.WithKind(name[at+1:]))
		if err != nil {
			log.Fatal(err)
		}
		kinds[name] = t.ref(reflect.TypeOf(object).Elem())
	}
	out := bufio.NewWriter(os.Stdout)
	out.WriteString("{\"kinds\":{\n")
	for i, name := range names {
		fmt.Fprintf(out, "%q:%d", name, kinds[name])
		if i < len(names)-1 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
	}
	out.WriteString("},\"types\":[\n")
	for i, of := range t.types {
		line, err := json.Marshal(of)
		if err != nil {
			log.Fatal(err)
		}
		out.Write(line)
		if i < len(t.types)-1 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
	}
	out.WriteString("]}\n")
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

func (t *table) ref(of reflect.Type) int {
	if number, ok := t.known[of]; ok {
		return number
	}
	number := len(t.types)
	e := &entry{}
	t.types = append(t.types, e)
	t.known[of] = number
	if form, ok := special[of.String()]; ok {
		e.Plain, e.Name = form, of.String()
		return number
	}
	switch of.Kind() {
	case reflect.Struct:
		e.Name = of.String()
		e.Fields = [][]any{}
		t.fields(of, e)
		t.numbers(of, e)
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			e.Plain, e.Name = "bytes", of.String()
			return number
		}
		e.Name = of.String()
		element := t.ref(deref(of.Elem()))
		e.List = &element
	case reflect.Map:
		e.Name = of.String()
		element := t.ref(deref(of.Elem()))
		e.Map = &element
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64, reflect.Uint32, reflect.Uint16, reflect.Uint64:
		e.Plain, e.Name = of.Kind().String(), of.String()
	default:
		log.Fatalf("what is %v?", of)
	}
	return number
}

// numbers writes what protobuf has of a struct.
func (t *table) numbers(of reflect.Type, e *entry) {
	for i := range of.NumField() {
		field := of.Field(i)
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 3 {
			continue
		}
		number, err := strconv.Atoi(tag[1])
		if err != nil {
			log.Fatal(err)
		}
		name := strings.Split(field.Tag.Get("json"), ",")[0]
		if name == "-" {
			continue
		}
		// The tag says "opt" of many lists; the definition decides.
		repeated := 0
		if repeats(of, number) {
			repeated = 1
		}
		e.Numbers = append(e.Numbers, []any{number, name, t.ref(deref(field.Type)), repeated})
	}
}

func deref(of reflect.Type) reflect.Type {
	if of.Kind() == reflect.Pointer {
		return of.Elem()
	}
	return of
}

// fields writes name, type and what is left out: 0 nothing, 1 null, empty or
// zero (omitempty), 2 only null (a pointer with omitempty), 3 a struct that is
// zero (omitzero), 4 nothing, of a pointer that is null when absent.
func (t *table) fields(of reflect.Type, e *entry) {
	for i := range of.NumField() {
		field := of.Field(i)
		tag := strings.Split(field.Tag.Get("json"), ",")
		if tag[0] == "-" {
			continue
		}
		if field.Anonymous && tag[0] == "" {
			t.fields(deref(field.Type), e)
			continue
		}
		if tag[0] == "" {
			tag[0] = field.Name
		}
		leave := 0
		pointer := field.Type.Kind() == reflect.Pointer
		switch {
		case slices.Contains(tag, "omitzero"):
			leave = 3
			if pointer {
				leave = 2
			}
		case slices.Contains(tag, "omitempty"):
			leave = 1
			if pointer {
				leave = 2
			} else if field.Type.Kind() == reflect.Struct {
				leave = 0
			}
		case pointer:
			leave = 4
		}
		e.Fields = append(e.Fields, []any{tag[0], t.ref(deref(field.Type)), leave})
	}
}
