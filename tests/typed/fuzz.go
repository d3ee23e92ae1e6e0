package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubernetes "k8s.io/kubernetes/pkg/api/testing"
)

// A kind has this many objects of the fuzzers of Kubernetes.
const fuzzed = 8

// fuzz returns objects of a kind from the fuzzers of Kubernetes, as Kubernetes' own round trips use them: whole ones,
// and the stored one with the status of one.
func (w *writer) fuzz(ctx context.Context, base base) ([]variation, error) {
	version, err := schema.ParseGroupVersion(base.version)
	if err != nil {
		return nil, err
	}
	kind := version.WithKind(base.kind)
	var all []variation
	for number := range fuzzed {
		internal, err := legacyscheme.Scheme.New(schema.GroupKind{Group: kind.Group, Kind: kind.Kind}.WithVersion(runtime.APIVersionInternal))
		if err != nil {
			return nil, err
		}
		fuzzer.FuzzerFor(kubernetes.FuzzerFuncs, rand.NewSource(int64(number)), legacyscheme.Codecs).Fill(internal)
		object, err := w.types.New(kind)
		if err != nil {
			return nil, err
		}
		if err := legacyscheme.Scheme.Convert(internal, object, nil); err != nil {
			return nil, err
		}
		object.GetObjectKind().SetGroupVersionKind(kind)
		if err := w.settle(base, object); err != nil {
			return nil, err
		}
		whole := variation{base: base, field: fmt.Sprintf("fuzzed %d", number), object: object}
		all = append(all, whole)
		status := reflect.ValueOf(object).Elem().FieldByName("Status")
		if !status.IsValid() || contains(base.leave, "status") {
			continue
		}
		stored, err := w.get(ctx, base)
		if err != nil {
			return nil, err
		}
		if stored == nil {
			continue
		}
		named, err := meta.Accessor(stored)
		if err != nil {
			return nil, err
		}
		// Some kinds take metadata from a write to the status.
		named.SetLabels(map[string]string{"updated": "again"})
		named.SetAnnotations(map[string]string{"example.org/updated": "again"})
		reflect.ValueOf(stored).Elem().FieldByName("Status").Set(status)
		all = append(all, variation{base: base, field: fmt.Sprintf("status %d", number), object: stored, status: true})
	}
	return all, nil
}

// settle replaces the metadata of an object, whose rules are those of all kinds, and which no server accepts at random.
func (w *writer) settle(base base, object runtime.Object) error {
	named, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	settled := metav1.ObjectMeta{Name: base.usual(), Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"example.org/a": ""}}
	if !base.cluster {
		settled.Namespace = "default"
	}
	text, err := json.Marshal(settled)
	if err != nil {
		return err
	}
	of := reflect.ValueOf(object).Elem().FieldByName("ObjectMeta")
	of.Set(reflect.Zero(of.Type()))
	return json.Unmarshal(text, named.(metav1.ObjectMetaAccessor).GetObjectMeta())
}
