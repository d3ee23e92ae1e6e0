package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

const healthLibrary = "sigs.k8s.io/cli-utils"

// diagnosis is an object and what the library says of its status. Where the
// library returns an error or panics, the status is Unknown without a message.
type diagnosis struct {
	Object  any    `json:"o"`
	Status  string `json:"s"`
	Message string `json:"m,omitempty"`
}

// writeHealth writes the written cases and as many random ones, which are
// written cases with some fields taken away, changed or added.
func writeHealth(out *bufio.Writer, seed uint64, count int) {
	var written, random []diagnosis
	var bases []map[string]any
	seen := map[string]bool{}
	for _, text := range healthCases {
		object := mustObject(text)
		key := compact(object)
		if seen[key] {
			log.Fatalf("this case is there twice: %s", text)
		}
		seen[key] = true
		bases = append(bases, object)
		written = append(written, diagnose(object))
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for len(random) < count {
		object := damage(r, bases[r.IntN(len(bases))])
		if key := compact(object); !seen[key] {
			seen[key] = true
			random = append(random, diagnose(object))
		}
	}
	fmt.Fprintf(out, "{\n%s: %s,\n", compact("library"), compact(healthLibrary+" "+versionOf(healthLibrary)))
	writeList(out, "written", written, false)
	writeList(out, "random", random, true)
	fmt.Fprintln(out, "}")
}

func mustObject(text string) map[string]any {
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON([]byte(text)); err != nil {
		log.Fatalf("%s: %v", text, err)
	}
	return object.Object
}

func diagnose(object map[string]any) (result diagnosis) {
	result = diagnosis{Object: object, Status: string(status.UnknownStatus)}
	// Some functions of the library take the form of an object for granted.
	defer func() {
		if recover() != nil {
			result = diagnosis{Object: object, Status: string(status.UnknownStatus)}
		}
	}()
	// The library gets the object as a client would have read it.
	read := mustObject(compact(object))
	found, err := status.Compute(&unstructured.Unstructured{Object: read})
	if err != nil {
		return result
	}
	return diagnosis{Object: object, Status: string(found.Status), Message: found.Message}
}

// damage changes a copy of an object in one to four places.
func damage(r *rand.Rand, base map[string]any) map[string]any {
	object := clone(base)
	for range 1 + r.IntN(4) {
		damageOnce(r, object)
		// The values that were put in are those of a table, and must not be changed with the object.
		object = clone(object)
	}
	return object
}

func clone(object map[string]any) map[string]any {
	var copied map[string]any
	if err := json.Unmarshal([]byte(compact(object)), &copied); err != nil {
		log.Fatal(err)
	}
	return copied
}

func damageOnce(r *rand.Rand, object map[string]any) {
	switch r.IntN(12) {
	case 0:
		set(object, r, []string{"metadata", "deletionTimestamp"}, pick(r, []any{"2026-01-01T00:00:00Z", "", "", "", nil, 5}))
	case 1:
		set(object, r, []string{"metadata", "generation"}, pick(r, []any{1, 1, 1, 1, 2, 2, 2, 2, 3, nil, "2", 2.5}))
	case 2:
		set(object, r, []string{"status", "observedGeneration"}, pick(r, []any{1, 1, 1, 1, 2, 2, 2, 2, 3, nil, "2", 2.5}))
	case 3:
		set(object, r, []string{"metadata", "creationTimestamp"}, pick(r, []any{"2000-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "now", nil}))
	case 4, 5, 6:
		changeConditions(r, object)
	case 7:
		set(object, r, []string{pick(r, []string{"spec", "status"})}, pick(r, []any{nil, map[string]any{}, "text", []any{}}))
	default:
		changeLeaf(r, object)
	}
}

// set writes a value at a path where the way there is made of objects.
func set(object map[string]any, r *rand.Rand, path []string, value any) {
	for _, name := range path[:len(path)-1] {
		inner, ok := object[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			object[name] = inner
		}
		object = inner
	}
	object[path[len(path)-1]] = value
}

var (
	conditionTypes    = []any{"Ready", "Reconciling", "Stalled", "Available", "Progressing", "Complete", "Failed", "ReplicaFailure", "PodScheduled", "Established", "NamesAccepted", "Stalled", "Failed", "Progressing", "Ready", "Other", "Other", nil, 7}
	conditionStatuses = []any{"True", "True", "True", "True", "True", "True", "True", "False", "False", "False", "False", "Unknown", "maybe", nil, true}
	conditionReasons  = []any{"NewReplicaSetAvailable", "ProgressDeadlineExceeded", "ProgressDeadlineExceeded", "Unschedulable", "Installing", "Because", "Because", nil, 1}
	wrong             = []any{nil, "text", -1, 0, 1, 2, 3, 5, 2.5, 9223372036854775807.0, true, []any{}, []any{nil}, []any{"text"}, map[string]any{}}
)

func changeConditions(r *rand.Rand, object map[string]any) {
	state, ok := object["status"].(map[string]any)
	if !ok {
		state = map[string]any{}
		object["status"] = state
	}
	conditions, _ := state["conditions"].([]any)
	condition := map[string]any{"type": pick(r, conditionTypes), "status": pick(r, conditionStatuses)}
	if r.IntN(2) == 0 {
		condition["reason"] = pick(r, conditionReasons)
		condition["message"] = "in words"
	}
	switch {
	case r.IntN(24) == 0:
		state["conditions"] = pick(r, wrong)
	case len(conditions) > 0 && r.IntN(3) == 0:
		conditions[r.IntN(len(conditions))] = pick(r, []any{condition, condition, condition, nil, "text"})
	case len(conditions) > 0 && r.IntN(3) == 0:
		at := r.IntN(len(conditions))
		state["conditions"] = append(append([]any{}, conditions[:at]...), conditions[at+1:]...)
	default:
		state["conditions"] = append([]any{condition}, conditions...)
	}
}

// changeLeaf walks to some field below spec or status and takes it away or
// gives it another value.
func changeLeaf(r *rand.Rand, object map[string]any) {
	at, ok := object[pick(r, []string{"spec", "status", "status"})].(map[string]any)
	for ok && len(at) > 0 {
		names := sortedKeys(at)
		name := pick(r, names)
		switch inner := at[name].(type) {
		case map[string]any:
			if r.IntN(4) > 0 {
				at, ok = inner, true
				continue
			}
		case []any:
			if len(inner) > 0 && r.IntN(3) > 0 {
				if first, isMap := inner[r.IntN(len(inner))].(map[string]any); isMap {
					at = first
					continue
				}
			}
		}
		if r.IntN(3) == 0 {
			delete(at, name)
		} else {
			at[name] = pick(r, wrong)
		}
		return
	}
}

func pick[T any](r *rand.Rand, of []T) T {
	return of[r.IntN(len(of))]
}

// object is the JSON of an object: apiVersion and kind in one text, such as
// `apps/v1 Deployment`, and the rest of its fields.
func object(kind string, fields string) string {
	version, name, _ := strings.Cut(kind, " ")
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s}`, version, name, fields)
}
