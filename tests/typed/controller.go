package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	retry     = 20 * time.Millisecond
	namespace = "typed"
)

// Output is what a run of the controller saw.
type Output struct {
	// Steps is what a user did, each with its outcome.
	Steps []string `json:"steps"`
	// Objects is the world at the end.
	Objects []map[string]any `json:"objects"`
	// Errors is what reconciles failed with.
	Errors []string `json:"errors"`
}

// user is a client without a cache that writes down each outcome.
type user struct {
	client.Client
	typed  kubernetes.Interface
	config *rest.Config
	steps  []string
}

func runController(ctx context.Context, config *rest.Config) (any, error) {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme, addStacks} {
		if err := add(types); err != nil {
			return nil, err
		}
	}
	direct, err := client.New(config, client.Options{Scheme: types})
	if err != nil {
		return nil, err
	}
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	typed, err := kubernetes.NewForConfig(protobuf)
	if err != nil {
		return nil, err
	}
	u := &user{Client: direct, typed: typed, config: config}
	if err := u.prepare(ctx); err != nil {
		return nil, err
	}
	errors := &failures{}
	stop, err := start(ctx, config, types, errors)
	if err != nil {
		return nil, err
	}
	if err := u.story(ctx); err != nil {
		return nil, fmt.Errorf("%w (errors of reconciles: %q)", err, errors.all())
	}
	if err := stop(); err != nil {
		return nil, fmt.Errorf("the manager ended with: %w", err)
	}
	objects, err := world(ctx, config)
	if err != nil {
		return nil, err
	}
	return Output{Steps: u.steps, Objects: objects, Errors: errors.all()}, nil
}

// prepare creates what exists before the controller.
func (u *user) prepare(ctx context.Context) error {
	if err := u.Create(ctx, definition()); err != nil {
		return err
	}
	if err := until(ctx, "the definition is established", func() (bool, error) {
		var crd apiextensions.CustomResourceDefinition
		if err := u.Get(ctx, client.ObjectKey{Name: "stacks.typed.dev"}, &crd); err != nil {
			return false, err
		}
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensions.Established && condition.Status == apiextensions.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	}); err != nil {
		return err
	}
	if err := u.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "typed"}, Spec: corev1.NodeSpec{
		PodCIDR: "10.2.0.0/24", PodCIDRs: []string{"10.2.0.0/24"},
		Taints: []corev1.Taint{{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule}, {Key: "c", Effect: corev1.TaintEffectNoExecute}},
	}}
	if err := u.Create(ctx, node); err != nil {
		return err
	}
	return u.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "input"}, StringData: map[string]string{"version": "1"}})
}

// start runs the manager as a main function does; the result stops it, and waits for its end.
func start(ctx context.Context, config *rest.Config, types *runtime.Scheme, errors *failures) (func() error, error) {
	ctrl.SetLogger(logr.New(errors))
	managed, err := labels.NewRequirement(stackLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	only := labels.NewSelector().Add(*managed)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        types,
		Metrics:                       server.Options{BindAddress: "0"},
		HealthProbeBindAddress:        "0",
		LeaderElection:                true,
		LeaderElectionID:              "stacks.typed.dev",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}: {Label: only},
			&corev1.ConfigMap{}:  {Label: only},
			&corev1.Secret{}:     {Field: fields.OneTermEqualSelector("type", string(corev1.SecretTypeOpaque))},
			&Stack{}:             {Namespaces: map[string]cache.Config{namespace: {}}},
		}},
	})
	if err != nil {
		return nil, err
	}
	reconciler := &reconciler{Client: manager.GetClient(), recorder: manager.GetEventRecorderFor("stacks"), events: manager.GetEventRecorder("stacks")}
	if err := reconciler.setup(ctx, manager); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(running) }()
	return func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return fmt.Errorf("the manager does not end")
		}
	}, nil
}

// until waits for a condition; an object that is not there yet does not meet it.
func until(ctx context.Context, what string, check func() (bool, error)) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, retry, true, func(context.Context) (bool, error) {
		met, err := check()
		last = err
		if err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
		return met && err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w (last: %v)", what, err, last)
	}
	return nil
}

// ready plays the controller of Deployments and waits until a stack is ready at its generation.
func (u *user) ready(ctx context.Context, name string) error {
	key := client.ObjectKey{Namespace: namespace, Name: name}
	return until(ctx, "stack "+name+" is ready", func() (bool, error) {
		var stack Stack
		if err := u.Get(ctx, key, &stack); err != nil {
			return false, err
		}
		var deployment appsv1.Deployment
		if err := u.Get(ctx, key, &deployment); err != nil {
			return false, err
		}
		want := *deployment.Spec.Replicas
		if deployment.Status.ObservedGeneration != deployment.Generation || deployment.Status.ReadyReplicas != want {
			deployment.Status = appsv1.DeploymentStatus{
				ObservedGeneration: deployment.Generation, Replicas: want, ReadyReplicas: want, AvailableReplicas: want, UpdatedReplicas: want,
			}
			if err := u.Status().Update(ctx, &deployment); err != nil && !apierrors.IsConflict(err) {
				return false, err
			}
		}
		condition := meta.FindStatusCondition(stack.Status.Conditions, "Ready")
		return condition != nil && condition.Status == metav1.ConditionTrue && condition.ObservedGeneration == stack.Generation &&
			stack.Status.ObservedGeneration == stack.Generation && stack.Status.Replicas == stack.Spec.Replicas, nil
	})
}
