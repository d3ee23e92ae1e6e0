package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// The schemas of the written cases, by their place in the list.
const (
	schemaRich = iota
	schemaAtomic
	schemaNone
)

var writtenSchemas = []string{
	// Every relation once.
	`{"type":"object","properties":{
		"spec":{"type":"object","properties":{
			"replicas":{"type":"integer"},
			"mode":{"type":"string"},
			"labels":{"type":"object","additionalProperties":{"type":"string"}},
			"selector":{"type":"object","x-kubernetes-map-type":"atomic","additionalProperties":{"type":"string"}},
			"args":{"type":"array","items":{"type":"string"}},
			"groups":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
			"items":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],"properties":{
				"name":{"type":"string"},"image":{"type":"string"},"env":{"type":"object","additionalProperties":{"type":"string"}}}}},
			"ports":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["port","protocol"],"items":{"type":"object","required":["port"],"properties":{
				"port":{"type":"integer"},"protocol":{"type":"string","default":"TCP"},"name":{"type":"string"}}}},
			"size":{"x-kubernetes-int-or-string":true},
			"open":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
			"template":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}},
		"status":{"type":"object","properties":{"phase":{"type":"string"},"ready":{"type":"boolean"}}}}}`,
	// The same, but items, ports and labels are atomic.
	`{"type":"object","properties":{
		"spec":{"type":"object","properties":{
			"replicas":{"type":"integer"},
			"labels":{"type":"object","x-kubernetes-map-type":"atomic","additionalProperties":{"type":"string"}},
			"groups":{"type":"array","items":{"type":"string"}},
			"items":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"image":{"type":"string"}}}}}}}}`,
	`null`,
}

var (
	rich    = map[string]int{"v1": schemaRich}
	twice   = map[string]int{"v1": schemaRich, "v2": schemaRich}
	atomic  = map[string]int{"v1": schemaAtomic}
	untyped = map[string]int{"v1": schemaNone}
)

// thing is an object with a spec.
func thing(spec string) object { return custom(`"spec":` + spec) }

func custom(fields string) object { return parsed(`{"metadata":{"name":"x"},` + fields + `}`) }

func parsed(text string) object {
	var out object
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		log.Fatalf("%s: %v", text, err)
	}
	return out
}

func apply(manager string, o object) step  { return step{Do: "apply", Manager: manager, Object: o} }
func force(manager string, o object) step  { return step{Do: "force", Manager: manager, Object: o} }
func update(manager string, o object) step { return step{Do: "update", Manager: manager, Object: o} }

func (s step) at(version string) step { s.Version = group + "/" + version; return s }
func (s step) resetting() step        { s.Reset = true; return s }
func (s step) sub(name string) step   { s.Subresource = name; return s }
func (s step) with(managed string) step {
	var entries any
	if err := json.Unmarshal([]byte(managed), &entries); err != nil {
		log.Fatalf("%s: %v", managed, err)
	}
	s.Object["metadata"].(object)["managedFields"] = entries
	return s
}

func on(kind map[string]int, name string, steps ...step) run {
	return run{Name: name, Custom: kind, Steps: steps}
}

func onBuiltin(version, kind, name string, steps ...step) run {
	return run{Name: name, Builtin: []string{version, kind}, Steps: steps}
}

// existing starts a run with an object that is there.
func (r run) existing(live object) run {
	live["apiVersion"], live["kind"] = group+"/v1", customKind
	if r.Builtin != nil {
		live["apiVersion"], live["kind"] = r.Builtin[0], r.Builtin[1]
	}
	live["metadata"].(object)["uid"] = "u"
	r.Live = live
	return r
}

func writtenRuns() []run {
	runs := []run{
		on(rich, "an apply owns what it mentions", apply("a", thing(`{"replicas":1,"labels":{"p":"1"},"args":["x"],"groups":["g"],"items":[{"name":"n","image":"i"}],"ports":[{"port":80}],"size":"5%","open":{"k":{"l":[1]}}}`))),
		on(rich, "an apply of the same is no change", apply("a", thing(`{"replicas":1}`)), apply("a", thing(`{"replicas":1}`))),
		on(rich, "two appliers share a field of one value", apply("a", thing(`{"replicas":1}`)), apply("b", thing(`{"replicas":1}`)), apply("a", thing(`{}`)), apply("b", thing(`{}`))),
		on(rich, "another value conflicts", apply("a", thing(`{"replicas":1,"mode":"m"}`)), apply("b", thing(`{"replicas":2,"mode":"n"}`))),
		on(rich, "force takes the field", apply("a", thing(`{"replicas":1,"mode":"m"}`)), force("b", thing(`{"replicas":2}`)), apply("a", thing(`{"replicas":1,"mode":"m"}`)), apply("a", thing(`{"mode":"m"}`))),
		on(rich, "force takes the last field of another", apply("a", thing(`{"replicas":1}`)), force("b", thing(`{"replicas":2}`))),
		on(rich, "what is not applied any more goes", apply("a", thing(`{"replicas":1,"mode":"m","labels":{"p":"1","q":"2"}}`)), apply("a", thing(`{"labels":{"q":"2"}}`))),
		on(rich, "what another has as well stays", apply("a", thing(`{"labels":{"p":"1","q":"2"}}`)), apply("b", thing(`{"labels":{"p":"1"}}`)), apply("a", thing(`{}`))),
		on(rich, "an empty map stays owned", apply("a", thing(`{"labels":{}}`)), apply("b", thing(`{"labels":{"p":"1"}}`)), apply("a", thing(`{}`)), apply("b", thing(`{}`))),
		on(rich, "null is a value", apply("a", thing(`{"replicas":null,"labels":null,"args":null}`)), apply("b", thing(`{"replicas":1}`)), update("c", thing(`{"labels":{"p":"1"}}`))),
		on(rich, "an atomic map changes as a whole", apply("a", thing(`{"selector":{"p":"1"}}`)), apply("b", thing(`{"selector":{"q":"1"}}`)), force("b", thing(`{"selector":{"q":"1"}}`))),
		on(rich, "an atomic list changes as a whole", apply("a", thing(`{"args":["x","y"]}`)), apply("b", thing(`{"args":["x"]}`)), force("b", thing(`{"args":["y","x"]}`))),
		on(rich, "sets merge", apply("a", thing(`{"groups":["x","y"]}`)), apply("b", thing(`{"groups":["z","x"]}`)), apply("a", thing(`{"groups":["y"]}`)), apply("b", thing(`{"groups":[]}`))),
		on(rich, "keyed lists merge in the order of the configuration", apply("a", thing(`{"items":[{"name":"m","image":"1"},{"name":"n","image":"1"},{"name":"o","image":"1"}]}`)), apply("b", thing(`{"items":[{"name":"p","image":"1"},{"name":"o","env":{"k":"v"}},{"name":"m","env":{"k":"v"}}]}`)), apply("a", thing(`{"items":[{"name":"o","image":"1"}]}`)), apply("b", thing(`{"items":[]}`))),
		on(rich, "a conflict inside an item", apply("a", thing(`{"items":[{"name":"m","image":"1"}]}`)), apply("b", thing(`{"items":[{"name":"m","image":"2"}]}`))),
		on(rich, "a key that is left out has its default", apply("a", thing(`{"ports":[{"port":80,"name":"w"}]}`)), apply("b", thing(`{"ports":[{"port":80,"protocol":"TCP","name":"v"},{"port":80,"protocol":"UDP"}]}`))),
		on(rich, "a key without default that is left out", apply("a", thing(`{"items":[{"image":"1"}]}`)), apply("a", thing(`{"items":[{"name":null}]}`))),
		on(rich, "an item twice", apply("a", thing(`{"items":[{"name":"m"},{"name":"m","image":"1"}],"groups":["x","x"],"ports":[{"port":1},{"port":1,"protocol":"TCP"}]}`))),
		on(rich, "an item twice that is there already", update("u", thing(`{"items":[{"name":"m"},{"name":"m","image":"1"}],"groups":["x","x"]}`)), apply("a", thing(`{"items":[{"name":"n"}],"groups":["y"]}`)), force("a", thing(`{"items":[{"name":"m","image":"2"}],"groups":["x"]}`))),
		on(rich, "what the schema does not have", apply("a", thing(`{"unknown":1,"replicas":1}`)), update("a", thing(`{"unknown":1}`))),
		on(rich, "values of another type", apply("a", thing(`{"replicas":"many","mode":1,"labels":["x"],"args":{"x":1},"items":[1,"x"],"groups":[{"a":1}],"size":{"a":1}}`)), apply("a", custom(`"status":{"ready":"x","phase":true}`))),
		on(rich, "an update that does not fit has no entries", apply("a", thing(`{"replicas":1}`)), update("u", thing(`{"replicas":"many"}`)), apply("a", thing(`{"replicas":1}`))),
		on(rich, "an embedded object has metadata", apply("a", thing(`{"template":{"apiVersion":"v1","kind":"K","metadata":{"name":"n","labels":{"p":"1"},"finalizers":["f"]},"data":{"k":[1,{"l":2}]}}}`)), apply("b", thing(`{"template":{"metadata":{"labels":{"q":"1"}},"data":{"m":1}}}`))),
		on(rich, "an update owns what it changes", update("u", thing(`{"replicas":1,"mode":"m"}`)), update("v", thing(`{"replicas":2,"mode":"m"}`)), update("v", thing(`{"mode":"m"}`)), apply("a", thing(`{"mode":"n"}`)), apply("a", thing(`{"replicas":3}`))),
		on(rich, "an update that changes nothing", update("u", thing(`{"replicas":1}`)), update("v", thing(`{"replicas":1}`))),
		on(rich, "an update takes from an applier", apply("a", thing(`{"replicas":1,"items":[{"name":"m","image":"1"}]}`)), update("u", thing(`{"replicas":2,"items":[{"name":"n","image":"1"}]}`)), apply("a", thing(`{"replicas":1,"items":[{"name":"m","image":"1"}]}`))),
		on(rich, "an applier is no updater of the same name", apply("a", thing(`{"replicas":1}`)), update("a", thing(`{"replicas":2}`)), apply("a", thing(`{"replicas":1}`)), force("a", thing(`{"replicas":1}`))),
		on(rich, "whoever empties an atomic list keeps it", apply("a", thing(`{"args":["x"]}`)), update("u", thing(`{"args":[]}`)), apply("a", thing(`{"args":["x"]}`))),
		on(rich, "finalizers and owners are lists with keys", apply("a", parsed(`{"metadata":{"name":"x","finalizers":["f/a"],"ownerReferences":[{"uid":"1","apiVersion":"v1","kind":"K","name":"n"}],"labels":{"p":"1"},"annotations":{"q":"1"}}}`)), apply("b", parsed(`{"metadata":{"name":"x","finalizers":["f/b"],"ownerReferences":[{"uid":"2","apiVersion":"v1","kind":"K","name":"n"}]}}`)), apply("a", parsed(`{"metadata":{"name":"x"}}`)), apply("b", parsed(`{"metadata":{"name":"x","finalizers":[]}}`))),
		on(rich, "nobody owns the name", apply("a", parsed(`{"metadata":{"name":"x","namespace":"n","uid":"u","resourceVersion":"7","generation":3,"creationTimestamp":"2020-01-01T00:00:00Z","generateName":"x-"}}`))),
		on(rich, "status is reset", apply("a", custom(`"spec":{"replicas":1},"status":{"phase":"p"}`)).resetting(), update("u", custom(`"spec":{"replicas":1},"status":{"phase":"p"}`)).resetting().sub("status"), update("v", custom(`"spec":{"replicas":2},"status":{"phase":"q"}`)).resetting().sub("status"), apply("a", custom(`"spec":{"replicas":1},"status":{"phase":"r"}`)).resetting(), apply("a", custom(`"status":{"phase":"q","ready":true}`)).resetting().sub("status"), apply("b", custom(`"status":{"phase":"s"}`)).resetting().sub("status")),
		on(rich, "one manager at two endpoints", apply("a", custom(`"spec":{"replicas":1}`)).resetting(), apply("a", custom(`"status":{"phase":"p"}`)).resetting().sub("status"), apply("a", custom(`"spec":{"replicas":2}`)).resetting(), update("a", custom(`"spec":{"replicas":2},"status":{"phase":"q"}`)).resetting().sub("status"), apply("b", custom(`"spec":{"replicas":3},"status":{"phase":"z"}`))),
		on(rich, "entries are cleared by []", apply("a", thing(`{"replicas":1}`)), update("u", thing(`{"replicas":2}`)).with(`[]`), update("u", thing(`{"replicas":3}`)), apply("a", thing(`{"replicas":4}`)), force("a", thing(`{"replicas":4}`))),
		on(rich, "entries are cleared by [{}]", apply("a", thing(`{"replicas":1}`)), update("u", thing(`{"replicas":1}`)).with(`[{}]`), apply("b", thing(`{"replicas":1}`))),
		on(rich, "entries are not cleared at a subresource", apply("a", thing(`{"replicas":1}`)), update("u", thing(`{"replicas":1}`)).with(`[]`).sub("status")),
		on(rich, "entries are edited", apply("a", thing(`{"replicas":1,"mode":"m"}`)), update("u", thing(`{"replicas":1,"mode":"m"}`)).with(`[{"manager":"z","operation":"Apply","apiVersion":"test.dev/v1","time":"1969-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]`), apply("a", thing(`{"replicas":2}`))),
		on(rich, "entries that cannot be read", apply("a", thing(`{"replicas":1}`)), update("u", thing(`{"replicas":1}`)).with(`[{"manager":"z","operation":"Delete","apiVersion":"test.dev/v1","fieldsType":"FieldsV1","fieldsV1":{}}]`), update("u", thing(`{"replicas":1}`)).with(`[{"manager":"z","operation":"Apply","fieldsType":"FieldsV1","fieldsV1":{}}]`), update("u", thing(`{"replicas":1}`)).with(`[{"manager":"z","operation":"Apply","apiVersion":"test.dev/v1","fieldsType":"FieldsV2","fieldsV1":{}}]`)),
		on(rich, "entries in a configuration", apply("a", thing(`{"replicas":1}`)).with(`[]`), apply("a", thing(`{"replicas":1}`)).with(`[{"manager":"a","operation":"Apply","apiVersion":"test.dev/v1","fieldsType":"FieldsV1","fieldsV1":{}}]`), apply("a", thing(`{"replicas":1}`)).with(`null`)),
		on(rich, "an object without entries", apply("a", thing(`{"replicas":1}`)), apply("b", thing(`{"mode":"n"}`)), force("b", thing(`{"mode":"n"}`))).existing(thing(`{"replicas":2,"mode":"m","items":[{"name":"n","image":"i"}]}`)),
		on(rich, "an object without entries is updated", update("u", thing(`{"replicas":1}`)), apply("a", thing(`{"replicas":1}`))).existing(thing(`{"replicas":2}`)),
		on(rich, "an entry of a version that is gone", apply("a", thing(`{"replicas":1}`)), apply("b", thing(`{"replicas":2}`))).existing(parsed(`{"metadata":{"name":"x","managedFields":[{"manager":"z","operation":"Apply","apiVersion":"test.dev/v0","time":"1969-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]},"spec":{"replicas":2}}`)),
		on(rich, "a field that an entry names and nobody has", apply("z", thing(`{"mode":"m"}`)), apply("b", thing(`{"replicas":2}`))).existing(parsed(`{"metadata":{"name":"x","managedFields":[{"manager":"z","operation":"Apply","apiVersion":"test.dev/v1","time":"1969-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{},"f:gone":{}}}}]},"spec":{"mode":"m"}}`)),
		on(twice, "versions without conversion", apply("a", thing(`{"replicas":1}`)).at("v1"), apply("b", thing(`{"replicas":2}`)).at("v2"), apply("a", thing(`{"replicas":2}`)).at("v2"), apply("b", thing(`{"mode":"m"}`)).at("v2"), update("u", thing(`{"mode":"n"}`)).at("v1"), update("u", thing(`{"mode":"o"}`)).at("v2"), apply("c", thing(`{"mode":"p"}`)).at("v1")),
		on(rich, "a configuration of another version", apply("a", thing(`{"replicas":1}`)).at("v1"), apply("", thing(`{"replicas":2}`)).at("v1")),
		on(atomic, "what has become atomic is owned as a whole", apply("a", thing(`{"items":[{"name":"m","image":"2"}],"labels":{"p":"1"},"groups":["x"]}`)), apply("b", thing(`{"labels":{"p":"1"}}`))).existing(parsed(`{"metadata":{"name":"x","managedFields":[{"manager":"a","operation":"Apply","apiVersion":"test.dev/v1","time":"1969-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:groups":{"v:\"x\"":{}},"f:items":{"k:{\"name\":\"m\"}":{".":{},"f:name":{},"f:image":{}}},"f:labels":{"f:p":{}}}}}]},"spec":{"items":[{"name":"m","image":"1"}],"labels":{"p":"1"},"groups":["x"]}}`)),
		on(rich, "what has become granular is owned as a whole", apply("a", thing(`{"labels":{"p":"2"},"groups":["y"]}`)), apply("b", thing(`{"labels":{"q":"1"},"groups":["z"]}`))).existing(parsed(`{"metadata":{"name":"x","managedFields":[{"manager":"a","operation":"Apply","apiVersion":"test.dev/v1","time":"1969-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:groups":{},"f:labels":{}}}}]},"spec":{"labels":{"p":"1"},"groups":["x"]}}`)),
		on(untyped, "without a schema", apply("a", custom(`"spec":{"list":[{"name":"a"}],"map":{"k":{"l":1}}},"more":[1]`)), apply("b", custom(`"spec":{"list":[{"name":"b"}],"map":{"k":{"m":1}}}`)), force("b", custom(`"spec":{"list":[{"name":"b"}],"map":{"k":{"m":1}}}`)), update("u", custom(`"spec":"text"`))),
		on(rich, "numbers of one amount", apply("a", thing(`{"open":{"n":1.0,"m":2}}`)), apply("b", thing(`{"open":{"n":1,"m":2.0}}`)), update("u", thing(`{"open":{"n":1.0,"m":2.5}}`))),
		on(rich, "field names that need quoting", apply("a", thing(`{"labels":{"a.b/c":"1","\"":"2","":"3","é":"4","\u2028":"5","<&>":"6"},"groups":["a\"b","\u0007","é"]}`)), apply("b", thing(`{"labels":{"a.b/c":"2","\"":"3","":"4","é":"5","<&>":"7"}}`))),
		on(rich, "the first client-side apply", update("kubectl-client-side-apply", parsed(`{"metadata":{"name":"x","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"test.dev/v1\",\"kind\":\"Thing\",\"metadata\":{\"name\":\"x\"},\"spec\":{\"replicas\":1}}\n"}},"spec":{"replicas":1}}`)), apply("kubectl", thing(`{"replicas":2}`)), apply("kubectl", thing(`{"replicas":3,"mode":"m"}`))),
		on(rich, "an annotation that cannot be read", update("kubectl-client-side-apply", parsed(`{"metadata":{"name":"x","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{"}},"spec":{"replicas":1}}`)), apply("kubectl", thing(`{"replicas":2}`))),
		on(rich, "an annotation that says less", update("kubectl-client-side-apply", parsed(`{"metadata":{"name":"x","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"test.dev/v1\",\"kind\":\"Thing\",\"metadata\":{\"name\":\"x\"},\"spec\":{}}\n"}},"spec":{"replicas":1}}`)), apply("kubectl", thing(`{"replicas":2}`))),
		manyUpdaters(),
		onBuiltin("v1", "Service", "ports with the protocol left out",
			apply("a", parsed(`{"metadata":{"name":"x"},"spec":{"ports":[{"port":80,"name":"w"}],"selector":{"app":"x"}}}`)),
			apply("b", parsed(`{"metadata":{"name":"x"},"spec":{"ports":[{"port":80,"protocol":"UDP"},{"port":80,"protocol":"TCP","targetPort":"http"}]}}`)),
			apply("b", parsed(`{"metadata":{"name":"x"},"spec":{"ports":[{"port":80,"name":"v"}]}}`))),
		onBuiltin("apps/v1", "Deployment", "containers, their ports and environment",
			apply("a", parsed(`{"metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i:1","env":[{"name":"A","value":"1"}],"ports":[{"containerPort":80}]}]}}}}`)),
			apply("b", parsed(`{"metadata":{"name":"x"},"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"c","env":[{"name":"B","value":"2"}]},{"name":"d","image":"j"}]}}}}`)),
			apply("b", parsed(`{"metadata":{"name":"x"},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i:2","env":[{"name":"A","value":"2"}]}]}}}}`)),
			apply("a", parsed(`{"metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"app":"y"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i:1"}]}}}}`)),
			apply("a", parsed(`{"metadata":{"name":"x"},"spec":{"replica":3,"template":{"spec":{"containers":[{"name":"c","imagePullPolicies":"Always"}]}}}}`))),
		onBuiltin("v1", "ConfigMap", "data per key",
			apply("a", parsed(`{"metadata":{"name":"x"},"data":{"p":"1"}}`)),
			apply("b", parsed(`{"metadata":{"name":"x"},"data":{"q":"1"},"immutable":true}`)),
			apply("a", parsed(`{"metadata":{"name":"x"},"data":{"q":"2"}}`)),
			apply("a", parsed(`{"metadata":{"name":"x"},"data":{"q":2}}`))),
		onBuiltin("v1", "Pod", "pull secrets and tolerations",
			apply("a", parsed(`{"metadata":{"name":"x"},"spec":{"containers":[],"imagePullSecrets":[{"name":"s"},{}],"tolerations":[{"key":"k"}],"hostAliases":[{"ip":"1.1.1.1"}],"topologySpreadConstraints":[{"topologyKey":"t","whenUnsatisfiable":"W","maxSkew":1}]}}`)),
			apply("b", parsed(`{"metadata":{"name":"x"},"spec":{"containers":null,"imagePullSecrets":[{"name":"t"}],"tolerations":[{"key":"l"}],"volumes":[{"name":"v","emptyDir":{}}]}}`))),
		onBuiltin("v1", "ServiceAccount", "secrets of an account",
			apply("a", parsed(`{"metadata":{"name":"x"},"secrets":[{"name":"s"},{"name":"s"}]}`)),
			apply("a", parsed(`{"metadata":{"name":"x"},"secrets":[{"name":"s"}],"imagePullSecrets":[{"name":"p"}]}`)),
			apply("b", parsed(`{"metadata":{"name":"x"},"imagePullSecrets":[{"name":"q"}]}`))),
	}
	return runs
}

// manyUpdaters is a run with more updaters than the API server keeps apart.
func manyUpdaters() run {
	steps := []step{apply("a", thing(`{"mode":"m"}`))}
	for i := range 14 {
		steps = append(steps, update(fmt.Sprintf("u%d", i), thing(fmt.Sprintf(`{"mode":"m","labels":{%s}}`, labels(i+1)))))
	}
	return on(rich, "the oldest updaters become one", steps...)
}

func labels(count int) string {
	var entries []string
	for i := range count {
		entries = append(entries, fmt.Sprintf(`"l%d":"1"`, i))
	}
	return strings.Join(entries, ",")
}

// writeTable writes the written cases.
func writeTable(out *bufio.Writer, specs string) {
	schemas := make([]*apiextensions.JSONSchemaProps, len(writtenSchemas))
	for i, text := range writtenSchemas {
		if err := json.Unmarshal([]byte(text), &schemas[i]); err != nil {
			log.Fatal(err)
		}
	}
	models := readModels(specs)
	types := runtime.NewScheme()
	if err := scheme.AddToScheme(types); err != nil {
		log.Fatal(err)
	}
	runs := writtenRuns()
	for i := range runs {
		r := &runs[i]
		var w *world
		if r.Builtin != nil {
			w = builtinWorld(models, types, r.Builtin[0], r.Builtin[1])
		} else {
			byVersion := map[string]*apiextensions.JSONSchemaProps{}
			for version, place := range r.Custom {
				byVersion[version] = schemas[place]
			}
			w = customWorld(byVersion)
		}
		for j := range r.Steps {
			s := &r.Steps[j]
			s.Object["kind"], s.Object["apiVersion"] = w.kind, s.Version
			if s.Version == "" {
				s.Object["apiVersion"] = w.versions[0]
			}
		}
		w.play(r)
	}
	out.WriteString("{\"schemas\":")
	writeLines(out, schemas)
	out.WriteString(",\"runs\":")
	writeLines(out, runs)
	out.WriteString("}\n")
}
