package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	finalizer   = "typed.dev/finalizer"
	stackLabel  = "typed.dev/stack"
	secretIndex = "spec.secretName"
)

type reconciler struct {
	client.Client
	recorder record.EventRecorder
	events   events.EventRecorder
}

func (r *reconciler) setup(ctx context.Context, manager ctrl.Manager) error {
	index := func(object client.Object) []string { return []string{object.(*Stack).Spec.SecretName} }
	if err := manager.GetFieldIndexer().IndexField(ctx, &Stack{}, secretIndex, index); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(manager).
		For(&Stack{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ConfigMap{}).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.stacksOf)).
		Complete(r)
}

// stacksOf finds the stacks that depend on a Secret, by the index of the cache.
func (r *reconciler) stacksOf(ctx context.Context, secret client.Object) []reconcile.Request {
	var stacks StackList
	if err := r.List(ctx, &stacks, client.InNamespace(secret.GetNamespace()), client.MatchingFields{secretIndex: secret.GetName()}); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for at := range stacks.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&stacks.Items[at])})
	}
	return requests
}

// Reconcile brings the objects of a stack to their state, and reports it.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var stack Stack
	if err := r.Get(ctx, request.NamespacedName, &stack); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !stack.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, ignoreConflict(r.finalize(ctx, &stack))
	}
	if controllerutil.AddFinalizer(&stack, finalizer) {
		return reconcile.Result{}, ignoreConflict(r.Update(ctx, &stack))
	}
	for _, part := range r.parts(&stack) {
		err := r.ensure(ctx, &stack, part)
		// The cache lags behind the own writes; their events come.
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: retry}, nil
		}
		if err != nil {
			return reconcile.Result{}, fmt.Errorf("%T %s: %w", part.object, stack.Name, err)
		}
	}
	if err := r.applySecret(ctx, &stack); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, ignoreConflict(r.report(ctx, &stack))
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *reconciler) ensure(ctx context.Context, stack *Stack, part part) error {
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, part.object, func() error {
		labels := part.object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[stackLabel] = stack.Name
		part.object.SetLabels(labels)
		part.mutate()
		return controllerutil.SetControllerReference(stack, part.object, r.Scheme())
	})
	return err
}

// applySecret uses server-side apply with a typed configuration.
func (r *reconciler) applySecret(ctx context.Context, stack *Stack) error {
	secret := applycore.Secret(stack.Name+"-applied", stack.Namespace).
		WithLabels(map[string]string{stackLabel: stack.Name}).
		WithStringData(map[string]string{"image": stack.Spec.Image})
	return r.Apply(ctx, secret, client.FieldOwner("stacks"), client.ForceOwnership)
}

func (r *reconciler) report(ctx context.Context, stack *Stack) error {
	var deployment appsv1.Deployment
	if err := r.Get(ctx, client.ObjectKeyFromObject(stack), &deployment); err != nil {
		return client.IgnoreNotFound(err)
	}
	base := stack.deepCopy()
	status := &stack.Status
	status.ObservedGeneration = stack.Generation
	status.Replicas = deployment.Status.ReadyReplicas
	status.Selector = metav1.FormatLabelSelector(deployment.Spec.Selector)
	if stack.Spec.SecretName != "" {
		var secret corev1.Secret
		if err := r.Get(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: stack.Spec.SecretName}, &secret); err != nil {
			return err
		}
		status.SecretVersion = string(secret.Data["version"])
	}
	ready := deployment.Status.ObservedGeneration >= deployment.Generation && status.Replicas == stack.Spec.Replicas
	condition := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Waiting", Message: "waiting for replicas", ObservedGeneration: stack.Generation}
	if ready {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, "Available", fmt.Sprintf("%d replicas", status.Replicas)
	}
	// Whether a reconcile saw the stack between two sizes is up to time, so the size decides about the event.
	var was string
	if before := meta.FindStatusCondition(status.Conditions, "Ready"); before != nil {
		was = before.Message
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	if equality.Semantic.DeepEqual(base.Status, stack.Status) {
		return nil
	}
	if err := r.Status().Patch(ctx, stack, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	if ready && was != condition.Message {
		r.recorder.Eventf(stack, corev1.EventTypeNormal, "Available", "%d replicas", status.Replicas)
		r.events.Eventf(stack, &deployment, corev1.EventTypeNormal, "Available", "Report", "%d replicas", status.Replicas)
	}
	return nil
}

// finalize deletes what the stack owns, and ends the stack when nothing is left.
func (r *reconciler) finalize(ctx context.Context, stack *Stack) error {
	if !controllerutil.ContainsFinalizer(stack, finalizer) {
		return nil
	}
	for _, part := range r.parts(stack) {
		key := client.ObjectKeyFromObject(part.object)
		if err := r.Get(ctx, key, part.object); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return err
		}
		uid := part.object.GetUID()
		err := r.Delete(ctx, part.object, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &uid})
		if client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if err := r.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(stack.Namespace), client.MatchingLabels{stackLabel: stack.Name}); err != nil {
		return err
	}
	r.recorder.Event(stack, corev1.EventTypeNormal, "Finalized", "deleted what the stack owns")
	base := stack.deepCopy()
	controllerutil.RemoveFinalizer(stack, finalizer)
	return r.Patch(ctx, stack, client.MergeFrom(base))
}

// part is an object of a stack, and how it has to be.
type part struct {
	object client.Object
	mutate func()
}

func (r *reconciler) parts(stack *Stack) []part {
	named := metav1.ObjectMeta{Namespace: stack.Namespace, Name: stack.Name}
	labels := map[string]string{stackLabel: stack.Name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	config := &corev1.ConfigMap{ObjectMeta: named}
	account := &corev1.ServiceAccount{ObjectMeta: named}
	role := &rbacv1.Role{ObjectMeta: named}
	binding := &rbacv1.RoleBinding{ObjectMeta: named}
	deployment := &appsv1.Deployment{ObjectMeta: named}
	service := &corev1.Service{ObjectMeta: named}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: named}
	ingress := &networkingv1.Ingress{ObjectMeta: named}
	policy := &networkingv1.NetworkPolicy{ObjectMeta: named}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: named}
	scaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: named}
	cron := &batchv1.CronJob{ObjectMeta: named}
	return []part{
		{config, func() { config.Data = stack.Spec.Config }},
		{account, func() { account.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}} }},
		{role, func() {
			role.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list"}, ResourceNames: []string{stack.Name}}}
		}},
		{binding, func() {
			binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: stack.Name}
			binding.Subjects = []rbacv1.Subject{{Kind: "ServiceAccount", Name: stack.Name, Namespace: stack.Namespace}}
		}},
		{deployment, func() {
			deployment.Spec.Replicas = ptr(stack.Spec.Replicas)
			deployment.Spec.Selector = selector
			deployment.Spec.Template.Labels = labels
			fillPod(&deployment.Spec.Template.Spec, stack)
		}},
		{service, func() {
			service.Spec.Selector = labels
			service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")}}
			service.Spec.Type = corev1.ServiceTypeLoadBalancer
			service.Spec.AllocateLoadBalancerNodePorts = ptr(false)
			service.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "192.168.0.0/16"}
		}},
		{slice, func() {
			slice.AddressType = discoveryv1.AddressTypeIPv4
			slice.Endpoints = []discoveryv1.Endpoint{{
				Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}, Zone: ptr("a"),
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}},
			}}
			slice.Ports = []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(80)), Protocol: ptr(corev1.ProtocolTCP)}}
		}},
		{ingress, func() {
			backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: stack.Name, Port: networkingv1.ServiceBackendPort{Name: "http"}}}
			ingress.Spec.Rules = []networkingv1.IngressRule{{Host: stack.Name + ".example.org", IngressRuleValue: networkingv1.IngressRuleValue{
				HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: ptr(networkingv1.PathTypePrefix), Backend: backend}}},
			}}}
			ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{stack.Name + ".example.org"}, SecretName: "tls"}}
		}},
		{policy, func() {
			policy.Spec.PodSelector = *selector
			policy.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.1.0.0/16"}}}}}}
		}},
		{budget, func() {
			budget.Spec.MinAvailable = ptr(intstr.FromString("50%"))
			budget.Spec.Selector = selector
		}},
		{scaler, func() {
			scaler.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: stack.Name}
			scaler.Spec.MaxReplicas = 10
			scaler.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr(int32(80))},
			}}}
		}},
		{cron, func() {
			cron.Spec.Schedule, cron.Spec.TimeZone = "0 3 * * *", ptr("Etc/UTC")
			template := &cron.Spec.JobTemplate.Spec
			template.BackoffLimitPerIndex, template.Completions, template.CompletionMode = ptr(int32(1)), ptr(int32(3)), ptr(batchv1.IndexedCompletion)
			template.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionFailIndex, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3, 42}},
			}}}
			template.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr("0-1"), SucceededCount: ptr(int32(1))}}}
			template.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			fillPod(&template.Template.Spec, stack)
		}},
	}
}

func fillPod(pod *corev1.PodSpec, stack *Stack) {
	pod.ServiceAccountName = stack.Name
	pod.Tolerations = []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpEqual, Value: "b", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr(int64(30))}, {Key: "c", Operator: corev1.TolerationOpExists}}
	pod.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "typed.dev/ready"}}
	pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{stackLabel: stack.Name}}, MatchLabelKeys: []string{"pod-template-hash"},
	}}
	pod.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: stack.Name}, DefaultMode: ptr(int32(0o440)), Items: []corev1.KeyToPath{{Key: "a", Path: "a"}},
	}}}}
	if len(pod.Containers) == 0 {
		pod.Containers = make([]corev1.Container, 1)
	}
	container := &pod.Containers[0]
	container.Name, container.Image = "app", stack.Spec.Image
	container.Args = []string{"--listen", ":80"}
	container.Env = []corev1.EnvVar{{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"}}}}
	container.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80, Protocol: corev1.ProtocolTCP}}
	container.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/config", ReadOnly: true}}
	container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	container.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, RunAsNonRoot: ptr(true)}
}
