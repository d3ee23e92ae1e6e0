package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/randfill"
)

// RoundTrip is what became of a written object.
type RoundTrip struct {
	Kind string `json:"kind"`
	// Field is the field that differs from the base of the kind, and which of its values it has.
	Field string `json:"field"`
	Code  int    `json:"code"`
	// Sent is the object as Go encodes it in JSON; it was sent in protobuf.
	Sent any `json:"sent"`
	// JSON is the response in JSON.
	JSON json.RawMessage `json:"json"`
	// Protobuf is the response in protobuf, decoded by Go, if it was protobuf.
	Protobuf any `json:"protobuf,omitempty"`
}

// runRoundTrip writes each kind in variations: one for each field and each part of it. Nothing is stored (dryRun), so
// that no variation depends on another.
func runRoundTrip(ctx context.Context, config *rest.Config) (any, error) {
	types := scheme.Scheme
	// The names of the administrators differ.
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "typed", Groups: []string{"system:masters", "system:authenticated"}}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	w := &writer{types: types, codec: protobuf.NewSerializer(types, types), client: client, host: config.Host}
	stored, err := w.storeAll(ctx)
	if err != nil {
		return nil, err
	}
	var all []variation
	for _, base := range bases {
		some, err := w.variations(base)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", base.version, base.kind, err)
		}
		all = append(all, some...)
		if some, err = w.fuzz(ctx, base); err != nil {
			return nil, fmt.Errorf("%s %s: %w", base.version, base.kind, err)
		}
		all = append(all, some...)
	}
	results := make([]RoundTrip, len(all))
	errors := make([]error, len(all))
	next := make(chan int)
	var workers sync.WaitGroup
	for range 6 {
		workers.Go(func() {
			for at := range next {
				results[at], errors[at] = w.write(ctx, all[at])
			}
		})
	}
	for at := range all {
		next <- at
	}
	close(next)
	workers.Wait()
	for at, err := range errors {
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", all[at].base.kind, all[at].field, err)
		}
	}
	return append(results, stored...), nil
}

type variation struct {
	base   base
	field  string
	object runtime.Object
	// status is true if the object replaces the status of the stored one.
	status bool
}

type writer struct {
	types  *runtime.Scheme
	codec  *protobuf.Serializer
	client *http.Client
	host   string
}

func (w *writer) fresh(base base) (runtime.Object, error) {
	version, err := schema.ParseGroupVersion(base.version)
	if err != nil {
		return nil, err
	}
	object, err := w.types.New(version.WithKind(base.kind))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(base.object), object); err != nil {
		return nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(version.WithKind(base.kind))
	named, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	if named.GetName() == "" {
		named.SetName(base.usual())
	}
	if !base.cluster {
		named.SetNamespace("default")
	}
	return object, nil
}

// variations are the base, and the base with one field set.
func (w *writer) variations(base base) ([]variation, error) {
	object, err := w.fresh(base)
	if err != nil {
		return nil, err
	}
	all := []variation{{base: base, object: object}}
	var places []place
	find(reflect.TypeOf(object).Elem(), place{}, base.leave, map[reflect.Type]int{}, &places)
	for _, place := range places {
		for number := range place.values() {
			object, err := w.fresh(base)
			if err != nil {
				return nil, err
			}
			place.set(reflect.ValueOf(object).Elem(), number)
			all = append(all, variation{base: base, field: fmt.Sprintf("%s %d", place.name, number), object: object})
		}
	}
	return all, nil
}

func (w *writer) write(ctx context.Context, v variation) (RoundTrip, error) {
	if v.status {
		return w.send(ctx, v, http.MethodPut, "/"+v.base.stored()+"/status", true)
	}
	return w.send(ctx, v, http.MethodPost, "", true)
}

// send writes an object in protobuf, and takes the response in JSON. A dry run is sent again, for one in protobuf.
func (w *writer) send(ctx context.Context, v variation, method, under string, isDryRun bool) (RoundTrip, error) {
	var body bytes.Buffer
	if err := w.codec.Encode(v.object, &body); err != nil {
		return RoundTrip{}, err
	}
	result := RoundTrip{Kind: v.base.version + " " + v.base.kind, Field: v.field, Sent: v.object}
	url := w.url(v.base) + under + "?fieldManager=round-trip&fieldValidation=Ignore"
	if isDryRun {
		url += "&dryRun=All"
	}
	code, _, answer, err := w.request(ctx, method, url, body.Bytes(), runtime.ContentTypeJSON)
	if err != nil {
		return RoundTrip{}, err
	}
	if !json.Valid(answer) {
		return RoundTrip{}, fmt.Errorf("no JSON: %q", answer)
	}
	result.Code, result.JSON = code, answer
	if code >= 300 || !isDryRun {
		return result, nil
	}
	result.Protobuf, err = w.decoded(w.request(ctx, method, url, body.Bytes(), runtime.ContentTypeProtobuf))
	return result, err
}

// decoded returns the object of a response in protobuf; nil if it is not in protobuf.
func (w *writer) decoded(_ int, contentType string, answer []byte, err error) (any, error) {
	if err != nil || contentType != runtime.ContentTypeProtobuf {
		return nil, err
	}
	object, _, err := w.codec.Decode(answer, nil, nil)
	return object, err
}

// url is that of the objects of a kind.
func (w *writer) url(base base) string {
	version, _ := schema.ParseGroupVersion(base.version)
	plural, _ := meta.UnsafeGuessKindToResource(version.WithKind(base.kind))
	path := "/apis/" + base.version
	if version.Group == "" {
		path = "/api/" + base.version
	}
	if !base.cluster {
		path += "/namespaces/default"
	}
	return w.host + path + "/" + plural.Resource
}

func (w *writer) request(ctx context.Context, method, url string, body []byte, accept string) (int, string, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, "", nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", runtime.ContentTypeProtobuf)
	}
	request.Header.Set("Accept", accept+", */*")
	response, err := w.client.Do(request)
	if err != nil {
		return 0, "", nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header.Get("Content-Type"), answer, err
}

// place is a field of a type, however deep.
type place struct {
	name  string
	steps []int
	typ   reflect.Type
}

// opaque are structs that are one value in JSON.
var opaque = []reflect.Type{
	reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[resource.Quantity](),
	reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[runtime.RawExtension](), reflect.TypeFor[metav1.Duration](),
	reflect.TypeFor[metav1.FieldsV1](),
}

func isOpaque(typ reflect.Type) bool {
	for _, one := range opaque {
		if typ == one {
			return true
		}
	}
	return false
}

// find lists the fields of a struct, except for metadata, whose rules are those of all kinds, and the status.
func find(typ reflect.Type, at place, leave []string, open map[reflect.Type]int, places *[]place) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || isOpaque(typ) || open[typ] > 0 {
		return
	}
	open[typ]++
	defer func() { open[typ]-- }()
	for number := range typ.NumField() {
		field := typ.Field(number)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		steps := append(append([]int{}, at.steps...), number)
		if tag == "" {
			if field.Anonymous && field.Type != reflect.TypeFor[metav1.TypeMeta]() {
				find(field.Type, place{name: at.name, steps: steps}, leave, open, places)
			}
			continue
		}
		name := strings.TrimPrefix(at.name+"."+tag, ".")
		if name == "metadata" || name == "status" || contains(leave, name) {
			continue
		}
		here := place{name: name, steps: steps, typ: field.Type}
		*places = append(*places, here)
		if tag == "metadata" {
			continue
		}
		find(field.Type, here, leave, open, places)
	}
}

func contains(all []string, one string) bool {
	for _, other := range all {
		if other == one {
			return true
		}
	}
	return false
}

// Texts that some field or other allows.
var texts = []string{"text", "10.0.0.1", "/a/path", "example.org/name", "Default"}

// values is how many values a field gets.
func (p place) values() int {
	typ := p.typ
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice && typ.Elem().Kind() != reflect.Uint8 {
		typ = typ.Elem()
	}
	switch {
	case typ.Kind() == reflect.String:
		return len(texts)
	case typ.Kind() == reflect.Int32 || typ.Kind() == reflect.Int64:
		return 3
	default:
		return 2
	}
}

// set fills a field with one of its values, and makes what is around it.
func (p place) set(value reflect.Value, number int) {
	for _, step := range p.steps {
		value = structOf(value).Field(step)
	}
	filler(number).Fill(value.Addr().Interface())
	rename(value, texts[number%len(texts)])
}

// rename gives the texts of named types, which the filler does not know, the same value as all others.
func rename(value reflect.Value, text string) {
	switch value.Kind() {
	case reflect.String:
		if value.Type() != reflect.TypeFor[string]() && value.CanSet() {
			value.SetString(text)
		}
	case reflect.Pointer:
		if !value.IsNil() {
			rename(value.Elem(), text)
		}
	case reflect.Slice:
		for at := range value.Len() {
			rename(value.Index(at), text)
		}
	case reflect.Struct:
		if !isOpaque(value.Type()) {
			for at := range value.NumField() {
				rename(value.Field(at), text)
			}
		}
	}
}

// structOf returns the struct that a value is, points to, or is a list of.
func structOf(value reflect.Value) reflect.Value {
	for {
		switch value.Kind() {
		case reflect.Pointer:
			if value.IsNil() {
				value.Set(reflect.New(value.Type().Elem()))
			}
			value = value.Elem()
		case reflect.Slice:
			if value.Len() == 0 {
				value.Set(reflect.MakeSlice(value.Type(), 1, 1))
			}
			value = value.Index(0)
		case reflect.Map:
			// Maps of structs are rare, and their values cannot be changed in place.
			return reflect.New(value.Type().Elem()).Elem()
		default:
			return value
		}
	}
}

// filler fills a value, in the way of the fuzzers of Kubernetes: the first number fills everything.
func filler(number int) *randfill.Filler {
	nothing := 0.0
	if number > 0 {
		nothing = 0.6
	}
	text := texts[number%len(texts)]
	at := time.Unix(1_700_000_000+int64(number), 0).UTC()
	return randfill.New().RandSource(rand.NewSource(int64(number))).NilChance(nothing).NumElements(1, 1).MaxDepth(12).Funcs(
		func(value *string, _ randfill.Continue) { *value = text },
		func(value *bool, _ randfill.Continue) { *value = number%2 == 0 },
		func(value *int32, _ randfill.Continue) { *value = []int32{1, 0, 700}[number%3] },
		func(value *int64, _ randfill.Continue) { *value = []int64{1, 0, 700}[number%3] },
		func(value *metav1.Time, _ randfill.Continue) { *value = metav1.NewTime(at) },
		func(value *metav1.MicroTime, _ randfill.Continue) {
			*value = metav1.NewMicroTime(at.Add(time.Microsecond))
		},
		func(value *metav1.Duration, _ randfill.Continue) { value.Duration = time.Minute },
		func(value *resource.Quantity, _ randfill.Continue) {
			*value = resource.MustParse([]string{"1", "1500m", "2Gi"}[number%3])
		},
		func(value *intstr.IntOrString, _ randfill.Continue) {
			*value = []intstr.IntOrString{intstr.FromInt32(1), intstr.FromString("25%")}[number%2]
		},
		func(value *runtime.RawExtension, _ randfill.Continue) {
			value.Raw = []byte(`{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"b"}}`)
		},
		func(value *metav1.TypeMeta, _ randfill.Continue) { *value = metav1.TypeMeta{} },
		func(value *metav1.ObjectMeta, _ randfill.Continue) { value.Labels = map[string]string{"a": "b"} },
	)
}
