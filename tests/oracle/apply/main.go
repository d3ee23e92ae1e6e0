package main

import (
	_ "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	_ "k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	_ "k8s.io/apimachinery/pkg/util/managedfields"
	_ "k8s.io/client-go/kubernetes/scheme"
	_ "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	_ "k8s.io/kube-openapi/pkg/schemaconv"
	_ "sigs.k8s.io/structured-merge-diff/v6/typed"
	_ "k8s.io/api/core/v1"
)

func main() {}
