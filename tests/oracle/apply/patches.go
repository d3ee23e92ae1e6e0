package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	gvks "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/schema"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// A patched object: what is sent to which object, and what comes of it.
type patched struct {
	// json, merge or strategic.
	How string `json:"how"`
	// The kind, for a strategic merge patch.
	Of     []string `json:"of,omitempty"`
	Object any      `json:"obj"`
	Patch  any      `json:"patch"`

	Result any `json:"is,omitempty"`
	// The status code of a refusal, and the text if clients see it and it is
	// the same each time.
	Code  int    `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}

// What is done to a document for JSON patches and merge patches.
const document = `{"a":{"b":[1,{"c":"x"},[2,3]],"d":null,"e/f":{"~":1}},"g":"text","h":[],"i":1.5}`

var jsonPatches = []string{
	`[]`, `null`, `{}`, `[1]`, `"x"`,
	`[{"op":"add","path":"/new","value":{"x":null}}]`,
	`[{"op":"add","path":"/a/b/1","value":9}]`,
	`[{"op":"add","path":"/a/b/-","value":9}]`,
	`[{"op":"add","path":"/a/b/3","value":9}]`,
	`[{"op":"add","path":"/a/b/4","value":9}]`,
	`[{"op":"add","path":"/a/b/-1","value":9}]`,
	`[{"op":"add","path":"/a/b/-4","value":9}]`,
	`[{"op":"add","path":"/a/b/-5","value":9}]`,
	`[{"op":"add","path":"/a/b/x","value":9}]`,
	`[{"op":"add","path":"/a/b/1/c/d","value":9}]`,
	`[{"op":"add","path":"/no/where","value":9}]`,
	`[{"op":"add","path":"/a/d/x","value":9}]`,
	`[{"op":"add","path":"","value":{}}]`,
	`[{"op":"add","path":"a","value":{}}]`,
	`[{"op":"add","path":"x/new","value":{}}]`,
	`[{"op":"add","path":"/new"}]`,
	`[{"op":"add","value":1}]`,
	`[{"op":"add","path":"/a/e~1f/~0","value":2},{"op":"add","path":"/a/e~1f/~01","value":3}]`,
	`[{"op":"add","path":"/","value":3}]`,
	`[{"op":"remove","path":"/g"}]`,
	`[{"op":"remove","path":"/no"}]`,
	`[{"op":"remove","path":"/a/d"}]`,
	`[{"op":"remove","path":"/a/b/0"}]`,
	`[{"op":"remove","path":"/a/b/-1"}]`,
	`[{"op":"remove","path":"/a/b/3"}]`,
	`[{"op":"remove","path":"/a/b/-"}]`,
	`[{"op":"remove","path":"/g/x"}]`,
	`[{"op":"remove","path":""}]`,
	`[{"op":"replace","path":"/g","value":[1]}]`,
	`[{"op":"replace","path":"/no","value":1}]`,
	`[{"op":"replace","path":"/a/b/2/0","value":7}]`,
	`[{"op":"replace","path":"/a/b/-2","value":7}]`,
	`[{"op":"replace","path":"/a/b/3","value":7}]`,
	`[{"op":"replace","path":"","value":{"whole":1}}]`,
	`[{"op":"replace","path":"","value":1}]`,
	`[{"op":"replace","path":"/g"}]`,
	`[{"op":"move","from":"/g","path":"/a/b/0"}]`,
	`[{"op":"move","from":"/a/b/0","path":"/a/b/2"}]`,
	`[{"op":"move","from":"/no","path":"/x"}]`,
	`[{"op":"move","from":"/a","path":"/a/x"}]`,
	`[{"op":"move","path":"/x"}]`,
	`[{"op":"copy","from":"/a/b","path":"/h/-"}]`,
	`[{"op":"copy","from":"/no","path":"/x"}]`,
	`[{"op":"copy","from":"/h/0","path":"/x"}]`,
	`[{"op":"test","path":"/g","value":"text"},{"op":"remove","path":"/g"}]`,
	`[{"op":"test","path":"/g","value":"other"},{"op":"remove","path":"/g"}]`,
	`[{"op":"test","path":"/a/d","value":null}]`,
	`[{"op":"test","path":"/no","value":null}]`,
	`[{"op":"test","path":"/no"}]`,
	`[{"op":"test","path":"/g"}]`,
	`[{"op":"test","path":"/no","value":1}]`,
	`[{"op":"test","path":"/no/no","value":null}]`,
	`[{"op":"test","path":"/a/b","value":[1,{"c":"x"},[2,3]]}]`,
	`[{"op":"test","path":"/a/b","value":[1,{"c":"x"},[3,2]]}]`,
	`[{"op":"test","path":"/i","value":1.5}]`,
	`[{"op":"test","path":"/h","value":[]}]`,
	`[{"op":"test","path":"/h/0","value":1}]`,
	`[{"op":"merge","path":"/g","value":"text"}]`,
	`[{"path":"/g","value":"text"}]`,
	`[{"op":"add","path":"/x","value":1},{"op":"remove","path":"/y"}]`,
}

var mergePatches = []string{
	// The API server refuses a list before the library sees it.
	`{}`, `null`, `1`, `"x"`, `true`,
	`{"g":null,"no":null}`,
	`{"a":{"b":null,"d":1,"new":{"x":null,"y":{"z":null},"l":[null,{"n":null}]}}}`,
	`{"a":"scalar"}`, `{"a":[1,{"n":null}]}`, `{"g":{"x":null,"y":[{"z":null}]}}`,
	`{"h":{"x":null,"y":1}}`, `{"a":{"d":{"x":null,"y":1}}}`, `{"a":{"b":[{"x":null}]}}`,
	`{"new":[{"x":null}]}`,
}

// strategicCases are a kind, an object and patches.
var strategicCases = []struct {
	of      []string
	object  string
	patches []string
}{
	{[]string{"v1", "Pod"}, `{"metadata":{"name":"p","labels":{"a":"1","b":"2"},"finalizers":["f/a","f/b","f/c"]},"spec":{"containers":[{"name":"a","image":"1","env":[{"name":"E","value":"1"}],"ports":[{"containerPort":80},{"containerPort":81,"protocol":"UDP"}],"args":["x"]},{"name":"b","image":"2"},{"name":"c","image":"3"}],"volumes":[{"name":"v","emptyDir":{}},{"name":"w","secret":{"secretName":"s"}}],"tolerations":[{"key":"k"}],"nodeSelector":{"n":"1"}}}`, []string{
		`{"spec":{"containers":[{"name":"b","image":"9"}]}}`,
		`{"spec":{"containers":[{"name":"d","image":"9","command":null},{"name":"a","env":[{"name":"F","value":"2"},{"name":"E","value":null}]}]}}`,
		`{"spec":{"containers":[{"image":"9"}]}}`,
		`{"spec":{"containers":[{"name":"b","$patch":"delete"},{"name":"none","$patch":"delete"}]}}`,
		`{"spec":{"containers":[{"$patch":"delete"}]}}`,
		`{"spec":{"containers":[{"$patch":"replace"},{"name":"z"}]}}`,
		`{"spec":{"containers":[{"name":"b","$patch":"merge"}]}}`,
		`{"spec":{"containers":[{"name":"b","$patch":"other"}]}}`,
		`{"spec":{"$patch":"replace","nodeName":"n"}}`,
		`{"spec":{"nodeSelector":{"$patch":"delete"}}}`,
		`{"spec":{"nodeSelector":{"$patch":"other"}}}`,
		`{"metadata":{"labels":{"a":null,"c":"3"}}}`,
		`{"metadata":{"labels":null}}`,
		`{"metadata":{"annotations":{"x":null,"y":"1"}}}`,
		`{"metadata":{"finalizers":["f/c","f/d"]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["f/a","f/x"]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["f/a"],"finalizers":["f/d"],"$setElementOrder/finalizers":["f/d","f/c","f/b"]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/none":["f/a"]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":"f/a"}}`,
		`{"metadata":{"$deleteFromPrimitiveListfinalizers":["f/a"]}}`,
		`{"metadata":{"finalizers":[1]}}`,
		`{"metadata":{"finalizers":[["x"]]}}`,
		`{"metadata":{"finalizers":"x"}}`,
		`{"metadata":{"finalizers":[]}}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"c"},{"name":"a"},{"name":"b"}]}}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}]}}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"c"},{"name":"d"},{"name":"a"}],"containers":[{"name":"d","image":"9"},{"name":"b","$patch":"delete"}]}}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"a"}],"containers":[{"name":"d","image":"9"}]}}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"a"},{"name":"d"}],"containers":[{"name":"d"},{"name":"a"}]}}`,
		`{"spec":{"$setElementOrder/containers":[{"image":"a"}],"containers":[{"name":"a","image":"7"}]}}`,
		`{"spec":{"$setElementOrder/containers":[],"containers":[{"name":"a","image":"7"},{"name":"x"}]}}`,
		`{"spec":{"$setElementOrder/containers":"x"}}`,
		`{"spec":{"$setElementOrder/nothing":[{"name":"a"}]}}`,
		`{"spec":{"$setElementOrder/initContainers":[{"name":"j"},{"name":"i"}],"initContainers":[{"name":"j"},{"name":"i","image":null}]}}`,
		`{"spec":{"$setElementOrder/initContainers":[{"name":"j"}]}}`,
		`{"spec":{"volumes":[{"name":"v","$retainKeys":["name","configMap"],"configMap":{"name":"c"},"emptyDir":null}]}}`,
		`{"spec":{"volumes":[{"name":"v","$retainKeys":["name"],"configMap":{"name":"c"}}]}}`,
		`{"spec":{"volumes":[{"name":"v","$retainKeys":"name"}]}}`,
		`{"spec":{"volumes":[{"name":"x","$retainKeys":["name","configMap"],"configMap":{"name":"c"}}]}}`,
		`{"spec":{"tolerations":[{"key":"l"}]}}`,
		`{"spec":{"containers":[{"name":"a","ports":[{"containerPort":80,"name":"w"},{"containerPort":82}]}]}}`,
		`{"spec":{"containers":[{"name":"a","ports":[{"containerPort":80.0,"name":"w"}]}]}}`,
		`{"spec":{"containers":[{"name":"a","args":["y","z"]}]}}`,
		`{"spec":{"containers":{"name":"a"}}}`,
		`{"spec":{"containers":["a"]}}`,
		`{"spec":{"containers":null}}`,
		`{"spec":{"unknown":{"x":1},"containers":[]}}`,
		`{"spec":{"affinity":{"$patch":"delete"},"hostAliases":[{"ip":"1","$patch":"delete"},{"ip":"2"}]}}`,
		`{"$patch":"delete"}`, `{"$patch":"replace","kind":"x"}`,
	}},
	{[]string{"apps/v1", "Deployment"}, `{"metadata":{"name":"d"},"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}},"template":{"metadata":{"labels":{"a":"1"}},"spec":{"containers":[{"name":"a","image":"1"}]}}},"status":{"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True"}]}}`, []string{
		`{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`,
		`{"spec":{"strategy":{"$retainKeys":["type","rollingUpdate"],"type":"RollingUpdate","rollingUpdate":{"maxSurge":2}}}}`,
		`{"spec":{"strategy":{"$retainKeys":["rollingUpdate"],"type":"Recreate"}}}`,
		`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"t"}}}}}`,
		`{"status":{"conditions":[{"type":"Available","status":"False"},{"type":"ReplicaFailure","status":"True"}]}}`,
		`{"spec":{"replicas":3,"paused":null}}`,
	}},
	{[]string{"v1", "Service"}, `{"metadata":{"name":"s"},"spec":{"ports":[{"port":80,"name":"a","protocol":"TCP"},{"port":80,"name":"b","protocol":"UDP"},{"port":443,"name":"c"}],"selector":{"a":"1"},"externalIPs":["1.1.1.1"]}}`, []string{
		`{"spec":{"ports":[{"port":80,"name":"z"}]}}`,
		`{"spec":{"ports":[{"port":80,"$patch":"delete"}]}}`,
		`{"spec":{"ports":[{"port":8080,"name":"n"},{"port":443,"targetPort":"x"}],"$setElementOrder/ports":[{"port":443},{"port":8080},{"port":80}]}}`,
		`{"spec":{"externalIPs":["2.2.2.2"],"selector":{"$patch":"replace","b":"2"}}}`,
	}},
	{[]string{"v1", "ServiceAccount"}, `{"metadata":{"name":"s"},"secrets":[{"name":"a"},{"name":"b"}],"imagePullSecrets":[{"name":"c"},{"name":"a"}]}`, []string{
		`{"secrets":[{"name":"c"}],"imagePullSecrets":[{"name":"a"},{"name":"b"}]}`,
		`{"imagePullSecrets":[{"$patch":"delete","name":"c"}]}`,
	}},
	{[]string{"v1", "ConfigMap"}, `{"metadata":{"name":"s","ownerReferences":[{"uid":"1","name":"x"}]},"data":{"a":"1","b":"2"}}`, []string{
		`{"data":{"a":null,"c":"3"}}`, `{"data":{"$patch":"replace","c":"3"}}`, `{"data":null}`, `{"data":"x"}`,
		`{"metadata":{"ownerReferences":[{"uid":"2","name":"y"},{"uid":"1","controller":true}]}}`,
		`{"metadata":{"ownerReferences":[{"uid":"1","$patch":"delete"}]}}`,
	}},
}

func writePatches(out *bufio.Writer, seed uint64, count int, specs string) {
	types := allTypes()
	var cases []patched
	for _, patch := range jsonPatches {
		cases = append(cases, patched{How: "json", Object: decoded(document), Patch: decoded(patch)})
	}
	for _, patch := range mergePatches {
		cases = append(cases, patched{How: "merge", Object: decoded(document), Patch: decoded(patch)})
	}
	for _, group := range strategicCases {
		for _, patch := range group.patches {
			cases = append(cases, patched{How: "strategic", Of: group.of, Object: decoded(group.object), Patch: decoded(patch)})
		}
	}
	cases = append(cases, randomPatches(seed, count, specs, types)...)
	kept := cases[:0]
	for _, c := range cases {
		if c.ask(types) {
			kept = append(kept, c)
		}
	}
	writeLines(out, kept)
}

func decoded(text string) any {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return normal(value)
}

// ask writes down what comes of the patch. Some depend on the order of a Go
// map, or crash: they say nothing.
func (c *patched) ask(types *runtime.Scheme) (usable bool) {
	defer func() {
		if recover() != nil {
			usable = false
		}
	}()
	var first string
	for i := range 60 {
		result, err := c.once(types)
		c.Result, c.Code, c.Error = nil, 0, ""
		if err != nil {
			c.Code, c.Error = refusal(c.How, err)
		} else {
			c.Result = result
		}
		answer := compact([]any{c.Result, c.Code, c.Error})
		if i > 0 && answer != first {
			if err == nil || !strings.Contains(first, "null,"+fmt.Sprint(c.Code)) {
				return false
			}
			c.Error = ""
			return true
		}
		first = answer
	}
	return true
}

func (c *patched) once(types *runtime.Scheme) (any, error) {
	document, patch := []byte(compact(c.Object)), []byte(compact(c.Patch))
	switch c.How {
	case "json":
		decodedPatch, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		result, err := decodedPatch.Apply(document)
		if err != nil {
			return nil, apierrors.NewInvalid(gvks.GroupKind{}, "", field.ErrorList{})
		}
		return decoded(string(result)), nil
	case "merge":
		result, err := jsonpatch.MergePatch(document, patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return decoded(string(result)), nil
	}
	reference, err := types.New(gvks.FromAPIVersionAndKind(c.Of[0], c.Of[1]))
	if err != nil {
		panic(err)
	}
	left := runtime.DeepCopyJSONValue(c.Object).(object)
	right := runtime.DeepCopyJSONValue(c.Patch).(object)
	return strategicpatch.StrategicMergeMapPatch(left, right, reference)
}

// refusal is the status code and, for strategic merge patches, the text.
func refusal(how string, err error) (int, string) {
	if status, ok := err.(apierrors.APIStatus); ok {
		return int(status.Status().Code), ""
	}
	switch err {
	case mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys, mergepatch.ErrBadPatchFormatForSetElementOrderList:
		return 400, err.Error()
	case mergepatch.ErrNoListOfLists:
		return 422, ""
	}
	return 500, err.Error()
}

// randomPatches are changed forms of random objects, with directives.
func randomPatches(seed uint64, count int, specs string, types *runtime.Scheme) []patched {
	g := generator{rand.New(rand.NewPCG(seed, 1))}
	models := readModels(specs)
	worlds := map[string]*world{}
	var cases []patched
	for len(cases) < count {
		of := pick(g, builtins...)
		key := strings.Join(of, " ")
		if worlds[key] == nil {
			worlds[key] = builtinWorld(models, types, of[0], of[1])
		}
		w := worlds[key]
		live := normal(g.change(w, nil, of[0], true)).(object)
		// What is stored fits its type.
		typed, err := types.New(gvks.FromAPIVersionAndKind(of[0], of[1]))
		if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(live, typed) != nil {
			continue
		}
		patch := normal(g.change(w, live, of[0], true)).(object)
		v := valuer{g, w, true}
		how := pick(g, "strategic", "strategic", "strategic", "merge")
		v.direct(w.types[of[0]], patch, how)
		c := patched{How: how, Object: normal(live), Patch: normal(patch)}
		if how == "strategic" {
			c.Of = of
		}
		cases = append(cases, c)
	}
	return cases
}

// direct takes fields out of a patch, makes some null and puts directives in.
func (v valuer) direct(ref schema.TypeRef, value any, how string) {
	atom := v.resolve(ref)
	switch value := value.(type) {
	case object:
		if atom.Map == nil {
			return
		}
		for _, name := range sortedKeys(value) {
			next := atom.Map.ElementType
			if field, ok := atom.Map.FindField(name); ok {
				next = field.Type
			} else if !open(atom.Map) {
				continue
			}
			switch {
			case v.oneIn(6):
				delete(value, name)
				continue
			case v.oneIn(12):
				value[name] = nil
				continue
			}
			v.direct(next, value[name], how)
			list, isList := value[name].([]any)
			if how == "strategic" && isList {
				v.directList(value, name, list)
			}
		}
		if how == "strategic" && v.oneIn(30) {
			value["$patch"] = pick(v.generator, "replace", "delete")
		}
		if how == "strategic" && v.oneIn(30) {
			keys := []any{}
			for _, name := range sortedKeys(value) {
				if !strings.HasPrefix(name, "$") && !v.oneIn(8) {
					keys = append(keys, name)
				}
			}
			value["$retainKeys"] = keys
		}
	case []any:
		if atom.List == nil {
			return
		}
		for _, item := range value {
			v.direct(atom.List.ElementType, item, how)
		}
	}
}

func (v valuer) directList(parent object, name string, list []any) {
	if v.oneIn(4) {
		order := []any{}
		for _, item := range list {
			entry, isMap := item.(object)
			if !isMap {
				order = append(order, item)
				continue
			}
			keys := object{}
			for _, key := range []string{"name", "port", "containerPort", "type", "key", "ip", "uid"} {
				if value, ok := entry[key]; ok {
					keys[key] = value
				}
			}
			order = append(order, keys)
		}
		if v.oneIn(4) && len(order) > 1 {
			order[0], order[len(order)-1] = order[len(order)-1], order[0]
		}
		parent["$setElementOrder/"+name] = order
		if v.oneIn(3) {
			delete(parent, name)
		}
	}
	if _, isMap := append(list, nil)[0].(object); !isMap && v.oneIn(4) && len(list) > 0 {
		parent["$deleteFromPrimitiveList/"+name] = list[:1]
	}
}
