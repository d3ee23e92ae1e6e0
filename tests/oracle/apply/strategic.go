package main

import (
	"bufio"
	"fmt"
	"log"
	"reflect"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// patchTable is the file of strategic merge patches: types of Go by number,
// as far as JSON objects and lists are made of them.
type patchTable struct {
	Kinds map[string]int `json:"kinds"`
	Types []any          `json:"types"`

	known map[reflect.Type]int
}

// writeStrategic writes how the fields of the table's kinds take strategic
// merge patches.
func writeStrategic(out *bufio.Writer, specs string) {
	types := allTypes()
	models := readModels(specs)
	t := &patchTable{Kinds: map[string]int{}, known: map[reflect.Type]int{}}
	for _, name := range sortedKeys(models) {
		for _, gvk := range kindsOf(models[name]) {
			object, err := types.New(gvk)
			if err != nil {
				continue
			}
			_, isObject := models[name].Properties["metadata"]
			_, isList := models[name].Properties["items"]
			if isObject && !isList {
				t.Kinds[gvk.GroupVersion().String()+"/"+gvk.Kind] = t.number(reflect.TypeOf(object).Elem())
			}
		}
	}
	fmt.Fprintf(out, "{\"kinds\":%s,\n\"types\":", compact(t.Kinds))
	writeLines(out, t.Types)
	out.WriteString("}\n")
}

func allTypes() *runtime.Scheme {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(types); err != nil {
			log.Fatal(err)
		}
	}
	return types
}

func (t *patchTable) number(of reflect.Type) int {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if number, ok := t.known[of]; ok {
		return number
	}
	number := len(t.Types)
	t.known[of] = number
	t.Types = append(t.Types, nil)
	var entry any
	switch {
	case of.Kind() == reflect.Struct:
		fields := map[string][]any{}
		t.fields(of, fields)
		entry = map[string]any{"s": []any{of.Name(), fields}}
	case of.Kind() == reflect.Slice && of.Elem().Kind() != reflect.Uint8:
		entry = map[string]any{"l": t.number(of.Elem())}
	case of.Kind() == reflect.Map:
		entry = map[string]any{"m": t.number(of.Elem())}
	default:
		entry = map[string]any{"x": of.Kind().String()}
	}
	t.Types[number] = entry
	return number
}

// fields collects the fields of a structure whose values are JSON objects or
// lists, those of embedded structures too.
func (t *patchTable) fields(of reflect.Type, into map[string][]any) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		kind := field.Type
		for kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		if name == "" && field.Anonymous && kind.Kind() == reflect.Struct {
			t.fields(kind, into)
			continue
		}
		switch kind.Kind() {
		case reflect.Struct, reflect.Map:
		case reflect.Slice:
			if kind.Elem().Kind() == reflect.Uint8 {
				continue
			}
		default:
			continue
		}
		if name == "" || name == "-" || !field.IsExported() {
			continue
		}
		entry := []any{t.number(kind)}
		strategy, key := field.Tag.Get("patchStrategy"), field.Tag.Get("patchMergeKey")
		if strategy != "" || key != "" {
			entry = append(entry, strings.Split(strategy, ","))
		}
		if key != "" {
			entry = append(entry, key)
		}
		into[name] = entry
	}
}
