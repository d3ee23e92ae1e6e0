package main

import (
	"bufio"
	"fmt"
	"log"
	"math/rand/v2"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

const (
	// Schemas of custom resources, each used by many runs.
	schemaCount = 60
	// Steps of a run.
	leastSteps, mostSteps = 3, 7
	// How deep schemas and values of built-in kinds go.
	deepest = 3
)

// Built-in kinds that runs are about, one run in four.
var builtins = [][]string{
	{"apps/v1", "Deployment"},
	{"v1", "Service"},
	{"v1", "Pod"},
	{"v1", "ConfigMap"},
	{"v1", "ServiceAccount"},
	{"networking.k8s.io/v1", "Ingress"},
	{"autoscaling/v2", "HorizontalPodAutoscaler"},
	{"apiextensions.k8s.io/v1", "CustomResourceDefinition"},
	{"v1", "Node"},
}

// generator makes schemas and values. There are few names and few scalars, so
// that managers get in each other's way.
type generator struct{ *rand.Rand }

func (g generator) oneIn(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

// writeRandom writes the schemas and then the runs.
func writeRandom(out *bufio.Writer, seed uint64, count int, specs string) {
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	schemas := make([]*apiextensions.JSONSchemaProps, schemaCount)
	for i := range schemas {
		schemas[i] = g.root()
	}
	models := readModels(specs)
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme} {
		if err := add(types); err != nil {
			log.Fatal(err)
		}
	}
	worlds := map[string]*world{}
	runs := make([]*run, count)
	for i := range runs {
		r := &run{}
		var key string
		var make func() *world
		if g.oneIn(4) {
			r.Builtin = pick(g, builtins...)
			key = strings.Join(r.Builtin, " ")
			make = func() *world { return builtinWorld(models, types, r.Builtin[0], r.Builtin[1]) }
		} else {
			first := g.IntN(schemaCount)
			r.Custom = map[string]int{"v1": first}
			if g.oneIn(3) {
				r.Custom["v2"] = first
			}
			key = compact(r.Custom)
			make = func() *world {
				byVersion := map[string]*apiextensions.JSONSchemaProps{}
				for version, place := range r.Custom {
					byVersion[version] = schemas[place]
				}
				return customWorld(byVersion)
			}
		}
		if worlds[key] == nil {
			worlds[key] = make()
		}
		g.fill(r, worlds[key])
		runs[i] = r
	}
	fmt.Fprintf(out, "{\"seed\":%d,\n\"schemas\":", seed)
	writeLines(out, schemas)
	out.WriteString(",\"runs\":")
	writeLines(out, runs)
	out.WriteString("}\n")
}

func (g generator) root() *apiextensions.JSONSchemaProps {
	if g.oneIn(20) {
		return nil
	}
	root := &apiextensions.JSONSchemaProps{Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{}}
	root.Properties["spec"] = g.object(deepest)
	if !g.oneIn(3) {
		root.Properties["status"] = g.object(1)
	}
	if g.oneIn(10) {
		root.XPreserveUnknownFields = ptr(true)
	}
	return root
}

func (g generator) object(depth int) apiextensions.JSONSchemaProps {
	s := apiextensions.JSONSchemaProps{Type: "object"}
	switch {
	case g.oneIn(8):
		s.XPreserveUnknownFields = ptr(true)
	case g.oneIn(12):
		s.XEmbeddedResource = true
		s.XPreserveUnknownFields = ptr(true)
	}
	if g.oneIn(6) {
		s.XMapType = ptr(pick(g, "atomic", "granular"))
	}
	if s.XPreserveUnknownFields != nil && g.oneIn(2) {
		return s
	}
	if s.XPreserveUnknownFields == nil && g.oneIn(4) {
		s.AdditionalProperties = &apiextensions.JSONSchemaPropsOrBool{Allows: true, Schema: ptr(g.schema(depth - 1))}
		return s
	}
	s.Properties = map[string]apiextensions.JSONSchemaProps{}
	for _, name := range []string{"a", "b", "c", "d", "e"}[:2+g.IntN(4)] {
		s.Properties[name] = g.schema(depth - 1)
	}
	return s
}

func (g generator) schema(depth int) apiextensions.JSONSchemaProps {
	if depth <= 0 || g.oneIn(4) {
		return g.scalar()
	}
	switch g.IntN(8) {
	case 0, 1, 2:
		return g.object(depth)
	case 3:
		return g.list(g.schema(depth-1), pick(g, nil, ptr("atomic")))
	case 4:
		return g.list(pick(g, apiextensions.JSONSchemaProps{Type: "string"}, apiextensions.JSONSchemaProps{Type: "integer"}), ptr("set"))
	default:
		return g.keyed(depth)
	}
}

func (g generator) scalar() apiextensions.JSONSchemaProps {
	return pick(g,
		apiextensions.JSONSchemaProps{Type: "string"},
		apiextensions.JSONSchemaProps{Type: "string"},
		apiextensions.JSONSchemaProps{Type: "integer"},
		apiextensions.JSONSchemaProps{Type: "number"},
		apiextensions.JSONSchemaProps{Type: "boolean"},
		apiextensions.JSONSchemaProps{Type: "string", Format: "date-time"},
		apiextensions.JSONSchemaProps{XIntOrString: true},
	)
}

func (g generator) list(items apiextensions.JSONSchemaProps, relation *string) apiextensions.JSONSchemaProps {
	return apiextensions.JSONSchemaProps{
		Type:      "array",
		Items:     &apiextensions.JSONSchemaPropsOrArray{Schema: &items},
		XListType: relation,
	}
}

func (g generator) keyed(depth int) apiextensions.JSONSchemaProps {
	item := g.object(depth)
	item.AdditionalProperties, item.XEmbeddedResource = nil, false
	if item.Properties == nil {
		item.Properties = map[string]apiextensions.JSONSchemaProps{}
	}
	keys := []string{"name"}
	item.Properties["name"] = apiextensions.JSONSchemaProps{Type: "string"}
	if g.oneIn(2) {
		keys = append(keys, "port")
		port := apiextensions.JSONSchemaProps{Type: "integer"}
		if g.oneIn(2) {
			port.Default = &apiextensions.JSON{Raw: []byte("1")}
		}
		item.Properties["port"] = port
	}
	s := g.list(item, ptr("map"))
	s.XListMapKeys = keys
	return s
}

// fill gives a run its steps. Each manager's next configuration is a changed
// form of its last one; an update is a changed form of the object.
func (g generator) fill(r *run, w *world) {
	managers := []string{"a", "b", "c"}
	if g.oneIn(30) {
		managers = append(managers, "kubectl")
	}
	last := map[string]object{}
	var live object
	count := leastSteps + g.IntN(mostSteps-leastSteps+1)
	for i := range count {
		s := step{Manager: pick(g, managers...), Version: pick(g, w.versions...)}
		s.Do = pick(g, "apply", "apply", "apply", "force", "update", "update")
		s.Reset = !g.oneIn(3)
		if g.oneIn(6) {
			s.Subresource = "status"
		}
		if s.Do == "update" {
			s.Object = g.change(w, live, s.Version, true)
			if g.oneIn(25) {
				s.Object["metadata"].(object)["managedFields"] = pick[any](g, []any{}, []any{object{}})
			}
		} else {
			s.Object = g.change(w, last[s.Manager], s.Version, false)
			last[s.Manager] = runtime.DeepCopyJSON(normal(s.Object).(object))
		}
		s.Object["apiVersion"], s.Object["kind"] = s.Version, w.kind
		partial := &run{Live: r.Live, Steps: append(append([]step{}, r.Steps...), s)}
		_ = i
		w.play(partial)
		r.Steps = partial.Steps
		live = current(partial)
	}
}

// current is the object after the last step that was no error.
func current(r *run) object {
	for i := len(r.Steps) - 1; i >= 0; i-- {
		s := &r.Steps[i]
		switch {
		case s.Code != 0:
			continue
		case s.Result != nil:
			return s.Result
		}
		copied := runtime.DeepCopyJSON(s.Object)
		delete(copied["metadata"].(object), "managedFields")
		return copied
	}
	return nil
}

// change is another form of an object, or a new one.
func (g generator) change(w *world, from object, version string, update bool) object {
	v := valuer{g, w, update}
	var out object
	if from == nil {
		out, _ = v.value(w.types[version], deepest+2).(object)
		if out == nil {
			out = object{}
		}
	} else {
		out, _ = v.mutate(w.types[version], runtime.DeepCopyJSON(from), deepest+2).(object)
		if out == nil {
			out = object{}
		}
	}
	metadata := object{"name": "x"}
	if old, ok := from["metadata"].(object); ok {
		metadata = runtime.DeepCopyJSON(old)
	}
	g.metadata(metadata, update)
	out["metadata"] = metadata
	return out
}

func (g generator) metadata(metadata object, update bool) {
	if g.oneIn(3) {
		labels := object{}
		for _, name := range []string{"p", "q"} {
			if g.oneIn(2) {
				labels[name] = pick(g, "1", "2")
			}
		}
		metadata["labels"] = labels
	}
	if g.oneIn(8) {
		metadata["finalizers"] = pick(g, []any{"f/a"}, []any{"f/b", "f/a"}, []any{})
	}
	if g.oneIn(10) {
		owners := []any{object{"uid": "1", "name": "o", "kind": "K", "apiVersion": "v1"}}
		if update && g.oneIn(3) {
			owners = append(owners, owners[0])
		}
		metadata["ownerReferences"] = owners
	}
	if g.oneIn(12) {
		delete(metadata, pick(g, "labels", "finalizers", "ownerReferences"))
	}
}

// valuer makes values of a type.
type valuer struct {
	generator
	w      *world
	update bool
}

func (v valuer) resolve(ref schema.TypeRef) schema.Atom {
	atom, ok := v.w.schema.Resolve(ref)
	if !ok {
		log.Fatalf("cannot resolve %v", ref)
	}
	return atom
}

func (v valuer) value(ref schema.TypeRef, depth int) any {
	// What does not fit, where the answer is an error.
	if v.oneIn(250) {
		return pick[any](v.generator, "x", 7, true, []any{"x"}, object{"x": 1}, nil, 1.5)
	}
	atom := v.resolve(ref)
	if atom.Scalar != nil && (atom.Map == nil && atom.List == nil || depth <= 0 || v.oneIn(2)) {
		return v.scalar(*atom.Scalar)
	}
	if atom.Map != nil && (atom.List == nil || v.oneIn(2)) {
		return v.mapping(atom.Map, depth)
	}
	if atom.List != nil {
		return v.list(atom.List, depth)
	}
	return nil
}

func (v valuer) scalar(kind schema.Scalar) any {
	switch kind {
	case schema.Numeric:
		return pick[any](v.generator, 0, 1, 2, 2, 1.5, 80, 443)
	case schema.Boolean:
		return v.oneIn(2)
	case schema.String:
		return pick(v.generator, "", "m", "n")
	}
	return pick[any](v.generator, "m", 1, "5%")
}

func (v valuer) mapping(m *schema.Map, depth int) any {
	out := object{}
	if depth <= 0 {
		return out
	}
	// Large types get a few fields of them, always the same ones.
	chance := max(2, len(m.Fields)/4)
	for _, field := range sorted(m.Fields) {
		if v.oneIn(chance) && field.Name != "managedFields" {
			out[field.Name] = v.value(field.Type, depth-1)
		}
	}
	if open(m) {
		for _, name := range []string{"k", "l"} {
			if v.oneIn(2) {
				out[name] = v.value(m.ElementType, depth-1)
			}
		}
	} else if v.oneIn(400) {
		out["unknown"] = "x"
	}
	return out
}

func open(m *schema.Map) bool {
	return m.ElementType.NamedType != nil || m.ElementType.Inlined != (schema.Atom{})
}

func (v valuer) list(l *schema.List, depth int) any {
	out := []any{}
	if depth <= 0 {
		return out
	}
	for range v.IntN(4) {
		out = v.add(l, out, v.value(l.ElementType, depth-1))
	}
	return out
}

// add appends an item that is not there yet; rarely one that is.
func (v valuer) add(l *schema.List, items []any, item any) []any {
	if l.ElementRelationship != schema.Associative {
		return append(items, item)
	}
	if entry, ok := item.(object); ok {
		for _, key := range l.Keys {
			if _, ok := entry[key]; !ok && !v.oneIn(8) {
				entry[key] = v.value(v.keyType(l, key), 1)
			}
		}
	}
	chance := 150
	if v.update {
		chance = 12
	}
	if v.oneIn(chance) {
		return append(items, item)
	}
	for _, other := range items {
		if sameItem(l, other, item) {
			return items
		}
	}
	return append(items, item)
}

func (v valuer) keyType(l *schema.List, key string) schema.TypeRef {
	atom := v.resolve(l.ElementType)
	if atom.Map != nil {
		if field, ok := atom.Map.FindField(key); ok {
			return field.Type
		}
	}
	return schema.TypeRef{Inlined: schema.Atom{Scalar: ptr(schema.String)}}
}

func sameItem(l *schema.List, a, b any) bool {
	left, isMap := a.(object)
	right, isMapToo := b.(object)
	if !isMap || !isMapToo {
		return compact(a) == compact(b)
	}
	for _, key := range l.Keys {
		if fmt.Sprint(left[key]) != fmt.Sprint(right[key]) {
			return false
		}
	}
	return true
}

// mutate changes a value here and there.
func (v valuer) mutate(ref schema.TypeRef, value any, depth int) any {
	atom := v.resolve(ref)
	switch value := value.(type) {
	case object:
		if atom.Map == nil {
			return value
		}
		return v.mutateMap(atom.Map, value, depth)
	case []any:
		if atom.List == nil {
			return value
		}
		return v.mutateList(atom.List, value, depth)
	}
	if v.oneIn(3) {
		return v.value(ref, depth)
	}
	return value
}

func (v valuer) mutateMap(m *schema.Map, value object, depth int) any {
	for _, name := range sortedKeys(value) {
		ref := m.ElementType
		if field, ok := m.FindField(name); ok {
			ref = field.Type
		} else if !open(m) {
			continue
		}
		if v.oneIn(5) {
			delete(value, name)
		} else {
			value[name] = v.mutate(ref, value[name], depth-1)
		}
	}
	if v.oneIn(3) && depth > 0 {
		if more, ok := v.mapping(m, depth).(object); ok {
			for name, item := range more {
				if _, ok := value[name]; !ok {
					value[name] = item
				}
			}
		}
	}
	return value
}

func (v valuer) mutateList(l *schema.List, items []any, depth int) any {
	out := []any{}
	for _, item := range items {
		if v.oneIn(5) {
			continue
		}
		if l.ElementRelationship == schema.Associative && len(l.Keys) == 0 {
			out = append(out, item)
			continue
		}
		keys := object{}
		if entry, ok := item.(object); ok {
			for _, key := range l.Keys {
				if value, ok := entry[key]; ok {
					keys[key] = value
				}
			}
		}
		item = v.mutate(l.ElementType, item, depth-1)
		if entry, ok := item.(object); ok {
			for key, value := range keys {
				entry[key] = value
			}
		}
		out = append(out, item)
	}
	if v.oneIn(3) && depth > 0 {
		out = v.add(l, out, v.value(l.ElementType, depth-1))
	}
	if v.oneIn(5) && len(out) > 1 {
		out[0], out[len(out)-1] = out[len(out)-1], out[0]
	}
	return out
}

func sorted(fields []schema.StructField) []schema.StructField {
	byName := map[string]schema.StructField{}
	for _, field := range fields {
		byName[field.Name] = field
	}
	out := make([]schema.StructField, 0, len(fields))
	for _, name := range sortedKeys(byName) {
		out = append(out, byName[name])
	}
	return out
}
