package main

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// storeAll stores the base of each kind, gets it and updates it, as a typed client does: what the server sent in
// protobuf is sent back in protobuf, first unchanged, then with another label. The objects stay.
func (w *writer) storeAll(ctx context.Context) ([]RoundTrip, error) {
	var results []RoundTrip
	for _, base := range bases {
		// A controller inside of kube-apiserver writes the status of these.
		if base.kind == "FlowSchema" {
			continue
		}
		some, err := w.store(ctx, base)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", base.version, base.kind, err)
		}
		results = append(results, some...)
	}
	return results, nil
}

func (w *writer) store(ctx context.Context, base base) ([]RoundTrip, error) {
	object, err := w.fresh(base)
	if err != nil {
		return nil, err
	}
	named, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	named.SetName(base.stored())
	results := make([]RoundTrip, 0, 4)
	step := func(name, method, under string, object runtime.Object) error {
		result, err := w.send(ctx, variation{base: base, field: name, object: object}, method, under, false)
		results = append(results, result)
		return err
	}
	if err := step("stored", http.MethodPost, "", object); err != nil {
		return nil, err
	}
	for _, update := range []string{"unchanged", "changed"} {
		got, err := w.get(ctx, base)
		if err != nil {
			return nil, err
		}
		if got == nil {
			return results, nil
		}
		if update == "changed" {
			named, err := meta.Accessor(got)
			if err != nil {
				return nil, err
			}
			named.SetLabels(map[string]string{"updated": "true"})
		}
		if err := step(update, http.MethodPut, "/"+base.stored(), got); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// get returns the stored object of a kind from a response in protobuf; nil if there is none.
func (w *writer) get(ctx context.Context, base base) (runtime.Object, error) {
	got, err := w.decoded(w.request(ctx, http.MethodGet, w.url(base)+"/"+base.stored(), nil, runtime.ContentTypeProtobuf))
	if err != nil || got == nil {
		return nil, err
	}
	if _, isNamed := got.(interface{ GetName() string }); !isNamed {
		return nil, nil
	}
	return got.(runtime.Object), nil
}
