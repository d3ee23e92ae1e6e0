package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Kinds of the world: those of the namespace, and the cluster-wide ones that the run writes.
var kinds = []schema.GroupVersionResource{
	{Group: "typed.dev", Version: "v1", Resource: "stacks"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "secrets"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "pods"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"},
	{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
	{Group: "autoscaling", Version: "v1", Resource: "horizontalpodautoscalers"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Version: "v1", Resource: "events"},
}

// world returns all objects, without what differs between two runs: versions, times, and how often a reconcile ran.
func world(ctx context.Context, config *rest.Config) ([]map[string]any, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	var objects []map[string]any
	add := func(list *unstructured.UnstructuredList) {
		var found []map[string]any
		for _, item := range list.Items {
			found = append(found, settle(item.Object))
		}
		sort.SliceStable(found, func(a, b int) bool { return sortKey(found[a]) < sortKey(found[b]) })
		for at := range found {
			// Recorders repeat an event after another reconcile.
			if at == 0 || found[at]["kind"] != "Event" || sortKey(found[at]) != sortKey(found[at-1]) {
				objects = append(objects, found[at])
			}
		}
	}
	for _, kind := range kinds {
		list, err := client.Resource(kind).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("%v: %w", kind, err)
		}
		add(list)
	}
	for _, kind := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "nodes"},
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	} {
		list, err := client.Resource(kind).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("%v: %w", kind, err)
		}
		add(list)
	}
	return objects, nil
}

func sortKey(object map[string]any) string {
	if object["kind"] == "Event" {
		text, _ := json.Marshal(object)
		return string(text)
	}
	name, _, _ := unstructured.NestedString(object, "metadata", "name")
	return name
}

func settle(object map[string]any) map[string]any {
	metadata, _ := object["metadata"].(map[string]any)
	delete(metadata, "resourceVersion")
	switch object["kind"] {
	case "ConfigMap":
		if metadata["name"] == "kube-root-ca.crt" {
			delete(object, "data")
		}
	case "Event":
		involved, _ := object["involvedObject"].(map[string]any)
		related, _ := object["related"].(map[string]any)
		for _, reference := range []map[string]any{involved, related} {
			delete(reference, "uid")
			delete(reference, "resourceVersion")
		}
		event := map[string]any{}
		for _, field := range []string{"kind", "apiVersion", "involvedObject", "related", "reason", "message", "type", "source", "reportingComponent", "action"} {
			event[field] = object[field]
		}
		if involved["kind"] == "Lease" {
			// A leader is named after its host and a random ID.
			message, _ := event["message"].(string)
			_, event["message"], _ = strings.Cut(message, " ")
			delete(event, "source")
			delete(event, "reportingComponent")
		}
		return event
	case "Lease":
		spec, _ := object["spec"].(map[string]any)
		delete(spec, "acquireTime")
		delete(spec, "renewTime")
	}
	return object
}
