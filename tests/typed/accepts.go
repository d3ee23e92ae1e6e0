package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Accepted is the response to a request that accepts some forms.
type Accepted struct {
	Path   string `json:"path"`
	Accept string `json:"accept"`
	Code   int    `json:"code"`
	// Object is the response as Go decodes it.
	Object any `json:"object"`
}

const (
	asTable    = ";as=Table;v=v1;g=meta.k8s.io"
	asMetadata = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asList     = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	inProtobuf = runtime.ContentTypeProtobuf
	inJSON     = runtime.ContentTypeJSON
)

// forms are what clients accept: those of client-go, with and without protobuf, kubectl, and browsers.
var forms = []string{
	inJSON, inJSON + ", */*", inProtobuf + ", */*", inProtobuf + "," + inJSON, "*/*", "text/html",
	inJSON + asTable + "," + inJSON + ";as=Table;v=v1beta1;g=meta.k8s.io," + inJSON,
}

// ofMetadata are what clients of metadata accept, for one object and for a list.
var ofMetadata = map[bool]string{
	false: inProtobuf + asMetadata + "," + inJSON + asMetadata + "," + inJSON,
	true:  inProtobuf + asList + "," + inJSON + asList + "," + inJSON,
}

// runAccepts gets each path in each form. Paths of lists end with "?".
func runAccepts(ctx context.Context, config *rest.Config, paths string) (any, error) {
	types := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(types))
	utilruntime.Must(metav1.AddMetaToScheme(types))
	utilruntime.Must(apiextensionsv1.AddToScheme(types))
	codec := protobuf.NewSerializer(types, types)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	var all []Accepted
	for _, path := range strings.Fields(paths) {
		_, isList := strings.CutSuffix(path, "?")
		for _, form := range append(forms, ofMetadata[isList]) {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
			if err != nil {
				return nil, err
			}
			request.Header.Set("Accept", form)
			response, err := client.Do(request)
			if err != nil {
				return nil, err
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil {
				return nil, err
			}
			got := Accepted{Path: path, Accept: form, Code: response.StatusCode}
			contentType := response.Header.Get("Content-Type")
			switch {
			case strings.HasPrefix(contentType, inProtobuf):
				// The embedded server answers in JSON where it has no protobuf: what counts is what Go reads.
				object, _, err := codec.Decode(body, nil, nil)
				if err != nil {
					return nil, fmt.Errorf("%s as %s: %w", path, form, err)
				}
				got.Object = object
			case contentType != inJSON || response.StatusCode == http.StatusNotAcceptable:
				got.Object = contentType
			default:
				got.Object, err = decoded(types, body)
				if err != nil {
					return nil, fmt.Errorf("%s as %s: %w", path, form, err)
				}
			}
			level(got.Object)
			all = append(all, got)
		}
	}
	return all, nil
}

// decoded returns an object in JSON as Go decodes it: of its type if that is known.
func decoded(types *runtime.Scheme, text []byte) (any, error) {
	var of metav1.TypeMeta
	if err := json.Unmarshal(text, &of); err != nil {
		return nil, err
	}
	object, err := types.New(of.GroupVersionKind())
	if runtime.IsNotRegisteredError(err) {
		var any map[string]any
		err := json.Unmarshal(text, &any)
		return any, err
	}
	if err != nil {
		return nil, err
	}
	return object, json.Unmarshal(text, object)
}

// level removes what differs between protobuf and JSON, and from tables the ages of objects and the descriptions of
// columns, which the embedded server does not have.
func level(object any) {
	switch object := object.(type) {
	case *metav1.PartialObjectMetadataList:
		for at := range object.Items {
			object.Items[at].TypeMeta = metav1.TypeMeta{}
		}
		if len(object.Items) == 0 {
			object.Items = nil
		}
	case *metav1.Table:
		for at, column := range object.ColumnDefinitions {
			object.ColumnDefinitions[at].Description = ""
			for _, row := range object.Rows {
				if column.Name == "Age" {
					row.Cells[at] = "age"
				}
			}
		}
	}
}
