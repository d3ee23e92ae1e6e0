// Command protobuf writes objects of the built-in kinds as Go encodes them: in
// protobuf and in JSON. Every field of every kind is set in the first object of
// a kind; the others are sparse. crates/apiserver decodes the protobuf and
// compares the result with the JSON.
//
//	go run ./protobuf | gzip -9n > ../../../crates/apiserver/tests/data/protobuf.json.gz
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"math/rand"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/randfill"
)

// A kind has this many objects.
const objects = 2

// Options of requests arrive under the version of the resource.
var options = []string{"DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions", "ListOptions", "GetOptions"}

type line struct {
	Version  string          `json:"version"`
	Kind     string          `json:"kind"`
	Protobuf string          `json:"protobuf"`
	JSON     json.RawMessage `json:"json"`
}

func main() {
	log.SetFlags(0)
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiregistration.AddToScheme} {
		if err := add(types); err != nil {
			log.Fatal(err)
		}
	}
	kinds := kindsOf(types)
	out := bufio.NewWriter(os.Stdout)
	for at, kind := range kinds {
		for number := range objects {
			write(out, types, kind, int64(at*objects+number), number == 0)
		}
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

func kindsOf(types *runtime.Scheme) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	for kind, of := range types.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || strings.ContainsAny(kind.Version, "ab") || strings.HasSuffix(kind.Kind, "List") {
			continue
		}
		// The API server of Starling does not serve this group.
		if kind.Group == "resource.k8s.io" {
			continue
		}
		_, isObject := of.FieldByName("ObjectMeta")
		isOptions := slices.Contains(options, kind.Kind) && (kind.Group == "" || kind.Group == "apps")
		_, encodes := reflect.New(of).Interface().(interface{ Marshal() ([]byte, error) })
		if (isObject || isOptions) && encodes {
			kinds = append(kinds, kind)
		}
	}
	slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	return kinds
}

func write(out *bufio.Writer, types *runtime.Scheme, kind schema.GroupVersionKind, seed int64, full bool) {
	object, err := types.New(kind)
	if err != nil {
		log.Fatal(err)
	}
	filler(seed, full).Fill(object)
	object.GetObjectKind().SetGroupVersionKind(kind)
	var encoded bytes.Buffer
	if err := protobuf.NewSerializer(types, types).Encode(object, &encoded); err != nil {
		log.Fatalf("%v: %v", kind, err)
	}
	text, err := json.Marshal(object)
	if err != nil {
		log.Fatal(err)
	}
	result, err := json.Marshal(line{
		Version:  kind.GroupVersion().String(),
		Kind:     kind.Kind,
		Protobuf: base64.StdEncoding.EncodeToString(encoded.Bytes()),
		JSON:     text,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(out, "%s\n", result)
}

func filler(seed int64, full bool) *randfill.Filler {
	nothing, elements := 0.7, 3
	if full {
		nothing, elements = 0, 2
	}
	at := func(c randfill.Continue) time.Time {
		return time.Unix(1_700_000_000+c.Int63n(1_000_000), 0).UTC()
	}
	return randfill.New().RandSource(rand.NewSource(seed)).NilChance(nothing).NumElements(1, elements).MaxDepth(60).Funcs(
		func(value *string, c randfill.Continue) { *value = fmt.Sprintf("text-%d", c.Int63n(1_000)) },
		func(value *metav1.Time, c randfill.Continue) { *value = metav1.NewTime(at(c)) },
		func(value *metav1.MicroTime, c randfill.Continue) {
			*value = metav1.NewMicroTime(at(c).Add(time.Duration(c.Int63n(1_000_000)) * time.Microsecond))
		},
		func(value *metav1.Duration, c randfill.Continue) {
			value.Duration = time.Duration(c.Int63n(100_000)) * time.Second
		},
		func(value *resource.Quantity, c randfill.Continue) {
			*value = resource.MustParse(fmt.Sprintf("%d%s", 1+c.Int63n(1_000), []string{"", "m", "Mi", "k"}[c.Int63n(4)]))
		},
		func(value *intstr.IntOrString, c randfill.Continue) {
			*value = intstr.FromInt32(int32(c.Int63n(100)))
			if c.Bool() {
				*value = intstr.FromString(fmt.Sprintf("%d%%", c.Int63n(100)))
			}
		},
		func(value *runtime.RawExtension, c randfill.Continue) {
			value.Raw = []byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"Thing","number":%d}`, c.Int63n(100)))
		},
		func(value *metav1.FieldsV1, _ randfill.Continue) {
			value.Raw = []byte(`{"f:metadata":{"f:labels":{}}}`)
		},
		func(value *metav1.TypeMeta, _ randfill.Continue) { *value = metav1.TypeMeta{} },
		func(value *float64, c randfill.Continue) { *value = float64(c.Int63n(1_000)) / 8 },
		func(value *int32, c randfill.Continue) { *value = int32(c.Int63n(1_000)) - 5 },
		func(value *int64, c randfill.Continue) { *value = c.Int63n(1_000_000) - 5 },
	)
}
